//! How many replicas of each kind a traffic needs, by how much of its prompts is cached.

use serde::Serialize;

use super::figure::{Figure, grouped, short};
use super::prompt::{Gpus, Moved, Prompt};
use super::replica::Capacity;
use super::shape::ModelShape;

/// What arrives, and what a decode replica makes of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Requests in a second, all like the one prompt.
    pub requests_per_second: f64,
    /// Tokens of each answer.
    pub output_tokens: u64,
    /// Tokens in a second of each answer after its first.
    pub decode_tokens_per_second: f64,
    /// Answers that a replica decodes side by side at that pace.
    pub answers_max: u64,
    /// Share of a replica's time that is planned for; the rest is for bursts.
    pub planned_share: f64,
}

/// What it needs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Need {
    /// Share of each prompt that is cached.
    pub hit_rate: f64,
    /// Whether prompts are computed apart; else there is nothing to be split.
    pub remote: bool,
    /// Replicas' worth of computing prompts.
    pub prefill_busy: f64,
    /// Answers in flight.
    pub answers: f64,
    /// Replicas' worth of decoding, by the answers that one decodes side by side.
    pub decode_by_answers: f64,
    /// The same by the KV cache that one holds, each answer with its whole prompt; `None` where that is not known.
    pub decode_by_memory: Option<f64>,
    /// The larger of the two.
    pub decode_busy: f64,
    /// Replicas that only compute prompts; 0 where none is computed apart.
    pub prefill_replicas: u64,
    /// Replicas that answer.
    pub decode_replicas: u64,
    /// Replicas where each does both.
    pub together_replicas: u64,
    /// Prefill replicas for each decode replica, before rounding.
    pub ratio: f64,
    /// Gigabits of KV in a second between all of them; `None` where the model is not known.
    pub moved_gbps: Option<f64>,
    /// Of them, at the busier end: each prefill replica's or each decode replica's.
    pub replica_gbps: Option<f64>,
}

impl Traffic {
    /// Why no number of such replicas carries it: the weights, or one prompt with its whole answer, do not fit.
    pub fn refusal(&self, prompt: &Prompt, shape: &ModelShape, gpus: Gpus) -> Option<String> {
        let whole = prompt.tokens.saturating_add(self.output_tokens);
        match Capacity::of(shape, gpus, whole) {
            Capacity::TooSmall { weights_gb, allowed_gb } => Some(format!(
                "found {weights_gb:.2} GB of weights on each GPU, wanted less than {allowed_gb:.2} GB"
            )),
            Capacity::Tokens(tokens) if tokens < whole => Some(format!(
                "found room for {} tokens of KV, wanted {} for one prompt and its answer",
                grouped(tokens as f64),
                grouped(whole as f64)
            )),
            Capacity::Tokens(_) | Capacity::UnknownWeights => None,
        }
    }
}

impl Need {
    /// Of a traffic of such prompts; without a model, whatever needs none.
    pub fn of(traffic: &Traffic, prompt: &Prompt, model: Option<(&ModelShape, Gpus)>) -> Self {
        let remote = prompt.is_remote();
        let rate = traffic.requests_per_second;
        let prefill_busy = rate * prompt.prefill().0;
        let answers = rate * traffic.output_tokens as f64 / traffic.decode_tokens_per_second;
        let decode_by_answers = answers / traffic.answers_max as f64;
        let decode_by_memory =
            model.and_then(|(shape, gpus)| by_memory(traffic, prompt, answers, shape, gpus));
        let decode_busy = decode_by_memory.map_or(decode_by_answers, |memory| memory.max(decode_by_answers));
        // A rounding error is no replica.
        let planned = |busy: f64| (busy / traffic.planned_share - 1e-9).ceil().max(1.0) as u64;
        let together_replicas = planned(prefill_busy + decode_busy);
        let (prefill_replicas, decode_replicas) = match remote {
            true => (planned(prefill_busy), planned(decode_busy)),
            false => (0, together_replicas),
        };
        let moved = |(shape, gpus)| Moved::of(prompt, shape, gpus).moved_bytes * 8.0 / 1e9 * rate;
        let moved_gbps = model.map(|model| if remote { moved(model) } else { 0.0 });
        let fewer = prefill_replicas.min(decode_replicas).max(1) as f64;
        Self {
            hit_rate: prompt.cached_tokens as f64 / prompt.tokens.max(1) as f64,
            remote,
            prefill_busy,
            answers,
            decode_by_answers,
            decode_by_memory,
            decode_busy,
            prefill_replicas,
            decode_replicas,
            together_replicas,
            ratio: if decode_busy > 0.0 { prefill_busy / decode_busy } else { 0.0 },
            moved_gbps,
            replica_gbps: moved_gbps.map(|gbps| gbps / fewer),
        }
    }

    /// How its figures come about.
    pub fn figures(
        &self,
        traffic: &Traffic,
        prompt: &Prompt,
        model: Option<(&ModelShape, Gpus)>,
    ) -> Vec<Figure> {
        let Traffic {
            requests_per_second: rate,
            output_tokens,
            decode_tokens_per_second,
            answers_max,
            planned_share,
        } = *traffic;
        let (prefill, decode) = (short(self.prefill_busy), short(self.decode_busy));
        let mut figures = vec![
            Figure::new("prefill_busy", self.prefill_busy, "replicas")
                .of("rate x uncached_tokens / prefill_tps")
                .with(format!(
                    "{rate} x {} / {}",
                    prompt.uncached_tokens(),
                    prompt.prefill_tokens_per_second
                )),
            Figure::new("answers", self.answers, "in flight")
                .of("rate x output_tokens / decode_tps")
                .with(format!("{rate} x {output_tokens} / {decode_tokens_per_second}")),
            Figure::new("decode_by_answers", self.decode_by_answers, "replicas")
                .of("answers / decode_seqs")
                .with(format!("{} / {answers_max}", self.answers)),
        ];
        figures.extend(self.memory_figure(traffic, prompt, model));
        let by_memory = self.decode_by_memory.map_or("0".to_owned(), short);
        figures.push(
            Figure::new("decode_busy", self.decode_busy, "replicas")
                .of("max(decode_by_answers, decode_by_memory)")
                .with(format!("max({}, {by_memory})", short(self.decode_by_answers))),
        );
        let replicas = |name, value: u64, busy: &str, number: &str| {
            Figure::new(name, value as f64, "")
                .of(format!("max(1, ceil(({busy}) / utilization))"))
                .with(format!("max(1, ceil(({number}) / {planned_share}))"))
        };
        let both = format!("{prefill} + {decode}");
        figures.push(replicas(
            "together_replicas",
            self.together_replicas,
            "prefill_busy + decode_busy",
            &both,
        ));
        if !self.remote {
            let together = self.together_replicas.to_string();
            figures.push(
                Figure::new("prefill_replicas", self.prefill_replicas as f64, "")
                    .of("0, for no prompt is computed apart")
                    .with("0"),
            );
            figures.push(
                Figure::new("decode_replicas", self.decode_replicas as f64, "")
                    .of("together_replicas")
                    .with(together),
            );
            return figures;
        }
        figures.push(replicas("prefill_replicas", self.prefill_replicas, "prefill_busy", &prefill));
        figures.push(replicas("decode_replicas", self.decode_replicas, "decode_busy", &decode));
        figures.push(
            Figure::new("ratio", self.ratio, "prefill replicas to one that decodes")
                .of("prefill_busy / decode_busy")
                .with(format!("{} / {}", self.prefill_busy, self.decode_busy)),
        );
        figures.extend(self.moved_figures(traffic, prompt, model));
        figures
    }

    fn memory_figure(
        &self,
        traffic: &Traffic,
        prompt: &Prompt,
        model: Option<(&ModelShape, Gpus)>,
    ) -> Option<Figure> {
        let (value, (shape, gpus)) = (self.decode_by_memory?, model?);
        let mean = mean_tokens(traffic, prompt);
        let room = Capacity::of(shape, gpus, mean).tokens()?;
        Some(
            Figure::new("decode_by_memory", value, "replicas")
                .of("answers x floor(prompt_tokens + output_tokens / 2) / replica_kv_tokens")
                .with(format!(
                    "{} x floor({} + {} / 2) / {room}",
                    self.answers, prompt.tokens, traffic.output_tokens
                )),
        )
    }

    fn moved_figures(
        &self,
        traffic: &Traffic,
        prompt: &Prompt,
        model: Option<(&ModelShape, Gpus)>,
    ) -> Vec<Figure> {
        let (Some(moved_gbps), Some(replica_gbps), Some((shape, gpus))) =
            (self.moved_gbps, self.replica_gbps, model)
        else {
            return Vec::new();
        };
        let bytes = Moved::of(prompt, shape, gpus).moved_bytes;
        vec![
            Figure::new("moved_gbps", moved_gbps, "Gb/s")
                .of("rate x moved_bytes x 8 / 1e9")
                .with(format!("{} x {bytes} x 8 / 1e9", traffic.requests_per_second)),
            Figure::new("replica_gbps", replica_gbps, "Gb/s")
                .of("moved_gbps / min(prefill_replicas, decode_replicas)")
                .with(format!("{moved_gbps} / min({}, {})", self.prefill_replicas, self.decode_replicas)),
        ]
    }
}

/// What an answer holds in the middle of its life.
fn mean_tokens(traffic: &Traffic, prompt: &Prompt) -> u64 {
    prompt.tokens.saturating_add(traffic.output_tokens / 2).max(1)
}

fn by_memory(
    traffic: &Traffic,
    prompt: &Prompt,
    answers: f64,
    shape: &ModelShape,
    gpus: Gpus,
) -> Option<f64> {
    let mean = mean_tokens(traffic, prompt);
    let room = Capacity::of(shape, gpus, mean).tokens().filter(|&tokens| tokens > 0)?;
    Some(answers * mean as f64 / room as f64)
}

#[cfg(test)]
mod tests {
    use super::super::shape::Preset;
    use super::*;

    const ONE: Gpus = Gpus { count: 1, memory_gb: 80.0, memory_share: 0.9, nics: 1 };

    fn prompt(cached_tokens: u64) -> Prompt {
        Prompt {
            tokens: 4000,
            cached_tokens,
            prefill_tokens_per_second: 12_000.0,
            chunk_tokens: 0,
            threshold_tokens: 512,
        }
    }

    fn traffic() -> Traffic {
        Traffic {
            requests_per_second: 12.0,
            output_tokens: 500,
            decode_tokens_per_second: 50.0,
            answers_max: 256,
            planned_share: 0.8,
        }
    }

    /// 12 prompts of a third of a second; 120 answers of 4,250 tokens where 426,788 fit.
    #[test]
    fn a_traffic_keeps_so_many_busy() {
        let shape = Preset::Llama8b.shape(2.0);
        let need = Need::of(&traffic(), &prompt(0), Some((&shape, ONE)));
        assert_eq!((need.prefill_busy, need.answers), (4.0, 120.0));
        assert!((need.decode_by_answers - 0.469).abs() < 1e-3);
        assert!((need.decode_busy - 120.0 * 4250.0 / 426_788.0).abs() < 1e-9, "memory is what it lacks");
        assert_eq!((need.prefill_replicas, need.decode_replicas, need.together_replicas), (5, 2, 7));
        assert!((need.ratio - 3.347).abs() < 1e-3, "{need:?}");
        // 524.288 MB each; two decode replicas share it.
        assert!((need.moved_gbps.unwrap_or(0.0) - 50.331_648).abs() < 1e-9);
        assert!((need.replica_gbps.unwrap_or(0.0) - 25.165_824).abs() < 1e-9);
    }

    #[test]
    fn hits_shift_the_ratio_until_nothing_is_apart() {
        let shape = Preset::Llama8b.shape(2.0);
        let need = |cached| Need::of(&traffic(), &prompt(cached), Some((&shape, ONE)));
        let (half, most) = (need(2000), need(3600));
        assert_eq!((half.hit_rate, half.prefill_busy, half.prefill_replicas), (0.5, 2.0, 3));
        assert!((half.ratio * 2.0 - need(0).ratio).abs() < 1e-9);
        assert_eq!((most.remote, most.prefill_replicas, most.decode_replicas), (false, 0, 2));
        assert_eq!(most.moved_gbps, Some(0.0), "400 tokens are below the threshold");
    }

    #[test]
    fn without_a_model_the_rest_is_told() {
        let need = Need::of(&traffic(), &prompt(0), None);
        assert_eq!((need.prefill_replicas, need.decode_replicas, need.moved_gbps), (5, 1, None));
        assert_eq!((need.decode_by_memory, need.decode_busy), (None, need.decode_by_answers));
    }
}
