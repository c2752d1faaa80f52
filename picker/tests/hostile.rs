//! Bodies that are broken, empty, huge or meant to hurt: the router reads what it can and never falls over.
//!
//! Field bugs D04 and D05. Where work could grow faster than the body, the deadline is seconds for what takes
//! milliseconds: only a blow-up misses it.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::time::{Duration, Instant};

use picker::belief::{EndpointId, Index};
use picker::chance::Draw;
use picker::decide::{Ask, Decision, Reading, Rules, decide};
use picker::load::Load;
use picker::policy::Policy;
use picker::read::{Api, Unreadable};
use picker::score::Candidate;
use picker::tokens::Kind;
use proptest::collection::vec;
use proptest::prelude::*;
use support::{credited, prose, quoted, read};

const APIS: [Api; 7] =
    [Api::Chat, Api::Completions, Api::Responses, Api::Messages, Api::Embeddings, Api::Tokenize, Api::Other];

const MIB: usize = 1 << 20;

/// What takes milliseconds, with room for the slowest machine.
const DEADLINE: Duration = Duration::from_secs(20);

/// Decides among three idle endpoints, by every policy; all totals have to be numbers.
fn decisions(api: Api, body: &[u8]) -> Vec<Decision> {
    let index = support::index(&[100; 3]);
    let load = Load { waiting: Some(0.0), running: Some(0.0), kv_usage: Some(0.05), ..Load::default() };
    let candidates = [0, 1, 2].map(|id| Candidate::new(EndpointId(id), load));
    let ask = Ask { api, body, tenant: b"", session: b"" };
    let decide = |policy| {
        decide(&ask, &candidates, &index, &Rules { policy, ..Rules::default() }, Draw { seed: 1, turn: 0 })
    };
    let decisions: Vec<_> = Policy::ALL.into_iter().map(|policy| decide(policy).unwrap()).collect();
    for decision in &decisions {
        assert!(decision.choices.iter().all(|choice| choice.total.is_finite()));
        for choice in &decision.choices {
            assert!(decision.figures(choice).flatten().all(f64::is_finite));
        }
    }
    decisions
}

fn quickly<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = work();
    assert!(start.elapsed() < DEADLINE, "{what} took {:?}", start.elapsed());
    done
}

/// Field bug D04: nothing to share is nothing matched of nothing, and every decision still has three endpoints.
#[test]
fn empty_prompts_have_no_blocks() {
    for (api, key) in [(Api::Completions, "prompt"), (Api::Embeddings, "input"), (Api::Tokenize, "prompt")] {
        for prompt in [
            r#""""#,
            "[]",
            r#"[""]"#,
            "[[]]",
            r#"["",""]"#,
            "[[],[ ]]",
            "null",
            "123",
            "{}",
            "true",
            "[null]",
            "[-1]",
            "[{}]",
        ] {
            assert_no_blocks(api, &format!(r#"{{"{key}":{prompt}}}"#));
        }
    }
    for messages in ["[]", "null", "7", "{}", r#""""#, "true"] {
        let body = format!(r#"{{"messages":{messages}}}"#);
        let blocks = decisions(Api::Chat, body.as_bytes())[0].blocks.total();
        // A message that is one empty string is still a message.
        assert_eq!(blocks, usize::from(messages == r#""""#), "{body}");
    }
    for body in ["{}", "[]", "null", "", " ", "7", "\"x\"", "\u{feff}", r#"{"stream":true}"#] {
        APIS.into_iter().for_each(|api| assert_no_blocks(api, body));
    }
}

fn assert_no_blocks(api: Api, body: &str) {
    for mut decision in decisions(api, body.as_bytes()) {
        assert_eq!((decision.blocks.total(), decision.cold), (0, false), "{api:?} {body}");
        assert!(decision.choices.iter().all(|choice| choice.matched == 0));
        assert_eq!(std::iter::from_fn(|| decision.take_best()).take(9).count(), 3);
    }
}

/// Field bug D04: messages without content are structure only; reading them is no trouble.
#[test]
fn messages_without_content_are_read() {
    for messages in [
        "[{}]",
        r#"[{"role":"user"}]"#,
        r#"[{"role":"user","content":""}]"#,
        r#"[{"role":"user","content":[]}]"#,
        "[null]",
        "[[]]",
        "[7]",
    ] {
        let body = format!(r#"{{"messages":{messages}}}"#);
        for decision in decisions(Api::Chat, body.as_bytes()) {
            assert_eq!((decision.reading.clone(), decision.blocks.total()), (Reading::Prompt, 1), "{body}");
        }
    }
}

/// Field bug D04: empties spread.
#[test]
fn empty_prompts_spread() {
    let index = support::index(&[100; 3]);
    let candidates = [0, 1, 2].map(|id| Candidate::new(EndpointId(id), Load::default()));
    let mut taken = [0; 3];
    for turn in 0..40 {
        let ask = Ask { api: Api::Completions, body: br#"{"prompt":""}"#, tenant: b"", session: b"" };
        let mut decision =
            decide(&ask, &candidates, &index, &Rules::default(), Draw { seed: 0, turn }).unwrap();
        let winner = decision.take_best().unwrap();
        decision.commit(&index, winner.id);
        taken[winner.candidate] += 1;
    }
    assert!(taken.iter().all(|&count| count <= 24), "{taken:?}");
}

/// What is no JSON is routed by load, and counted; the engine says what is wrong with it.
#[test]
fn broken_bodies_are_unreadable() {
    for body in [
        "{",
        "}",
        r#"{"prompt"}"#,
        r#"{"prompt":}"#,
        r#"{"prompt":"x"#,
        r#"{"prompt":"x"}}"#,
        r#"{"prompt":"x"} x"#,
        "[1]",
        r#"{"prompt":"x",}"#,
        r#"{,}"#,
        r#"{'prompt':'x'}"#,
        r#"{"prompt":[1,}"#,
        r#"{"prompt":["x",7]}"#,
        r#"{"prompt":"\x"}"#,
        r#"{"prompt":[99999999999]}"#,
        r#"{"prompt":[1,"x"]}"#,
        r#"{"prompt":[1.5]}"#,
        r#"{"model":"\u12","prompt":"x"}"#,
        "\0",
        "nul",
    ] {
        let decision = read(Api::Completions, body.as_bytes());
        assert!(
            matches!(decision.reading, Reading::Unreadable(Unreadable::Syntax(_))),
            "{body}: {:?}",
            decision.reading
        );
        assert_eq!(decision.blocks.total(), 0, "{body}");
    }
    for body in
        [&b"{\"prompt\":\"\xff\"}"[..], b"\xfe\xff", b"{\"prompt\":\"\xed\xa0\xbd\"}", b"{\"\xc0\x80\":1}"]
    {
        let decision = read(Api::Completions, body);
        assert_eq!(decision.reading, Reading::Unreadable(Unreadable::Encoding));
    }
}

/// Field bug D05: a byte order mark is looked through, and a raw NUL is a byte of the text.
#[test]
fn odd_bytes_are_looked_through() {
    let body = format!(r#"{{"model":"m","prompt":{}}}"#, quoted(&prose(1000)));
    let plain = support::blocks(Api::Completions, &body);
    assert_eq!(plain, support::blocks(Api::Completions, &format!("\u{feff}{body}")));
    assert_eq!(plain, support::blocks(Api::Completions, &format!("\u{feff}\r\n {body} \n")));
    let nul = support::completion(&format!("\"{}\0\"", prose(1000)));
    assert_eq!(credited(&plain, &nul), 3);
}

/// Errors never quote the prompt.
#[test]
fn messages_about_a_body_hold_none_of_it() {
    let Reading::Unreadable(unreadable) = read(Api::Completions, br#"{"prompt":"SECRET"#).reading else {
        panic!()
    };
    assert!(!format!("{unreadable} {unreadable:?}").contains("SECRET"));
}

/// Nesting costs a counter, wherever it stands, opened only or closed too.
#[test]
fn nesting_never_recurses() {
    let levels = 10_000;
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}"), (r#"[{"a":"#, "}]")] {
        let open_only = open.repeat(levels);
        let closed = format!("{open_only}1{}", close.repeat(levels));
        for deep in [&closed, &open_only] {
            for place in places(deep) {
                for api in APIS {
                    quickly("nesting", || read(api, place.as_bytes()));
                }
            }
            read(Api::Chat, deep.as_bytes());
        }
    }
    let deep = format!(r#"{{"messages":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
    assert_eq!(read(Api::Chat, deep.as_bytes()).reading, Reading::Prompt, "10,000 levels are readable");
}

/// A body for each place where a value can stand.
fn places(value: &str) -> Vec<String> {
    let members = [
        "messages",
        "prompt",
        "input",
        "tools",
        "system",
        "instructions",
        "model",
        "cache_salt",
        "chat_template_kwargs",
        "documents",
        "stream",
        "x_unknown",
    ];
    let top = members.iter().map(|member| format!(r#"{{"{member}":{value},"messages":[],"prompt":"x"}}"#));
    let inside = [
        r#"{"messages":[VALUE]}"#,
        r#"{"messages":[{"role":VALUE}]}"#,
        r#"{"messages":[{"content":VALUE}]}"#,
        r#"{"messages":[{"content":[VALUE]}]}"#,
        r#"{"messages":[{"content":[{"type":VALUE,"text":VALUE}]}]}"#,
        r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url":VALUE}}]}]}"#,
        r#"{"messages":[{"role":"assistant","tool_calls":VALUE}]}"#,
        r#"{"prompt":[VALUE],"input":[VALUE]}"#,
        r#"{"prompt":[[VALUE]],"input":[[VALUE]]}"#,
    ];
    top.chain(inside.iter().map(|body| body.replace("VALUE", value))).collect()
}

/// Work grows with the body, not with its square.
#[test]
fn big_bodies_take_time_in_proportion() {
    for (what, body) in [
        ("8 MiB of ones", format!(r#"{{"prompt":[1{}]}}"#, ",1".repeat(4 * MIB))),
        ("lists of one", format!(r#"{{"prompt":[[1]{}]}}"#, ",[1]".repeat(2 * MIB))),
        ("objects in objects", format!(r#"{{"prompt":{}1{}}}"#, r#"{"a":"#.repeat(MIB), "}".repeat(MIB))),
        ("a million messages", format!(r#"{{"messages":[{{}}{}]}}"#, r#",{"content":"a"}"#.repeat(MIB))),
        (
            "a million parts",
            format!(r#"{{"messages":[{{"content":[1{}]}}]}}"#, r#",{"text":"a"}"#.repeat(MIB)),
        ),
        ("a million members", format!(r#"{{"messages":[{{"a":1{}}}]}}"#, r#","b":2"#.repeat(MIB))),
        ("a million unknown members", format!(r#"{{"messages":[]{}}}"#, r#","b":2"#.repeat(MIB))),
        ("a million prompts", format!(r#"{{"messages":[]{}}}"#, r#","prompt":"x""#.repeat(MIB))),
        ("escapes", format!(r#"{{"prompt":"{}"}}"#, r"\n".repeat(4 * MIB))),
        ("escaped keys", format!(r#"{{"prompt":"x"{}}}"#, r#","\u0070":1"#.repeat(MIB))),
        ("one long escaped key", format!(r#"{{"prompt":"x","{}":1}}"#, r"\u0070".repeat(MIB))),
        ("white space", format!(r#"{{"messages":[[1{}]]}}"#, " ,  1".repeat(MIB))),
        ("an 8 MiB string", format!(r#"{{"prompt":"{}"}}"#, "x".repeat(8 * MIB))),
        ("an open string", format!(r#"{{"prompt":"{}"#, r"\\".repeat(4 * MIB))),
        ("open strings", format!(r#"{{"prompt":[{}"#, r#""a","#.repeat(2 * MIB))),
        (
            "pictures",
            format!(r#"{{"messages":[{{"content":[1{}]}}]}}"#, r#",{"type":"video"}"#.repeat(MIB / 2)),
        ),
        ("big pictures", format!(r#"{{"messages":[{{"content":[1{}]}}]}}"#, big_picture().repeat(MIB / 8))),
    ] {
        for kind in [Kind::Bytes, Kind::Words] {
            let rules = Rules { tokenizer: kind, ..Rules::default() };
            let api = if body.starts_with(r#"{"messages"#) { Api::Chat } else { Api::Completions };
            let decision = quickly(what, || support::read_with(api, body.as_bytes(), &rules));
            assert!(decision.blocks.total() < body.len() / 8, "{what}: {} blocks", decision.blocks.total());
        }
    }
}

/// Says of itself that it has 4,294,967,295 pixels a side.
fn big_picture() -> &'static str {
    r#",{"type":"image","data":"iVBORw0KGgoAAAANSUhEUv//////////"}"#
}

#[test]
fn long_keys_are_keys() {
    let key = "k".repeat(MIB);
    let body = format!(r#"{{"{key}":"{key}","messages":[{{"role":"user","content":"hi","{key}":1}}]}}"#);
    let decision = read(Api::Chat, body.as_bytes());
    assert_eq!(decision.reading, Reading::Prompt);
    assert_eq!(decision.blocks.total(), MIB / 256 + 1);
}

/// Pieces that bodies are made of, to be put together any way.
fn scrap() -> impl Strategy<Value = String> {
    let scraps = vec![
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\",
        "\\u",
        "\\ud83d",
        "d83d",
        "0",
        "-1",
        "1e9",
        "null",
        "true",
        " ",
        "\u{feff}",
        "\u{0}",
        "\u{1F600}",
        "\"messages\":",
        "\"prompt\":",
        "\"input\":",
        "\"content\":",
        "\"role\":",
        "\"type\":",
        "\"text\"",
        "\"image_url\"",
        "\"tools\":",
        "\"model\":\"m\"",
        "\"cache_salt\":",
        "\"x\"",
        "[{",
        "}]",
        "\"iVBORw0KGgo",
        "\"data\":",
    ];
    vec(prop::sample::select(scraps), 0..40).prop_map(|scraps| scraps.concat())
}

fn survives(body: &[u8]) {
    for api in APIS {
        for kind in [Kind::Bytes, Kind::Words] {
            let ask = Ask { api, body, tenant: b"", session: b"" };
            let rules = Rules { tokenizer: kind, ..Rules::default() };
            if let Ok(decision) = decide(&ask, &[], &Index::default(), &rules, support::DRAW) {
                let read = decision.reading == Reading::Prompt;
                assert!(read || decision.blocks.total() == 0);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_bytes_panic(body in vec(any::<u8>(), 0..200)) {
        survives(&body);
    }

    #[test]
    fn no_scraps_of_json_panic(body in scrap()) {
        survives(body.as_bytes());
        survives(format!("{{{body}}}").as_bytes());
        survives(format!(r#"{{"messages":[{body}]}}"#).as_bytes());
        survives(format!(r#"{{"messages":[{{"content":[{{{body}}}]}}]}}"#).as_bytes());
    }

    /// A body that was cut off, or that lost a byte, is read or it is not; it never panics.
    #[test]
    fn no_cut_panics(cut: prop::sample::Index, lost: prop::sample::Index) {
        let body = concat!(
            r#"{"model":"m","tools":[{"a":1}],"messages":[{"role":"user","content":[{"type":"text","text":"\u00e9"},"#,
            r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAABGAAAAIwCAIA"}}]}]}"#,
        );
        let body = body.as_bytes();
        survives(&body[..cut.index(body.len())]);
        let mut body = body.to_vec();
        body.remove(lost.index(body.len()));
        survives(&body);
    }
}
