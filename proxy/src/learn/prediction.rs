//! What was predicted of an answer against what it reported.

/// Share of a prediction that it may be off without being wrong: text does not come to tokens evenly, so a beginning may
/// hold fewer tokens than its share of the prompt.
const UNEVEN: f64 = 1.0 / 8.0;

/// One answer. Tokens are the engine's where nothing else is said.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prediction {
    /// Leading blocks of the router that the engine should have had.
    pub(super) blocks: u32,
    /// Tokens of the router in a block.
    pub(super) block_tokens: f64,
    /// Tokens of the router to one of the engine; of two estimates the larger, which predicts less.
    pub(super) ratio: f64,
    /// Tokens of a block of the engine.
    pub(super) engine_block_tokens: f64,
    pub(super) prompt_tokens: f64,
    /// What the engine says that it had.
    pub(super) cached_tokens: f64,
}

/// What a report says of a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// There was nothing to be wrong about, or too little to tell.
    Nothing,
    /// The engine had it.
    Confirmed,
    /// The engine had `kept` leading blocks.
    Short { kept: usize },
}

impl Prediction {
    /// Tokens that should have been cached.
    pub(super) fn tokens(&self) -> f64 {
        (f64::from(self.blocks) * self.block_tokens / self.ratio).min(self.prompt_tokens)
    }

    /// How far it was off, as a share of the prompt.
    pub(super) fn error(&self) -> f64 {
        (self.tokens() - self.cached_tokens).abs() / self.prompt_tokens.max(1.0)
    }

    /// A report of more than was predicted changes nothing.
    pub(super) fn verdict(&self) -> Verdict {
        let (predicted, margin) = (self.tokens(), self.margin());
        if predicted <= margin {
            Verdict::Nothing
        } else if predicted - self.cached_tokens <= margin {
            Verdict::Confirmed
        } else {
            let kept = (self.cached_tokens * self.ratio / self.block_tokens).floor();
            Verdict::Short { kept: kept.clamp(0.0, f64::from(self.blocks)) as usize }
        }
    }

    /// An engine counts whole blocks and computes the last one of a known prompt again; so much is lost at the end of our
    /// own block too.
    fn margin(&self) -> f64 {
        self.engine_block_tokens + self.block_tokens / self.ratio + UNEVEN * self.tokens()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUNDRED_BLOCKS: Prediction = Prediction {
        blocks: 100,
        block_tokens: 64.0,
        ratio: 1.0,
        engine_block_tokens: 16.0,
        prompt_tokens: 8_000.0,
        cached_tokens: 6_400.0,
    };

    #[test]
    fn a_report_is_judged_with_room_for_blocks_and_uneven_text() {
        let short = |kept| Verdict::Short { kept };
        let told = |cached_tokens| Prediction { cached_tokens, ..HUNDRED_BLOCKS };
        let of = |blocks, cached_tokens| Prediction { blocks, ..told(cached_tokens) };
        for (shows, prediction, wanted) in [
            ("as predicted", told(6_400.0), Verdict::Confirmed),
            ("more", told(8_000.0), Verdict::Confirmed),
            ("within the margin", told(5_520.0), Verdict::Confirmed),
            ("just beyond it", told(5_519.0), short(86)),
            ("half", told(3_200.0), short(50)),
            ("nothing", told(0.0), short(0)),
            ("nothing predicted", of(0, 0.0), Verdict::Nothing),
            ("nothing predicted, much there", of(0, 8_000.0), Verdict::Nothing),
            ("a block is too little to tell", of(1, 0.0), Verdict::Nothing),
            ("two blocks", of(2, 0.0), short(0)),
            (
                "a physical block of 4,096",
                Prediction { engine_block_tokens: 4_096.0, ..of(60, 0.0) },
                Verdict::Nothing,
            ),
            ("two of our tokens to one", Prediction { ratio: 2.0, ..told(3_200.0) }, Verdict::Confirmed),
            ("two of our tokens to one, half", Prediction { ratio: 2.0, ..told(1_600.0) }, short(50)),
            ("all of a prompt", Prediction { prompt_tokens: 6_390.0, ..told(6_384.0) }, Verdict::Confirmed),
        ] {
            assert_eq!(prediction.verdict(), wanted, "{shows}");
        }
        assert_eq!(told(3_200.0).error(), 0.4);
    }
}
