//! The figures of recorded answers under every cut, and texts that mean to be taken for figures.
#![allow(clippy::unwrap_used, clippy::panic)]

use picker::chance::Draw;

use super::*;

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/vllm/http/");

fn head(content_type: &str, coding: Option<&str>) -> ResponseHeader {
    let mut head = ResponseHeader::build(200, None).unwrap();
    head.insert_header(header::CONTENT_TYPE, content_type).unwrap();
    if let Some(coding) = coding {
        head.insert_header(header::CONTENT_ENCODING, coding).unwrap();
    }
    head
}

fn usage(
    prompt_tokens: u32,
    cached: impl Into<Option<u32>>,
    completion: impl Into<Option<u32>>,
) -> Option<Usage> {
    Some(Usage { prompt_tokens, cached_tokens: cached.into(), completion_tokens: completion.into() })
}

/// A recorded answer: its type, and its body without the framing of the wire.
fn recorded(name: &str) -> (String, Vec<u8>) {
    let bytes = std::fs::read(format!("{RECORDED}{name}.response.http")).unwrap();
    let end = memchr::memmem::find(&bytes, b"\r\n\r\n").unwrap();
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
    let named = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    let body = &bytes[end + 4..];
    let body = if head.contains("transfer-encoding") { unframed(body) } else { body.to_vec() };
    (named("content-type: ").unwrap(), body)
}

fn unframed(mut framed: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = memchr::memmem::find(framed, b"\r\n").unwrap();
        let length = usize::from_str_radix(std::str::from_utf8(&framed[..end]).unwrap(), 16).unwrap();
        if length == 0 {
            return body;
        }
        body.extend_from_slice(&framed[end + 2..][..length]);
        framed = &framed[end + 4 + length..];
    }
}

fn watched<'a>(api: Api, content_type: &str, pieces: impl IntoIterator<Item = &'a [u8]>) -> Watch {
    let mut watch = Watch::new(api, &head(content_type, None));
    pieces.into_iter().for_each(|piece| watch.see(piece));
    watch
}

fn document(text: &str) -> Option<Usage> {
    watched(Api::Chat, "application/json", [text.as_bytes()]).usage()
}

#[test]
fn recorded_answers_say_the_same_however_they_are_cut() {
    let (chat, messages) = (Api::Chat, Api::Messages);
    for (name, api, wanted) in [
        ("chat_cold", chat, usage(273, 0, 6)),
        ("chat_cached", chat, usage(273, 256, 6)),
        ("chat_n2", chat, usage(273, 256, 12)),
        ("chat_stream", chat, None),
        ("chat_stream_usage", chat, usage(273, 256, 6)),
        ("chat_stream_usage_continuous", chat, usage(273, 256, 6)),
        ("completion", Api::Completions, usage(251, 0, 4)),
        ("completion_stream_usage", Api::Completions, usage(251, 224, 4)),
        ("responses", Api::Responses, usage(273, 256, 16)),
        ("responses_stream", Api::Responses, usage(273, 256, 16)),
        ("messages", messages, usage(273, 256, 6)),
        ("messages_stream", messages, usage(273, 256, 6)),
        ("embeddings", Api::Embeddings, None),
    ] {
        let (content_type, body) = recorded(name);
        let seen = |pieces: &[&[u8]]| watched(api, &content_type, pieces.iter().copied()).usage();
        assert_eq!(seen(&[&body]), wanted, "{name}");
        assert_eq!(watched(api, &content_type, body.chunks(1)).usage(), wanted, "{name}, byte by byte");
        for cut in 0..body.len() {
            assert_eq!(seen(&[&body[..cut], &body[cut..]]), wanted, "{name}, cut at {cut}");
        }
    }
}

#[test]
fn the_first_token_is_seen_and_nothing_before_it() {
    for (name, api, before) in [
        ("chat_stream", Api::Chat, 0),
        ("completion_stream_usage", Api::Completions, 0),
        ("responses_stream", Api::Responses, 2),
    ] {
        let (content_type, body) = recorded(name);
        let mut watch = watched(api, &content_type, []);
        let mut events =
            body.split_inclusive(|byte| *byte == b'\n').filter(|line| line.starts_with(b"data:"));
        for _ in 0..before {
            watch.see(events.next().unwrap());
            watch.see(b"\n");
            assert!(!watch.has_first_token(), "{name}");
        }
        watch.see(b": still there\n\nevent: x\nid: 1\n");
        assert!(!watch.has_first_token(), "{name}");
        watch.see(&events.next().unwrap()[..5]);
        assert!(watch.has_first_token(), "{name}");
    }
    let mut hidden = Watch::new(Api::Chat, &head("text/event-stream", Some("gzip")));
    assert!(!hidden.has_first_token());
    hidden.see(b"\x1f");
    assert!(hidden.has_first_token() && hidden.usage().is_none());
    assert!(!watched(Api::Chat, "application/json", [&b"{}"[..]]).has_first_token());
}

#[test]
fn what_is_no_usage_is_not_taken_for_one() {
    let fake = r#"\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":9}}"#;
    let plain = r#""usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":9}}"#;
    for text in [
        format!(r#"{{"choices":[{{"message":{{"content":"{fake}"}}}}]}}"#),
        format!(r#"{{"{fake}":1}}"#),
        format!(r#"{{"choices":[{{{plain}}}]}}"#),
        format!(r#"{{"metadata":{{{plain}}}}}"#),
        format!(r#"{{"response":{{"metadata":{{{plain}}}}}}}"#),
        format!(r#"{{"message":{{"message":{{{plain}}}}}}}"#),
        format!(r#"[{{{plain}}}]"#),
        format!(r#"{{"x":[[{{"a":"]}}"}}],{{{plain}}}]}}"#),
        r#"{"usage":[{"prompt_tokens":9}]}"#.to_owned(),
        r#"{"usage":"prompt_tokens"}"#.to_owned(),
        r#"{"usage":null}"#.to_owned(),
        r#"{"usage":{"prompt_tokens":0}}"#.to_owned(),
        r#"{"usage":{"prompt_tokens":-5}}"#.to_owned(),
        r#"{"usage":{"prompt_tokens":1.5}}"#.to_owned(),
        r#"{"usage":{"prompt_tokens":1e3}}"#.to_owned(),
        r#"{"usage":{"prompt_tokens":99999999999}}"#.to_owned(),
        r#"{"usage":{"prompt_tokens":"9"}}"#.to_owned(),
        r#"{"usage":{"x":{"prompt_tokens":9}}}"#.to_owned(),
        r#"{"\u0075sage":{"prompt_tokens":9}}"#.to_owned(),
        r#"{"usage":{"prompt_tokens":9},"error":{"message":"x"}}"#.to_owned(),
        format!("{{}} {{{plain}}}"),
        String::new(),
    ] {
        assert_eq!(document(&text), None, "{text}");
    }
}

#[test]
fn what_is_a_usage_is_read_wherever_it_may_stand() {
    for (text, wanted) in [
        (r#"{"usage":{"prompt_tokens":9}}"#, usage(9, None, None)),
        (r#" { "usage" : { "completion_tokens" : 1 , "prompt_tokens" : 9 } } "#, usage(9, None, 1)),
        (r#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}"#, usage(9, None, None)),
        (
            r#"{"usage":{"prompt_tokens_details":{"x":{"cached_tokens":1},"cached_tokens":7},"prompt_tokens":9}}"#,
            usage(9, 7, None),
        ),
        (
            r#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":10}}}"#,
            usage(9, None, None),
        ),
        (r#"{"usage":{"prompt_tokens":9},"usage":{"prompt_tokens":8}}"#, usage(8, None, None)),
        (r#"{"usage":{"prompt_tokens":9,"prompt_tokens":8}}"#, usage(8, None, None)),
        (r#"{"usage":{"prompt_tokens":9},"usage":null}"#, usage(9, None, None)),
        (
            r#"{"usage":{"input_tokens":3,"cache_read_input_tokens":4,"cache_creation_input_tokens":2}}"#,
            usage(9, 4, None),
        ),
        (r#"{"a\\":"\\","b":[1,{"c":"\""}],"usage":{"prompt_tokens":9}}"#, usage(9, None, None)),
        (r#"{"usage":{"prompt_tokens":4294967295,"x":[[]]}}"#, usage(u32::MAX, None, None)),
    ] {
        assert_eq!(document(text), wanted, "{text}");
    }
}

#[test]
fn every_form_of_an_event_stream_is_read() {
    let wanted = usage(9, 4, None);
    let json = r#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}"#;
    for (shows, text) in [
        ("plain", format!("data: {json}\n\ndata: [DONE]\n\n")),
        ("no space", format!("data:{json}\n\n")),
        ("CRLF", format!(": x\r\ndata: {{}}\r\n\r\ndata: {json}\r\n\r\n")),
        ("CR", format!("event: a\rdata: {json}\r\rdata: [DONE]\r\r")),
        ("no end", format!("data: {{\"usage\":{{\"prompt_tokens\":1}}}}\n\ndata: {json}")),
        ("several data lines", format!("data: {}\ndata: {}\n\n", &json[..9], &json[9..])),
        ("several data lines, CRLF", format!("data: {}\r\ndata: {}\r\n\r\n", &json[..9], &json[9..])),
        ("usage null before", format!("data: {{\"usage\":null}}\n\ndata: {json}\n\n")),
        ("broken event before", format!("data: {{\"a\":\"\n\ndata: {json}\n\n")),
        ("a field alike", format!("database: {{\ndata: {json}\n\n")),
    ] {
        let bytes = text.as_bytes();
        for cut in 0..bytes.len() {
            let seen = watched(Api::Chat, "text/event-stream", [&bytes[..cut], &bytes[cut..]]);
            assert_eq!(seen.usage(), wanted, "{shows}, cut at {cut}");
        }
    }
    let failed = format!("data: {json}\n\ndata: {{\"error\":{{\"code\":503}}}}\n\n");
    let failed = watched(Api::Chat, "text/event-stream", [failed.as_bytes()]);
    assert!(failed.usage().is_none() && failed.has_first_token() && !failed.shows_pace());
}

#[test]
fn long_deep_and_random_texts_do_no_harm() {
    let tail = r#""usage":{"prompt_tokens":9,"completion_tokens":1}}"#;
    let long = "usage\\\":{".repeat(1 << 20);
    let deep = "[{\"usage\":".repeat(200_000);
    for (text, wanted) in [
        (format!("{{\"a\":\"{long}\",{tail}"), usage(9, None, 1)),
        (format!("{{\"a\":{deep}1{},{tail}", "}]".repeat(200_000)), usage(9, None, 1)),
        (format!("{{\"a\":{deep}"), None),
        ("]}".repeat(1 << 20) + "{" + tail, None),
    ] {
        assert_eq!(document(&text), wanted);
    }
    const WORDS: [&[u8]; 16] = [
        b"{",
        b"}",
        b"[",
        b"]",
        b"\"",
        b"\\",
        b":",
        b",",
        b"usage",
        b"prompt_tokens",
        b"9",
        b"\n",
        b"\r",
        b"data:",
        b"\xff",
        b"error",
    ];
    for turn in 0..20_000 {
        let draw = Draw { seed: 3, turn };
        let pieces =
            (0..draw.number(0) as usize % 60).map(|at| WORDS[draw.number(at + 1) as usize % WORDS.len()]);
        let kind = ["application/json", "text/event-stream"][turn as usize % 2];
        let whole: Vec<u8> = pieces.clone().flatten().copied().collect();
        let one = watched(Api::Chat, kind, [&whole[..]]);
        assert_eq!(one.usage(), watched(Api::Chat, kind, pieces).usage(), "{}", whole.escape_ascii());
    }
}

#[test]
fn only_answers_that_can_tell_are_read() {
    let text = r#"{"usage":{"prompt_tokens":9}}"#;
    for (api, content_type, coding, status, is_read) in [
        (Api::Chat, "application/json", None, 200, true),
        (Api::Chat, "Application/JSON; charset=utf-8", None, 200, true),
        (Api::Embeddings, "application/json", None, 200, true),
        (Api::Tokenize, "application/json", None, 200, false),
        (Api::Other, "application/json", None, 200, false),
        (Api::Chat, "text/plain", None, 200, false),
        (Api::Chat, "application/json", Some("gzip"), 200, false),
        (Api::Chat, "application/json", None, 400, false),
    ] {
        let mut head = head(content_type, coding);
        head.set_status(status).unwrap();
        let mut watch = Watch::new(api, &head);
        watch.see(text.as_bytes());
        assert_eq!(watch.usage().is_some(), is_read, "{api:?} {content_type} {coding:?} {status}");
    }
}
