//! Word pieces, their ids, and how a chat is flattened: behaviours 1 to 5, on vectors from an independent model.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use picker::read::Api;
use picker::tokens::Kind;
use picker::tokens::words::{fnv1a32, pieces, token_ids};
use support::{common, seed, seed_text, words};

/// Behaviours 1 and 2.
#[test]
fn texts_fall_into_pieces_with_ids() {
    let vectors = seed("tokenizer.json");
    for vector in vectors["vectors"].as_array().unwrap() {
        let text = vector["text"].as_str().unwrap();
        let found: Vec<_> = pieces(text).collect();
        assert_eq!(serde_json::json!(found), vector["pieces"], "pieces of {text:?}");
        assert_eq!(serde_json::json!(token_ids(text)), vector["ids"], "ids of {text:?}");
    }
}

/// Behaviour 1.
#[test]
fn every_punctuation_mark_is_a_token_and_nothing_else_is() {
    let marks = seed("tokenizer.json")["punctuation_set"].as_str().unwrap().to_owned();
    for mark in (0u8..128).map(char::from).filter(|c| !c.is_alphanumeric()) {
        let expected = if marks.contains(mark) { 3 } else { 2 };
        // The underscore is the one mark that is inside a word, too.
        let text = if mark == '_' { format!("a {mark}b") } else { format!("a{mark}b") };
        let found = pieces(&text).count();
        assert_eq!(found, expected, "{text:?}");
    }
}

/// Behaviour 2.
#[test]
fn ids_are_fnv1a() {
    for vector in seed("fnv1a32.json")["vectors"].as_array().unwrap() {
        let text = vector["text"].as_str().unwrap();
        assert_eq!(u64::from(fnv1a32(text.as_bytes())), vector["u32"].as_u64().unwrap(), "{text:?}");
    }
    assert_ne!(token_ids("word"), token_ids("word "), "the white space behind a piece counts");
}

/// Behaviour 3.
#[test]
fn neither_class_yields_nothing_and_punctuation_wins() {
    for (text, found) in [
        ("`a` | b", &["a", "b"][..]),
        ("\u{1F642} hi \u{2014} there", &["hi ", "there"]),
        ("   lead", &["lead"]),
        ("_a", &["_", "a"]),
        ("b_a", &["b_a"]),
    ] {
        assert_eq!(pieces(text).collect::<Vec<_>>(), found, "{text:?}");
    }
}

/// Behaviour 4.
#[test]
fn messages_are_flattened_in_order() {
    for case in seed("prompt_text.json")["cases"].as_array().unwrap() {
        let tokens = |body: &serde_json::Value| {
            let api = if body.get("prompt").is_some() { Api::Completions } else { Api::Chat };
            words(api, &body.to_string())
        };
        let a = tokens(&case["a"]);
        if let Some(least) = case["min_common_tokens"].as_u64() {
            let b = tokens(&case["b"]);
            assert!(common(&a, &b) >= least as usize, "{}", case["name"]);
            assert!(common(&a, &b) < a.len(), "{}", case["name"]);
        }
        if let Some(first) = case["first_tokens"].as_array() {
            let text: String = first.iter().map(|piece| piece.as_str().unwrap()).collect();
            let wanted = words(Api::Completions, &serde_json::json!({ "prompt": text }).to_string());
            assert_eq!(common(&a, &wanted), first.len(), "{}", case["name"]);
        }
    }
}

/// Behaviour 5.
#[test]
fn prompts_of_the_default_trace_share_what_their_tenant_wrote() {
    assert_eq!(pieces("tenant-1").count(), 3);
    let trace = seed_text("traces/default_head.jsonl");
    let prompts: Vec<_> = trace.lines().map(group_and_tokens).collect();
    assert!(prompts.iter().all(|(_, tokens)| tokens.len() == 221));
    let mut pairs = 0;
    for (place, (group, tokens)) in prompts.iter().enumerate() {
        for (other_group, other) in &prompts[..place] {
            let shared = common(tokens, other);
            pairs += usize::from(group == other_group);
            assert_eq!(group == other_group, (192..=207).contains(&shared), "{group} {other_group} {shared}");
        }
    }
    assert!(pairs > 0, "the fixture holds two prompts of one tenant");
}

fn group_and_tokens(line: &str) -> (String, Vec<picker::hash::BlockHash>) {
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    (line["group"].as_str().unwrap().to_owned(), words(Api::Chat, &line["body"].to_string()))
}

#[test]
fn tokenizers_are_found_by_their_names() {
    for kind in [Kind::Bytes, Kind::Words] {
        assert_eq!(Kind::from_name(kind.name()), Some(kind));
    }
    assert_eq!(Kind::from_name("Bytes"), None);
}

/// The `words` tokenizer takes ids and lists of prompts too, each prompt from the root.
#[test]
fn words_take_every_shape_of_prompt() {
    let tokens = |prompt: &str| words(Api::Completions, &format!(r#"{{"prompt":{prompt}}}"#));
    assert_eq!(tokens(r#"["alpha beta"]"#), tokens(r#""alpha beta""#));
    assert_eq!(tokens("[1,2,3]").len(), 3);
    assert_eq!(tokens(&format!("{:?}", token_ids("alpha beta"))), tokens(r#""alpha beta""#));
}
