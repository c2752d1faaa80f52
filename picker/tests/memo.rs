//! A memo changes when a decision is ready, never what it is.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use picker::belief::Index;
use picker::decide::{Ask, Decision, Reading, Refusal, Rules, decide_recalling};
use picker::hash::{BlockSize, Blocks};
use picker::memo::{BEGINNING_BYTES_MIN, BYTES_MAX, ENTRY_BYTES_MAX, Memo};
use picker::read::{Api, Unreadable};
use picker::tokens::Kind;
use picker::tokens::bytes::MEDIA_TOKENS_MAX;
use proptest::collection::vec;
use proptest::prelude::*;
use support::{DRAW, prose, quoted};

/// All that a body decides.
type Outcome = Result<(Blocks, Reading, Option<String>, bool), Refusal>;

fn decision(memo: Option<&Memo>, ask: &Ask<'_>, rules: &Rules) -> Result<Decision, Refusal> {
    decide_recalling(ask, memo, &[], &Index::default(), rules, DRAW)
}

fn outcome(decision: Result<Decision, Refusal>) -> Outcome {
    decision.map(|decision| (decision.blocks, decision.reading, decision.model, decision.stream))
}

/// Asks with the memo and without; gives how many bytes were known. The memo then learns.
fn known(memo: &Memo, ask: &Ask<'_>, rules: &Rules) -> usize {
    let with = decision(Some(memo), ask, rules);
    let recall = with.as_ref().map(|decision| decision.recall).unwrap_or_default();
    assert_eq!(outcome(with), outcome(decision(None, ask, rules)), "{}", String::from_utf8_lossy(ask.body));
    memo.learn(ask, rules, &recall);
    assert!(memo.bytes() <= BYTES_MAX);
    recall.known_bytes()
}

/// Until it is known, if it can be.
fn repeat(memo: &Memo, ask: &Ask<'_>) {
    for _ in 0..3 {
        known(memo, ask, &Rules::default());
    }
}

fn chat(body: &str) -> Ask<'_> {
    Ask { api: Api::Chat, body: body.as_bytes(), tenant: b"", session: b"" }
}

fn message(text: &str) -> String {
    format!(r#"{{"role":"user","content":{}}}"#, quoted(text))
}

fn body(members: &str, messages: &[String]) -> String {
    format!(r#"{{"messages":[{}]{members}}}"#, messages.join(","))
}

#[test]
fn a_beginning_that_came_twice_is_known() {
    let memo = Memo::default();
    let system = message(&prose(20_000));
    let known = ["one", "two", "three", "four"].map(|question| {
        known(&memo, &chat(&body("", &[system.clone(), message(question)])), &Rules::default())
    });
    assert_eq!(known, [0, 0, system.len() + 1, system.len() + 1]);
    assert_eq!((memo.hits(), memo.misses()), (2, 2));
}

/// Each turn is longer than the last; three quarters of it at least are known.
#[test]
fn a_growing_conversation_stays_known() {
    let memo = Memo::default();
    let mut messages = Vec::new();
    for turn in 0..100 {
        messages.extend((0..2).map(|side| message(&format!("{turn} {side} {}", prose(1_500)))));
        let body = body(r#","model":"m""#, &messages);
        let known = known(&memo, &chat(&body), &Rules::default());
        assert!(turn < 8 || known > body.len() * 6 / 10, "turn {turn}: {known} of {}", body.len());
    }
}

/// Tools behind the messages shift every block; both are known all the same.
#[test]
fn tools_are_known_whole() {
    let memo = Memo::default();
    let tools = format!(r#"[{{"name":"f","description":{}}}]"#, quoted(&prose(9_000)));
    let messages = [message(&prose(9_000)), message("x")];
    let with = |tools: &str| body(&format!(r#","tools":{tools}"#), &messages);
    let known = |body: &str| known(&memo, &chat(body), &Rules::default());
    let all = [with(&tools), with(&tools), with(&tools)].map(|body| known(&body));
    assert_eq!(all, [0, 0, messages[0].len() + 1 + tools.len()]);
    let other = tools.replace("}]", r#","x":1}]"#);
    assert_eq!(known(&with(&other)), messages[0].len() + 1, "tools that begin alike are not the same tools");
}

#[test]
fn what_comes_once_is_not_kept() {
    let memo = Memo::default();
    for place in 0..200 {
        let text = message(&format!("{place} {}", prose(8_000)));
        known(&memo, &chat(&body("", &[text, message("x")])), &Rules::default());
    }
    assert_eq!((memo.bytes(), memo.hits()), (0, 0));
}

#[test]
fn memory_is_bounded() {
    let memo = Memo::default();
    for place in 0..120 {
        let text = prose(300_000).replace('w', &format!("{place} "));
        let body = body("", &[message(&text), message("x")]);
        repeat(&memo, &chat(&body));
    }
    assert!(memo.bytes() > BYTES_MAX / 2, "{} bytes", memo.bytes());
    let long = body("", &[message(&prose(2 * ENTRY_BYTES_MAX)), message("x")]);
    let known = [(); 3].map(|()| known(&memo, &chat(&long), &Rules::default()));
    assert_eq!(known, [0; 3], "no entry is larger than its bound");
}

/// The bounds hold for tools as for messages, be they larger than all entries may be together.
#[test]
fn tools_are_bounded() {
    let memo = Memo::default();
    for bytes in [ENTRY_BYTES_MAX + 1, BYTES_MAX + (1 << 20)] {
        let tools = format!(r#"[{{"name":"f","description":{}}}]"#, quoted(&"w".repeat(bytes)));
        let body = body(&format!(r#","tools":{tools}"#), &[message("x")]);
        let known = [(); 4].map(|()| known(&memo, &chat(&body), &Rules::default()));
        assert_eq!(known, [0; 4], "no entry is larger than its bound");
    }
}

/// What a mark keeps of a block that is not full is part of the bound, however large a block is.
#[test]
fn large_blocks_are_bounded() {
    let memo = Memo::default();
    let messages: Vec<_> = (0..500).map(|place| message(&format!("{place} {}", prose(1_000)))).collect();
    let rules = Rules { block: BlockSize::new(65_536).unwrap(), ..Rules::default() };
    let body = body("", &messages);
    (0..4).for_each(|_| assert!(known(&memo, &chat(&body), &rules) <= body.len()));
}

#[test]
fn tenants_share_nothing_and_salted_bodies_are_not_kept() {
    let memo = Memo::default();
    let text = body("", &[message(&prose(9_000)), message("x")]);
    let salted = body(r#","cache_salt":"s""#, &[message(&prose(7_000)), message("x")]);
    let of = |tenant: &'static [u8]| Ask { api: Api::Chat, body: text.as_bytes(), tenant, session: b"" };
    let known = |ask: &Ask<'_>| known(&memo, ask, &Rules::default());
    assert!([of(b"a"), of(b"a"), of(b"a")].iter().map(known).sum::<usize>() > 0);
    assert_eq!(known(&of(b"b")), 0);
    assert_eq!([(); 4].map(|()| known(&chat(&salted))), [0; 4]);
}

/// What a broken body begins with may be known; it is broken all the same.
#[test]
fn what_follows_is_still_checked() {
    let memo = Memo::default();
    let long = message(&prose(9_000));
    let text = body("", &[long.clone(), message("x")]);
    repeat(&memo, &chat(&text));
    let head = &text.as_bytes()[..text.find(&long).unwrap() + long.len()];
    for (tail, wanted) in [
        (&b"]}"[..], None),
        (b",7]}", None),
        (b" \n , {}]}", None),
        (b"]],\"x\":[]}", Some(false)),
        (b"", Some(false)),
        (b"{}]}", Some(false)),
        (b",]}", Some(false)),
        (b"]} x", Some(false)),
        (b",{\"content\":\"\\x\"}]}", Some(false)),
        (b",\"\xff\"]}", Some(true)),
        (b"]\xff", Some(true)),
    ] {
        let body = [head, tail].concat();
        let ask = Ask { api: Api::Chat, body: &body, tenant: b"", session: b"" };
        known(&memo, &ask, &Rules::default());
        let reading = decision(Some(&memo), &ask, &Rules::default()).unwrap().reading;
        let broken = match reading {
            Reading::Unreadable(Unreadable::Encoding) => Some(true),
            Reading::Unreadable(Unreadable::Syntax(_)) => Some(false),
            Reading::Prompt | Reading::NoPrompt => None,
        };
        assert_eq!(broken, wanted, "{}", String::from_utf8_lossy(tail));
    }
}

/// Of the last message that is known all but its last byte came again, and more members after it.
#[test]
fn a_message_is_known_to_its_end_or_not_at_all() {
    let memo = Memo::default();
    let long = message(&prose(9_000));
    repeat(&memo, &chat(&body("", &[long.clone(), message("x")])));
    let longer = long.replace(r#""}"#, r#"","x":1}"#);
    assert_eq!(known(&memo, &chat(&body("", &[longer, message("x")])), &Rules::default()), 0);
}

/// What media may weigh is a request's, so it is part of where a beginning begins and of where it ends.
#[test]
fn media_weigh_the_same() {
    let memo = Memo::default();
    let video = r#"{"type":"video","video":"https://x.test/v"}"#;
    let text = |text: &str| format!(r#"{{"type":"text","text":{}}}"#, quoted(text));
    let videos = vec![video; MEDIA_TOKENS_MAX as usize / 2_250].join(",");
    let message = |content: &str| format!(r#"{{"role":"user","content":[{content}]}}"#);
    let messages = [message(&videos), message(&text(&prose(9_000))), message(video), message(video)];
    // Both end alike and leave a block filled alike: a video weighs 9,002 bytes, 42 more than whole blocks.
    let with = format!(r#","system":[{video},{}]"#, text(&prose(600)));
    let without = format!(r#","system":[{}]"#, text(&("p".repeat(42) + &prose(600))));
    let known = |system: &str| known(&memo, &chat(&body(system, &messages)), &Rules::default());
    assert!([&with, &with, &with].map(|system| known(system))[2] > 9_000);
    assert!(known(&without) > 9_000, "known, but not from there on");
}

/// A number may go on where the known bytes end; an object cannot.
#[test]
fn marks_stand_behind_objects_only() {
    let memo = Memo::default();
    let numbers = |last: &str| format!(r#"{{"messages":[{}{last}]}}"#, "1234567,".repeat(2_000));
    for last in ["1", "1", "1", "12", "1.5", "1,2"] {
        assert_eq!(known(&memo, &chat(&numbers(last)), &Rules::default()), 0);
    }
}

#[test]
fn other_tokenizers_and_block_sizes_are_kept_apart() {
    let memo = Memo::default();
    let text = body("", &[message(&prose(9_000)), message("x")]);
    repeat(&memo, &chat(&text));
    let small = Rules { block: BlockSize::ENGINE, ..Rules::default() };
    known(&memo, &chat(&text), &small);
    assert_eq!(known(&memo, &chat(&text), &Rules { tokenizer: Kind::Words, ..small }), 0);
}

#[test]
fn debug_shows_counts_only() {
    let memo = Memo::default();
    let text = body("", &[message(&"SECRET".repeat(2_000)), message("x")]);
    repeat(&memo, &chat(&text));
    assert!(memo.bytes() > 0 && !format!("{memo:?}").contains("SECRET"));
}

/// While some store and drop, others read.
#[test]
fn threads_share_a_memo() {
    let memo = Memo::default();
    let bodies: Vec<String> = (0..12)
        .map(|place| body("", &[message(&format!("{place} {}", prose(400_000))), message("x")]))
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (memo, bodies) = (&memo, &bodies);
            scope.spawn(move || {
                for round in 0..60 {
                    known(memo, &chat(&bodies[(round * (thread + 1)) % bodies.len()]), &Rules::default());
                }
            });
        }
    });
    assert!(memo.hits() > 0);
}

/// One request of a flow: which of the conversations, how many of its messages, what is done to it.
#[derive(Clone, Debug)]
struct Turn {
    conversation: bool,
    messages: prop::sample::Index,
    change: Change,
    api: Api,
}

#[derive(Clone, Debug)]
enum Change {
    None,
    Byte(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Members(&'static str),
    Again,
}

fn change() -> impl Strategy<Value = Change> {
    let members = vec![
        r#","model":"m""#,
        r#","model":"other","stream":true"#,
        r#","tools":[{"name":"f"}]"#,
        r#","system":"be brief""#,
        r#","instructions":[{"type":"text","text":"be brief"}]"#,
        r#","messages":[]"#,
        r#","messages":null"#,
        r#","input":[{"role":"user","content":"x"}]"#,
        r#","cache_salt":"a""#,
        r#","cache_salt":"a","cache_salt":"b""#,
    ];
    prop_oneof![
        3 => Just(Change::None),
        2 => (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        1 => any::<prop::sample::Index>().prop_map(Change::Cut),
        3 => prop::sample::select(members).prop_map(Change::Members),
        1 => Just(Change::Again),
    ]
}

fn turn() -> impl Strategy<Value = Turn> {
    let api = prop::sample::select(vec![Api::Chat, Api::Chat, Api::Messages, Api::Responses, Api::Tokenize]);
    (any::<bool>(), any::<prop::sample::Index>(), change(), api)
        .prop_map(|(conversation, messages, change, api)| Turn { conversation, messages, change, api })
}

/// Text with escapes, of other scripts, structured, with pictures, with members besides.
fn any_message() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[a-z\"\\\\\n é]{100,900}".prop_map(|text| message(&text)),
        1 => "[a-z ]{2000,6000}".prop_map(|text| message(&text)),
        1 => "[a-z]{1,30}".prop_map(|text| format!(r#"{{"content":[{{"type":"text","text":"{text}"}},7],"role":"user", "x":[1, 2]}}"#)),
        1 => "[a-z]{1,30}".prop_map(|url| {
            format!(r#"{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{url}"}}}}]}}"#)
        }),
        1 => Just("12".to_owned()),
    ]
}

fn written(turn: &Turn, conversation: &[String]) -> Vec<u8> {
    let messages = &conversation[..=turn.messages.index(conversation.len())];
    let list = format!("[{}]", messages.join(","));
    let name = if turn.api == Api::Responses { "input" } else { "messages" };
    let body = format!(r#"{{"{name}":{list}}}"#);
    let mut bytes = body.clone().into_bytes();
    match &turn.change {
        Change::None => {}
        Change::Byte(at, byte) => {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        Change::Cut(at) => bytes.truncate(at.index(bytes.len())),
        Change::Members(members) => bytes = format!("{}{members}}}", &body[..body.len() - 1]).into_bytes(),
        Change::Again => bytes = format!(r#"{{"{name}":[{{}}],"{name}":{list}}}"#).into_bytes(),
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever came before, and whatever is done to it: with the memo and without it is the same.
    #[test]
    fn a_memo_changes_nothing(
        conversations in [vec(any_message(), 1..30), vec(any_message(), 1..30)],
        shared in 0usize..20, turns in vec(turn(), 1..40), small: bool,
    ) {
        let memo = Memo::default();
        let rules = Rules { block: if small { BlockSize::ENGINE } else { BlockSize::ROUTER }, ..Rules::default() };
        let [one, mut other] = conversations;
        let shared = shared.min(one.len());
        other.splice(..shared.min(other.len()), one[..shared].to_vec());
        for turn in &turns {
            let body = written(turn, if turn.conversation { &one } else { &other });
            known(&memo, &Ask { api: turn.api, body: &body, tenant: b"", session: b"" }, &rules);
        }
    }
}

/// The property above means nothing if nothing is ever known: most of such a flow is.
#[test]
fn the_property_is_not_empty() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut hits, mut misses) = (0, 0);
    for _ in 0..20 {
        let tree = (vec(any_message(), 10..30), vec(turn(), 40)).new_tree(&mut runner).unwrap();
        let (conversation, turns) = proptest::strategy::ValueTree::current(&tree);
        let memo = Memo::default();
        for turn in &turns {
            let body = written(turn, &conversation);
            known(&memo, &Ask { api: turn.api, body: &body, tenant: b"", session: b"" }, &Rules::default());
        }
        (hits, misses) = (hits + memo.hits(), misses + memo.misses());
    }
    assert!(hits > misses && BEGINNING_BYTES_MIN < 5_000, "{hits} hits, {misses} misses");
}
