//! Bodies whose beginning is known: the memo changes how long a decision takes, never what it is.
//!
//! The first byte chooses among the known beginnings, `1` to `4`; the rest is what follows it, or what takes its place.

use std::sync::LazyLock;

use picker::belief::Index;
use picker::chance::Draw;
use picker::decide::{Ask, Decision, Refusal, Rules, decide_recalling};
use picker::memo::{BEGINNING_BYTES_MIN, BYTES_MAX, Memo};
use picker::read::Api;

static NOBODY: LazyLock<Index> = LazyLock::new(Index::default);
static KNOWN: LazyLock<Known> = LazyLock::new(Known::new);

/// A memo, and the beginnings that it knows.
struct Known {
    memo: Memo,
    beginnings: [(Api, String); 4],
}

impl Known {
    fn new() -> Self {
        let text = |word: &str| word.repeat(BEGINNING_BYTES_MIN / word.len() + 1);
        let message = format!(r#"{{"role":"user","content":"{}"}}"#, text("known and "));
        let escaped = format!(r#"{{"role":"user","content":"{}"}}"#, text(r"\n\u00e9 "));
        let video = r#"{"role":"user","content":[{"type":"video","video":"v"}]}"#;
        let tools = format!(r#"[{{"name":"f","description":"{}"}}]"#, text("what it does "));
        let beginnings = [
            (Api::Chat, format!(r#"{{"model":"m","messages":[{message},{{"role":"user"}}"#)),
            (Api::Responses, format!(r#"{{"instructions":"be brief","input":[{escaped}"#)),
            (Api::Messages, format!(r#"{{"system":"s","tools":{tools},"messages":[{video},{message}"#)),
            (Api::Chat, format!(r#"{{"messages":[7],"tools":{tools}"#)),
        ];
        let memo = Memo::default();
        for (api, beginning) in &beginnings {
            let end = if beginning.ends_with("}]") { "}" } else { r#",{"role":"user","content":"?"}]}"# };
            for _ in 0..3 {
                let body = format!("{beginning}{end}");
                let ask = Ask { api: *api, body: body.as_bytes(), tenant: b"", session: b"" };
                let recall = decision(Some(&memo), &ask).expect("no salt").recall;
                memo.learn(&ask, &Rules::default(), &recall);
            }
        }
        assert!(memo.hits() >= 4, "each beginning is known");
        Self { memo, beginnings }
    }
}

fn decision(memo: Option<&Memo>, ask: &Ask<'_>) -> Result<Decision, Refusal> {
    decide_recalling(ask, memo, &[], &NOBODY, &Rules::default(), Draw { seed: 0, turn: 0 })
}

/// Runs the oracle. Panics where it does not hold.
pub(crate) fn run(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    let Known { memo, beginnings } = &*KNOWN;
    let (api, beginning) = &beginnings[usize::from((first & 0x7f).wrapping_sub(b'1')) % beginnings.len()];
    // With the highest bit the beginning itself is cut, at a place that the second byte names.
    let (beginning, rest) = match rest.split_first() {
        Some((&cut, rest)) if first & 0x80 != 0 => {
            (&beginning.as_bytes()[..beginning.len() - usize::from(cut)], rest)
        }
        _ => (beginning.as_bytes(), rest),
    };
    let body = [beginning, rest].concat();
    let ask = Ask { api: *api, body: &body, tenant: b"", session: b"" };
    let [with, without] = [Some(memo), None].map(|memo| decision(memo, &ask));
    if let Ok(with) = &with {
        assert!(with.recall.known_bytes() <= body.len());
    }
    let said = |decision: Result<Decision, Refusal>| {
        decision.map(|decision| (decision.blocks, decision.reading, decision.model, decision.stream))
    };
    assert_eq!(said(with), said(without));
    assert!(memo.bytes() <= BYTES_MAX);
}
