//! What counts as the prompt, and which spellings of a prompt are the same one.
//!
//! Field bugs D02, D03 and D05, and the promise that a conversation plus one turn keeps its blocks.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use picker::canonical::PROMPTS_MAX;
use picker::hash::{BlockSize, Blocks};
use picker::read::Api;
use picker::tokens::bytes::MEDIA_TOKENS_MAX;
use support::{blocks, chat, common, completion, credited, only, prose, quoted};

/// Whether both are the same prompt to the router.
fn alike(one: &Blocks, other: &Blocks) -> bool {
    one == other
}

/// A message of that role whose text is long enough to fill blocks.
fn message(role: &str, text: &str) -> String {
    format!(r#"{{"role":"{role}","content":{}}}"#, quoted(text))
}

fn body(api: Api, members: &str) -> Blocks {
    blocks(api, &format!(r#"{{"model":"m",{members}}}"#))
}

/// Field bug D02: whatever the role, the text under it counts.
#[test]
fn no_role_is_skipped() {
    for role in ["system", "user", "assistant", "tool", "developer", "latest_reminder", "r\u{00f4}le", ""] {
        let [one, other] =
            ["one", "other"].map(|end| chat(&format!("[{}]", message(role, &(prose(600) + end)))));
        assert_eq!(credited(&one, &one), 3, "{role}");
        assert_eq!(credited(&one, &other), 2, "{role}: the texts differ in the last block only");
    }
    assert!(!alike(
        &chat(&format!("[{}]", message("user", "x"))),
        &chat(&format!("[{}]", message("tool", "x")))
    ));
}

/// Field bug D02: 60 tools, 116 KB of them, one function without parameters.
#[test]
fn tools_count_and_come_first() {
    let tool = |place: usize| match place {
        46 => format!(
            r#"{{"type":"function","function":{{"name":"t{place}","description":{}}}}}"#,
            quoted(&prose(2000))
        ),
        _ => format!(
            r#"{{"type":"function","function":{{"name":"t{place}","description":{},"parameters":{{"type":"object"}}}}}}"#,
            quoted(&prose(1900))
        ),
    };
    let tools = (0..60).map(tool).collect::<Vec<_>>().join(",");
    assert!(tools.len() > 116_000);
    let ask = |question: &str| {
        body(Api::Chat, &format!(r#""messages":[{}],"tools":[{tools}]"#, message("user", question)))
    };
    let (first, second) = (ask("hi"), ask("bye"));
    assert!(first.total() > 450);
    assert!(credited(&first, &second) as usize >= first.total() - 1, "another question shares the tools");
    let changed = tools.replacen("t59", "t60", 1);
    let other = body(Api::Chat, &format!(r#""tools":[{changed}],"messages":[{}]"#, message("user", "hi")));
    assert!((credited(&first, &other) as usize) < first.total() - 1, "the last tool differs");
}

#[test]
fn no_tools_are_no_tools() {
    let without = body(Api::Chat, r#""messages":[{"role":"user","content":"hi"}]"#);
    for none in ["null", "[]", "[ ]", "[\n]"] {
        let with =
            body(Api::Chat, &format!(r#""tools":{none},"messages":[{{"role":"user","content":"hi"}}]"#));
        assert!(alike(&without, &with), "{none:?}");
    }
}

/// llm-d forgets these: histories that differ only in a tool call's arguments would share a full match there.
#[test]
fn every_member_of_a_message_counts() {
    let history = |member: &str| chat(&format!(r#"[{{"role":"assistant","content":"hm",{member}}}]"#));
    let members = [
        r#""tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]"#,
        r#""tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":2}"}}]"#,
        r#""name":"anna""#,
        r#""name":"bert""#,
        r#""tool_call_id":"anna""#,
        r#""reasoning_content":"anna""#,
        r#""x_unknown":7"#,
        r#""x_unknown":"7""#,
        r#""x_unknown":null"#,
        // Where a key ends and its value begins counts too.
        r#""ab":"c""#,
        r#""a":"bc""#,
        r#""abc":"""#,
    ];
    let found: std::collections::HashSet<_> = members.iter().map(|member| only(&history(member))).collect();
    assert_eq!(found.len(), members.len());
}

/// Field bug D03: every shape is read, matches itself, and goes cold when its first element changes.
#[test]
fn every_shape_of_prompt_is_read() {
    let ids = |first: usize, count: usize| format!("{:?}", (first..first + count).collect::<Vec<_>>());
    let long = prose(1200);
    let shapes = |first: usize| {
        [
            quoted(&format!("{first}{long}")),
            format!("[{},{}]", quoted(&format!("{first}{long}")), quoted(&format!("{first}, {long}"))),
            ids(first, 600),
            format!("[{},{}]", ids(first, 300), ids(first + 1, 300)),
        ]
    };
    for (shape, other) in shapes(1000).iter().zip(shapes(2000)) {
        for (api, key) in
            [(Api::Completions, "prompt"), (Api::Embeddings, "input"), (Api::Tokenize, "prompt")]
        {
            let [first, other] = [shape, &other].map(|prompt| body(api, &format!(r#""{key}":{prompt}"#)));
            assert!(first.total() >= 4, "{shape:.40}");
            assert_eq!(credited(&first, &first) as usize, first.total(), "{shape:.40}");
            assert_eq!(credited(&first, &other), 0, "{shape:.40}");
        }
    }
}

/// Field bug D03: pairs that run into each other when shapes are flattened carelessly.
#[test]
fn shapes_do_not_collide() {
    let pad = prose(2000);
    let pad_ids = (0..500).map(|id| (id % 10).to_string()).collect::<Vec<_>>().join(",");
    let letters = (0..500).map(|id| (id % 10).to_string()).collect::<String>();
    for (one, other) in [
        (format!("[12,3,{pad_ids}]"), format!("[1,23,{pad_ids}]")),
        (format!(r#"["ab","c{pad}"]"#), format!(r#"["a","bc{pad}"]"#)),
        (format!("[49,50,{pad_ids}]"), format!(r#""12{letters}""#)),
        (format!("[[1,2,{pad_ids}]]"), format!("[[1],[2,{pad_ids}]]")),
        (format!("[1,2,{pad_ids}]"), format!(r#""[1,2,{pad_ids}]""#)),
        (format!("[0,1,{pad_ids}]"), format!("[1,{pad_ids}]")),
        // An id whose four bytes are letters is not those letters.
        (format!("[{}0]", "1633771873,".repeat(500)), format!(r#""{}""#, "aaaa".repeat(500))),
    ] {
        let (one, other) = (completion(&one), completion(&other));
        assert!(one.total() >= 4);
        assert_eq!((credited(&one, &other), credited(&other, &one)), (0, 0));
    }
}

#[test]
fn a_list_of_one_is_that_one() {
    assert!(alike(&completion(r#"["s one"]"#), &completion(r#""s one""#)));
    assert!(alike(&completion("[[1,2,3]]"), &completion("[1,2,3]")));
    let both = completion(r#"["s one","s two"]"#);
    assert_eq!(both.prompts().count(), 2);
    assert_eq!(credited(&both, &completion(r#""s two""#)), 1, "each prompt starts from the root");
}

#[test]
fn prompts_beyond_the_bound_are_left_out() {
    let list =
        |count: usize| completion(&format!("{:?}", (0..count).map(|n| n.to_string()).collect::<Vec<_>>()));
    assert_eq!(list(PROMPTS_MAX).total(), PROMPTS_MAX);
    assert!(alike(&list(PROMPTS_MAX), &list(PROMPTS_MAX + 500)));
}

#[test]
fn a_text_part_is_its_text() {
    let user = |content: &str| chat(&format!(r#"[{{"role":"user","content":{content}}}]"#));
    let plain = user(r#""What is this?""#);
    for part in [
        r#"[{"type":"text","text":"What is this?"}]"#,
        r#"[{"text":"What is this?","type":"input_text"}]"#,
        r#"[{"type":"output_text","text":"What is\u0020this?"}]"#,
        r#"[{"type":"text","text":"What is this?","cache_control":{"type":"ephemeral"}}]"#,
        r#" [ {"text" : "What is this?"} ] "#,
    ] {
        assert!(alike(&plain, &user(part)), "{part}");
    }
    let [two, other] = [r#"[{"text":"a"},{"text":"b"}]"#, r#"[{"text":"ab"}]"#].map(user);
    assert!(!alike(&two, &other), "where a part ends counts");
}

#[test]
fn media_stand_as_their_content() {
    let look = |part: &str| {
        chat(&format!(
            r#"[{{"role":"user","content":[{{"type":"text","text":"Look"}},{part},{{"type":"text","text":"!"}}]}}]"#
        ))
    };
    let image = |url: &str| format!(r#"{{"type":"image_url","image_url":{{"url":"{url}"}}}}"#);
    let found = look(&image("https://x.test/a.png"));
    assert!(found.total() >= 3, "225 tokens weigh more than two blocks of 64");
    assert_eq!(credited(&found, &look(&image("https://x.test/a.png"))) as usize, found.total());
    assert_eq!(credited(&found, &look(&image("https://x.test/b.png"))), 0);
    for part in [
        r#"{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}"#,
        r#"{"type":"video_url","video_url":{"url":"https://x.test/a.png"}}"#,
        r#"{"type":"input_image","image_url":"https://x.test/a.png"}"#,
        r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}"#,
        r#"{"type":"x_unknown","x":{"url":"https://x.test/a.png"}}"#,
    ] {
        let other = look(part);
        assert_eq!(credited(&other, &other) as usize, other.total(), "{part}");
        assert_eq!(credited(&found, &other), 0, "{part}");
    }
}

/// All media of a request weigh no more than the bound, and every one of them still counts.
#[test]
fn many_media_are_bounded() {
    let videos = |last: usize| {
        let videos = (0..299).chain([last]).map(|n| format!(r#"{{"type":"video_url","video_url":"{n}"}}"#));
        chat(&format!(r#"[{{"role":"user","content":[{}]}}]"#, videos.collect::<Vec<_>>().join(",")))
    };
    let found = videos(299);
    let blocks = MEDIA_TOKENS_MAX as usize / BlockSize::ROUTER.tokens();
    assert!((blocks..blocks + 20).contains(&found.total()), "{} blocks", found.total());
    let run = common(&only(&found), &only(&videos(300)));
    assert!(run + 1 >= found.total() - 1 && run < found.total(), "the last one differs");
}

/// The same conversation has the same blocks by every API that can say it.
#[test]
fn apis_agree_on_a_conversation() {
    let user = r#"{"role":"user","content":"hi"}"#;
    let by_chat =
        body(Api::Chat, &format!(r#""messages":[{{"role":"system","content":"Be brief"}},{user}]"#));
    for (shows, other) in [
        ("anthropic", body(Api::Messages, &format!(r#""system":"Be brief","messages":[{user}]"#))),
        (
            "anthropic blocks",
            body(
                Api::Messages,
                &format!(r#""messages":[{user}],"system":[{{"type":"text","text":"Be brief"}}]"#),
            ),
        ),
        ("responses", body(Api::Responses, r#""instructions":"Be brief","input":"hi""#)),
        ("responses items", body(Api::Responses, &format!(r#""instructions":"Be brief","input":[{user}]"#))),
        (
            "responses typed",
            body(
                Api::Responses,
                concat!(
                    r#""instructions":"Be brief","input":[{"type":"message","role":"user","#,
                    r#""content":[{"type":"input_text","text":"hi"}]}]"#
                ),
            ),
        ),
        (
            "tokenize",
            body(Api::Tokenize, &format!(r#""messages":[{{"role":"system","content":"Be brief"}},{user}]"#)),
        ),
        (
            "embeddings",
            body(
                Api::Embeddings,
                &format!(r#""messages":[{{"role":"system","content":"Be brief"}},{user}]"#),
            ),
        ),
    ] {
        assert!(alike(&by_chat, &other), "{shows}");
    }
    assert!(alike(&completion(r#""hi there""#), &body(Api::Tokenize, r#""prompt":"hi there""#)));
}

/// Claude Code's first system block changes with every request, and vLLM drops it there. Nowhere else.
#[test]
fn the_billing_header_is_dropped_from_the_system_text_only() {
    let anthropic = |bill: &str| {
        let bill = format!(r#"{{"type":"text","text":"x-anthropic-billing-header: {bill}"}}"#);
        body(
            Api::Messages,
            &format!(
                r#""system":[{bill},{{"type":"text","text":"Be brief"}}],"messages":[{}]"#,
                message("user", "hi")
            ),
        )
    };
    assert!(alike(&anthropic("cc=1"), &anthropic("cc=2")));
    assert!(alike(
        &anthropic("cc=1"),
        &body(Api::Messages, &format!(r#""system":"Be brief","messages":[{}]"#, message("user", "hi")))
    ));
    let user = |bill: &str| {
        chat(&format!(
            r#"[{{"role":"user","content":[{{"type":"text","text":"x-anthropic-billing-header: {bill}"}}]}}]"#
        ))
    };
    assert!(!alike(&user("cc=1"), &user("cc=2")), "a user's text reaches the engine whole");
}

/// Field bug D05: a lone surrogate, which Python accepts, is a character like any other.
#[test]
fn lone_surrogates_and_nul_keep_what_stands_before_them() {
    let (text, plain) = (prose(4096), chat(&format!("[{}]", message("user", &prose(4096)))));
    for escape in [r"\ud83d", r"\udc00\ud800", r"\u0000", r"\ud83d\u0041", r"\uD83D\uD83D\uDE00"] {
        let with = chat(&format!(r#"[{{"role":"user","content":"{text}{escape}"}}]"#));
        assert_eq!(credited(&with, &with) as usize, with.total(), "{escape}");
        assert_eq!(credited(&plain, &with), 16, "{escape}: the text before it still counts");
        assert_eq!(credited(&with, &plain), 16, "{escape}: and it counts itself");
    }
    let [one, other] = [r"\ud83d", r"\ud83e"].map(|escape| completion(&format!(r#""{escape}""#)));
    assert!(!alike(&one, &other));
    let key = chat(&format!(r#"[{{"role":"user","content":{},"\ud83d":1}}]"#, quoted(&text)));
    assert_eq!(credited(&plain, &key), 16);
}

/// Of duplicate members the last counts, as in the engine; names may be written with escapes.
#[test]
fn the_last_of_duplicate_members_counts() {
    let wanted = body(Api::Completions, r#""prompt":"last""#);
    assert!(alike(&wanted, &body(Api::Completions, r#""prompt":"first","prompt":"last""#)));
    assert!(alike(&wanted, &body(Api::Completions, r#""prompt":"first","pr\u006fmpt":"last""#)));
    assert!(alike(&wanted, &body(Api::Completions, r#""p\u0072ompt":"first","prompt":"last""#)));
    assert!(alike(&wanted, &body(Api::Completions, r#""model":"x","\u006dodel":"m","prompt":"last""#)));
    let wanted = chat(r#"[{"role":"user","content":"last"}]"#);
    assert!(alike(&wanted, &chat(r#"[{"content":"x","role":"tool","role":"user","content":"last"}]"#)));
}

/// Keys of a message, too, may be written with escapes.
#[test]
fn escaped_keys_are_the_keys_they_name() {
    let wanted = chat(r#"[{"role":"user","content":[{"type":"text","text":"hi"}],"name":"n"}]"#);
    assert!(alike(
        &wanted,
        &chat(
            r#"[{"r\u006fle":"user","conten\u0074":[{"typ\u0065":"text","tex\u0074":"hi"}],"n\u0061me":"n"}]"#
        )
    ));
}

/// The words tokenizer sees text alone: neither roles nor tools nor media.
#[test]
fn words_see_contents_only() {
    let tokens = |messages: &str| {
        support::words(Api::Chat, &format!(r#"{{"tools":[{{"name":"t"}}],"messages":{messages}}}"#))
    };
    let plain = support::words(Api::Completions, r#"{"prompt":"alpha beta\ngamma"}"#);
    assert_eq!(plain.len(), 3);
    let parts = r#"[{"text":"alpha "},{"type":"image_url","image_url":{"url":"x"}},{"text":"beta"}]"#;
    let found = tokens(&format!(
        r#"[{{"role":"system","name":"n","content":{parts}}},{{"role":"user","content":"gamma"}}]"#
    ));
    assert_eq!(found, plain);
}

/// A message may have more members than are kept from one walk over it.
#[test]
fn many_members_of_a_message_count_like_few() {
    let message = |values: &[usize]| {
        let members = values.iter().enumerate().map(|(place, value)| format!(r#""m{place}":{value},"#));
        chat(&format!(r#"[{{{}"role":"user","content":"hi"}}]"#, members.collect::<String>()))
    };
    for count in 1..10 {
        let plain = vec![0; count];
        let mut other = plain.clone();
        other[count - 1] = 1;
        assert_eq!(message(&plain), message(&plain));
        assert_ne!(message(&plain), message(&other), "member {count}");
        assert_ne!(message(&plain), message(&plain[1..]), "{count} members");
    }
}
