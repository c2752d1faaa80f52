//! Under what a prefix is shared: field bug D07, and who refuses what.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::collections::HashSet;

use picker::belief::Index;
use picker::decide::{Ask, MODEL_BYTES_MAX, Reading, Refusal, Rules, decide};
use picker::hash::{BlockHash, Blocks};
use picker::read::Api;
use proptest::prelude::*;
use support::{DRAW, credited, only, prose, quoted, read};

/// The blocks of an 8 KB prompt under these members.
fn under(members: &str) -> Blocks {
    let comma = if members.is_empty() { "" } else { "," };
    support::blocks(Api::Completions, &format!(r#"{{{members}{comma}"prompt":{}}}"#, quoted(&prose(8192))))
}

/// Field bug D07: only the exact pair of model and salt is credited.
#[test]
fn model_adapter_and_salt_do_not_run_into_each_other() {
    let warm = under(r#""model":"base","cache_salt":"ten-1""#);
    assert_eq!(credited(&warm, &under(r#""cache_salt":"ten-1","model":"base""#)), 32);
    for other in [
        r#""model":"base""#,
        r#""model":"base","cache_salt":"ten-2""#,
        r#""model":"ten-1""#,
        r#""model":"bas","cache_salt":"eten-1""#,
        r#""model":"base","cache_salt":"""#,
        r#""model":"base","cache_salt":null"#,
        r#""model":"base","cache_salt":7"#,
        r#""model":"base","cache_salt":"7""#,
        r#""model":"ten-1","cache_salt":"base""#,
        r#""model":"base","cache_salt":["ten-1"]"#,
        r#""cache_salt":"ten-1""#,
        "",
    ] {
        assert_eq!(credited(&warm, &under(other)), 0, "{other}");
    }
}

/// Names that hold what stands between two parts of the identity, were lengths left out.
#[test]
fn no_name_reaches_into_the_next_part() {
    for (one, other) in [
        (r#""model":"as\"b""#, r#""model":"a","cache_salt":"b""#),
        (r#""model":"a0\"b""#, r#""model":"a","chat_template":"b""#),
        (r#""cache_salt":"a2{[]""#, r#""cache_salt":"a","documents":[]"#),
    ] {
        assert_eq!(credited(&under(one), &under(other)), 0, "{one} {other}");
    }
}

/// No two of these share a block; what makes each one is in its own place.
#[test]
fn every_member_that_changes_the_prompt_separates() {
    let members = [
        "",
        r#""model":"x""#,
        r#""cache_salt":"x""#,
        r#""cache_salt":7"#,
        r#""cache_salt":"7""#,
        r#""cache_salt":"""#,
        r#""chat_template":"x""#,
        r#""chat_template_kwargs":{"enable_thinking":false}"#,
        r#""chat_template_kwargs":{"enable_thinking":true}"#,
        r#""documents":[{"text":"x"}]"#,
        r#""reasoning_effort":"low""#,
        r#""reasoning":{"effort":"low"}"#,
        r#""add_special_tokens":false"#,
        r#""truncate_prompt_tokens":9"#,
        r#""mm_processor_kwargs":{"a":1}"#,
        r#""previous_response_id":"x""#,
        r#""conversation":"x""#,
        r#""thinking":{"type":"enabled"}"#,
    ];
    let hashes: HashSet<BlockHash> = members.iter().flat_map(|members| only(&under(members))).collect();
    assert_eq!(hashes.len(), members.len() * 32);
}

/// Sampling, streaming and the caller's own notes change nothing in the engine's cache.
#[test]
fn members_that_leave_the_prompt_alone_do_not_separate() {
    let plain = under(r#""model":"m""#);
    for more in [
        r#""stream":true,"temperature":0.5,"max_tokens":9,"seed":9007199254740993"#,
        r#""user":"anna","metadata":{"model":"x","cache_salt":"y"}"#,
        r#""cache_salt":null,"reasoning":null,"chat_template":null"#,
    ] {
        assert_eq!(plain, under(&format!(r#""model":"m",{more}"#)), "{more}");
    }
    assert_eq!(plain, under(r#""mod\u0065l":"\u006d""#), "escapes are resolved");
    let spaced = [r#""chat_template_kwargs":{"a":[1,2]}"#, r#""chat_template_kwargs": { "a" : [ 1 , 2 ] }"#];
    assert_eq!(under(spaced[0]), under(spaced[1]));
}

#[test]
fn tenants_of_the_edge_are_kept_apart() {
    let body = format!(r#"{{"prompt":{}}}"#, quoted(&prose(1000)));
    let of = |tenant: &[u8]| {
        let ask = Ask { api: Api::Completions, body: body.as_bytes(), tenant, session: b"" };
        only(&decide(&ask, &[], &Index::default(), &Rules::default(), DRAW).unwrap().blocks)
    };
    let salted = only(&support::blocks(Api::Completions, &body.replacen('{', r#"{"cache_salt":"a","#, 1)));
    let found: HashSet<_> =
        [of(b""), of(b"a"), of(b"b"), of(b"\xff\0"), salted].concat().into_iter().collect();
    assert_eq!(found.len(), 5 * 4);
}

/// Router and engine could take different ones for the tenant's: refused, however the second is spelt.
#[test]
fn two_cache_salts_are_refused() {
    for body in [
        r#"{"cache_salt":"a","prompt":"x","cache_salt":"b"}"#,
        r#"{"cache_salt":"a","cache_s\u0061lt":"a","prompt":"x"}"#,
        r#"{"cache_salt":null,"prompt":"x","cache_salt":null}"#,
        r#"{"cache_salt":"a","cache_salt":"b"}"#,
    ] {
        for api in
            [Api::Chat, Api::Completions, Api::Responses, Api::Messages, Api::Embeddings, Api::Tokenize]
        {
            let ask = Ask { api, body: body.as_bytes(), tenant: b"", session: b"" };
            let refused = decide(&ask, &[], &Index::default(), &Rules::default(), DRAW).unwrap_err();
            assert_eq!(refused, Refusal::DuplicateSalt, "{body}");
            assert_eq!(refused.to_string(), "cache_salt stands in the body more than once");
        }
    }
    let nested = r#"{"cache_salt":"a","metadata":{"cache_salt":"b","cache_salt":"c"},"prompt":"x"}"#;
    assert_eq!(read(Api::Completions, nested.as_bytes()).reading, Reading::Prompt);
}

#[test]
fn a_name_of_sane_length_is_the_model() {
    let model =
        |json: &str| read(Api::Completions, format!(r#"{{"model":{json},"prompt":"x"}}"#).as_bytes()).model;
    let long = "m".repeat(MODEL_BYTES_MAX);
    assert_eq!(model(&quoted(&long)).unwrap(), long);
    assert_eq!(model(&format!("\"{}\"", r"\u006d".repeat(MODEL_BYTES_MAX))).unwrap(), long);
    assert_eq!(model(r#""\ud83d\ude00/7b""#).unwrap(), "\u{1F600}/7b");
    let too_long = quoted(&(long + "m"));
    for none in [too_long.as_str(), "7", "null", r#"["m"]"#, r#""\ud83d""#, "{}"] {
        assert_eq!(model(none), None, "{none:.40}");
    }
}

#[test]
fn a_stream_is_asked_for_with_true() {
    let stream =
        |json: &str| read(Api::Chat, format!(r#"{{"stream":{json},"messages":[]}}"#).as_bytes()).stream;
    assert_eq!(
        ["true", " true ", "false", "null", "\"true\"", "1"].map(stream),
        [true, true, false, false, false, false]
    );
}

/// The end of a path says which prompt its body holds.
#[test]
fn paths_name_the_api() {
    for (path, api) in [
        ("/v1/chat/completions", Api::Chat),
        ("/v1/chat/completions/", Api::Chat),
        ("/team/v1/completions", Api::Completions),
        ("/v1/responses", Api::Responses),
        ("/v1/messages", Api::Messages),
        ("/v1/messages/count_tokens", Api::Tokenize),
        ("/v1/embeddings", Api::Embeddings),
        ("/v1/completions/render", Api::Tokenize),
        ("/tokenize", Api::Tokenize),
        ("/detokenize", Api::Other),
        ("/v1/models", Api::Other),
        ("/v1/chat", Api::Other),
        ("/", Api::Other),
        ("", Api::Other),
    ] {
        assert_eq!(Api::of(path), api, "{path}");
    }
}

proptest! {
    /// Whatever model and salt are, another pair shares no block.
    #[test]
    fn pairs_of_model_and_salt_separate(one in (".{0,6}", ".{0,6}"), other in (".{0,6}", ".{0,6}")) {
        let of = |(model, salt): &(String, String)| {
            let body = format!(r#"{{"model":{},"cache_salt":{},"prompt":"x"}}"#, quoted(model), quoted(salt));
            only(&support::blocks(Api::Completions, &body))
        };
        prop_assert_eq!(one == other, of(&one) == of(&other));
    }
}
