//! Bodies as clients really send them: read where they can be read, forwarded as they came in every case.
//!
//! Two endpoints tell whether a prompt was read: with equal loads a second sending follows the first, and the
//! router reports a match.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness::prompts::{cold, text, with};
use harness::router::POLICIES;
use harness::{Answer, Load, Response, Router, Setup, Stub, exchange, get, post, prompts};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

struct Pair {
    a: Stub,
    b: Stub,
    router: Router,
}

impl Pair {
    async fn start() -> Self {
        Self::under(POLICIES[0]).await
    }

    async fn under(policy: &str) -> Self {
        let (a, b) = (Stub::start().await, Stub::start().await);
        let router = Setup::of(&[&a, &b]).policy(policy).start().await;
        Self { a, b, router }
    }

    async fn load(&self, a: f64, b: f64) {
        self.a.load(Load::waiting(a));
        self.b.load(Load::waiting(b));
        self.router.sees("a", "waiting", a).await;
        self.router.sees("b", "waiting", b).await;
    }

    /// Sends a body and checks that the stub it reached got those bytes.
    async fn send(&self, path: &str, body: impl AsRef<[u8]>) -> Response {
        let body = body.as_ref();
        let before = (self.a.count(), self.b.count());
        let response = exchange(self.router.data, post(path, body)).await;
        let reached = match (self.a.count() - before.0, self.b.count() - before.1) {
            (1, 0) => &self.a,
            (0, 1) => &self.b,
            other => panic!("reached {other:?} stubs: {response:?}"),
        };
        assert!(reached.last().body == body, "another body: {:?}", reached.last().body);
        response
    }

    /// Sends a body twice; both must succeed, and the second must follow the first with a match.
    async fn second_follows(&self, path: &str, body: impl AsRef<[u8]>) {
        let body = body.as_ref();
        let first = self.send(path, body).await;
        let second = self.send(path, body).await;
        let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
        assert_eq!((first.status(), second.status()), (200, 200), "{shown}");
        assert_eq!(first.endpoint(), second.endpoint(), "the second left the first: {shown}");
        let (matched, total) = second.matched();
        assert!(matched > 0 && total > 0, "match {matched}/{total}: {shown}");
    }
}

/// The bytes of recipe D01, odd spacing and escapes intended.
const UNKNOWN_MEMBERS: &str = r#"{"model":"m", "messages":[{"role":"user","content":"hi","x_note":null}],"seed":9007199254740993,"temperature":1.0,"top_p":0.10,"logit_bias":{"128001":-1e2},"return_token_ids":true,"chat_template_kwargs":{"enable_thinking":false},"vllm_xargs":{"k":[1,2,{"z":-0.0}]},"guided_regex":"a\/b\u00e9"}"#;

// D01
#[tokio::test]
async fn unknown_members_and_large_numbers_arrive_untouched() {
    let pair = Pair::start().await;
    let prompt = UNKNOWN_MEMBERS.replace(
        r#""messages":[{"role":"user","content":"hi","x_note":null}]"#,
        r#""prompt":"hi","x_note":null"#,
    );
    for (path, body) in [(CHAT, UNKNOWN_MEMBERS), (COMPLETIONS, &prompt)] {
        assert_eq!(pair.send(path, body).await.status(), 200);
        assert_eq!(pair.send(path, with(body, r#","stream":true"#)).await.status(), 200);
    }
}

fn many_tools() -> String {
    let tool = |index: usize| {
        let parameters = match index {
            46 => String::new(),
            _ => format!(r#","parameters":{{"type":"object","description":"{}"}}"#, text(index as u64, 1900)),
        };
        format!(r#"{{"type":"function","function":{{"name":"tool_{index}"{parameters}}}}}"#)
    };
    let tools: Vec<_> = (0..60).map(tool).collect();
    with(&cold(1), &format!(r#","tools":[{}]"#, tools.join(",")))
}

fn role(role: &str, extra: &str, seed: u64) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"{role}","content":"{}"{extra}}}]}}"#, text(seed, 4096))
}

// D02
#[tokio::test]
async fn a_tool_without_parameters_is_no_fault() {
    let body = many_tools();
    assert!(body.len() >= 116_000, "{}", body.len());
    Pair::start().await.second_follows(CHAT, body).await;
}

// D02
#[tokio::test]
async fn unknown_roles_are_read_like_any_other() {
    let pair = Pair::start().await;
    pair.second_follows(CHAT, role("developer", "", 1)).await;
    pair.second_follows(CHAT, role("latest_reminder", r#","priority":{"level":3}"#, 2)).await;
}

// D02
#[tokio::test]
async fn texts_under_an_unknown_role_count_in_the_hash() {
    let pair = Pair::start().await;
    pair.send(CHAT, role("latest_reminder", "", 1)).await;
    assert_eq!(pair.send(CHAT, role("latest_reminder", "", 2)).await.matched().0, 0);
}

// D02
#[tokio::test]
async fn an_unknown_tool_choice_is_no_fault() {
    let body = with(&cold(1), r#","tool_choice":{"type":"whichever","names":["a"]}"#);
    Pair::start().await.second_follows(CHAT, body).await;
}

// D02
#[tokio::test]
async fn a_member_of_the_wrong_type_is_the_engines_to_refuse() {
    let pair = Pair::start().await;
    let refusal = r#"{"error":{"message":"n must be an integer","code":400}}"#;
    pair.a.always(Answer::json(400, refusal));
    pair.b.always(Answer::json(400, refusal));
    for _ in 0..2 {
        let response = pair.send(CHAT, with(&cold(1), r#","stop":null,"max_tokens":null,"n":"1""#)).await;
        assert_eq!((response.status(), response.text().as_str()), (400, refusal));
    }
}

fn numbers(from: u32, count: u32) -> String {
    let numbers: Vec<_> = (from..from + count).map(|number| number.to_string()).collect();
    format!("[{}]", numbers.join(","))
}

fn completion(prompt: &str) -> String {
    format!(r#"{{"model":"m","prompt":{prompt}}}"#)
}

/// The four shapes of a prompt. No two shapes and no two seeds share an element: each prompt of a list is a
/// prefix of its own, so an element seen before would rightly be warm.
fn shapes(seed: u32) -> [String; 4] {
    let words = |shape: u32| text(u64::from(shape * 100 + seed), 2048);
    let ids = |shape: u32, count| numbers(shape * 100_000 + seed * 1000, count);
    [
        format!(r#""{}""#, words(1)),
        format!(r#"["{}","{}"]"#, words(2), words(3)),
        ids(1, 600),
        format!("[{},{}]", ids(2, 300), ids(3, 300)),
    ]
}

/// Second sending goes with the first, another first element is cold.
async fn every_shape_is_read(path: &str, body: impl Fn(&str) -> String) {
    let pair = Pair::start().await;
    for (warm, other) in shapes(1).iter().zip(shapes(2)) {
        pair.second_follows(path, body(warm)).await;
        let cold = pair.send(path, body(&other)).await;
        assert_eq!(cold.matched().0, 0, "another first element was credited: {}", &other[..60]);
    }
}

// D03
#[tokio::test]
async fn every_shape_of_a_completions_prompt_is_read() {
    every_shape_is_read(COMPLETIONS, completion).await;
}

// D03
#[tokio::test]
async fn every_shape_of_an_embeddings_input_is_read() {
    every_shape_is_read("/v1/embeddings", |input| format!(r#"{{"model":"m","input":{input}}}"#)).await;
}

// D03
#[tokio::test]
async fn a_responses_input_is_read_as_text_and_as_messages() {
    let pair = Pair::start().await;
    let path = "/v1/responses";
    for seed in [1, 2] {
        let content = text(seed, 2048);
        let as_text = format!(r#"{{"model":"m","input":"{content}"}}"#);
        let as_messages = format!(r#"{{"model":"m","input":[{{"role":"user","content":"{content}"}}]}}"#);
        pair.second_follows(path, as_text).await;
        pair.second_follows(path, as_messages).await;
    }
}

/// A text that decimal digits could be mistaken for: byte 49 is the digit one, and so on.
fn collision_pairs() -> [(String, String); 3] {
    let tail = text(5, 4000);
    let ids = numbers(3, 600);
    let ids = ids.trim_start_matches('[');
    let digits = "12345678".repeat(300);
    let bytes: Vec<_> = digits.bytes().map(|byte| byte.to_string()).collect();
    [
        (format!("[12,{ids}"), format!("[1,2{ids}")),
        (format!(r#"["ab","c{tail}"]"#), format!(r#"["a","bc{tail}"]"#)),
        (format!("[{}]", bytes.join(",")), format!(r#""{digits}""#)),
    ]
}

// D03
#[tokio::test]
async fn shapes_that_spell_the_same_do_not_share_blocks() {
    for (left, right) in collision_pairs() {
        let pair = Pair::start().await;
        pair.send(COMPLETIONS, completion(&left)).await;
        let other = pair.send(COMPLETIONS, completion(&right)).await;
        assert_eq!(other.matched().0, 0, "{}... is credited with {}...", &right[..20], &left[..20]);
        let same = pair.send(COMPLETIONS, completion(&left)).await;
        assert!(same.matched().0 > 0, "the prompt itself is warm");
    }
}

/// Prompts without a prompt.
fn degenerate() -> Vec<(&'static str, String)> {
    let prompts = [r#""""#, "[]", r#"[""]"#, "[[]]", "123", "null"];
    let mut bodies: Vec<_> = prompts.iter().map(|prompt| (COMPLETIONS, completion(prompt))).collect();
    bodies.push((COMPLETIONS, r#"{"model":"m"}"#.to_owned()));
    let lists = ["[]", "null", "[{}]", r#"[{"role":"user"}]"#];
    let contents = [r#""""#, "[]"].map(|content| format!(r#"[{{"role":"user","content":{content}}}]"#));
    for messages in lists.map(String::from).into_iter().chain(contents) {
        bodies.push((CHAT, format!(r#"{{"model":"m","messages":{messages}}}"#)));
    }
    bodies.extend(["{}", "[]", "null", ""].map(|body| (CHAT, body.to_owned())));
    bodies
}

// D04
#[tokio::test]
async fn prompts_without_a_prompt_are_the_engines_to_refuse() {
    let pair = Pair::start().await;
    let refusal = r#"{"error":{"message":"no prompt","code":400}}"#;
    for (path, body) in degenerate() {
        pair.a.always(Answer::json(400, refusal));
        pair.b.always(Answer::json(400, refusal));
        let response = pair.send(path, &body).await;
        assert_eq!((response.status(), response.text().as_str()), (400, refusal), "{body}");
        pair.a.always(Answer::json(200, "{}"));
        pair.b.always(Answer::json(200, "{}"));
        assert_eq!(pair.send(CHAT, cold(1)).await.status(), 200, "after {body}");
    }
    let shown = format!("{}{}", pair.router.state().await, pair.router.metrics().await);
    let shown = shown.replace(r#"le="+Inf""#, "").to_lowercase();
    let mut words = shown.split(|character: char| !character.is_alphanumeric());
    assert!(!words.any(|word| ["nan", "inf"].contains(&word)), "NaN or Inf in state or metrics");
}

// D04
#[tokio::test]
async fn empty_prompts_spread() {
    for policy in POLICIES {
        let stubs = [Stub::start().await, Stub::start().await, Stub::start().await];
        let router = Setup::of(&[&stubs[0], &stubs[1], &stubs[2]]).policy(policy).start().await;
        for _ in 0..40 {
            assert_eq!(exchange(router.data, post(COMPLETIONS, completion(r#""""#))).await.status(), 200);
        }
        let counts = stubs.each_ref().map(Stub::count);
        assert!(counts.iter().all(|&count| count <= 24), "of 40: {counts:?}");
    }
}

/// Cold prompts have an order among the replicas by then; what leaves no prefix behind must not follow it, because
/// nothing would ever move it on.
// D04, behaviour 2.2
#[tokio::test]
async fn requests_that_leave_no_prefix_spread_after_cold_prompts_too() {
    for policy in POLICIES {
        let stubs = [Stub::start().await, Stub::start().await, Stub::start().await];
        let router = Setup::of(&[&stubs[0], &stubs[1], &stubs[2]]).policy(policy).start().await;
        for seed in 0..4 {
            assert_eq!(router.chat(cold(seed)).await.status(), 200);
        }
        for (shows, request) in [
            ("empty prompts", post(COMPLETIONS, completion(r#""""#))),
            ("no prompts", get("/v1/models")),
            ("unreadable bodies", post(CHAT, r#"{"model":"m","messages":["#)),
            ("a prompt that is only counted", post("/tokenize", prompts::cold_completion(9))),
        ] {
            let before = stubs.each_ref().map(Stub::count);
            for _ in 0..40 {
                assert_eq!(exchange(router.data, &request).await.status(), 200, "{shows}");
            }
            let counts: [usize; 3] = std::array::from_fn(|index| stubs[index].count() - before[index]);
            assert!(counts.iter().all(|&count| count <= 24), "{shows}, of 40: {counts:?}");
        }
    }
}

// D05
#[tokio::test]
async fn lone_surrogates_keep_their_bytes_and_their_affinity() {
    let pair = Pair::start().await;
    let long = text(1, 4096);
    for content in [
        format!(r"{long}\ud83d"),
        format!(r"{}\udc00\ud800", text(2, 4096)),
        format!(r"{}\u0000", text(3, 4096)),
    ] {
        pair.second_follows(CHAT, prompts::chat(&content)).await;
    }
    let keyed = with(&cold(4), r#","vllm_xargs":{"\ud83d":1}"#);
    pair.second_follows(CHAT, keyed).await;
}

// D05
#[tokio::test]
async fn a_text_before_a_lone_surrogate_still_counts() {
    let pair = Pair::start().await;
    let long = text(1, 4096);
    pair.send(CHAT, prompts::chat(&format!(r"{long}\ud83d"))).await;
    let other = pair.send(CHAT, prompts::chat(&format!(r"{long}\udc00"))).await;
    assert!(other.matched().0 >= 15, "{:?}", other.matched());
}

// D05
#[tokio::test]
async fn bytes_that_are_no_utf8_are_forwarded() {
    let pair = Pair::start().await;
    let mut raw = cold(1).into_bytes();
    raw[200] = 0xFF;
    let marked = [b"\xEF\xBB\xBF".as_slice(), cold(2).as_bytes()].concat();
    for body in [raw, marked] {
        for _ in 0..2 {
            assert_eq!(pair.send(CHAT, &body).await.status(), 200);
        }
    }
}

/// Nesting deeper than any stack: read without recursion, or not read, but forwarded.
#[tokio::test]
async fn bottomless_nesting_is_forwarded() {
    let pair = Pair::start().await;
    for depth in [1_000, 20_000, 1_000_000] {
        for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
            let nested = format!("{}0{}", open.repeat(depth), close.repeat(depth));
            assert_eq!(pair.send(CHAT, with(&cold(1), &format!(r#","x":{nested}"#))).await.status(), 200);
            assert_eq!(pair.send(CHAT, format!(r#"{{"messages":{nested}}}"#)).await.status(), 200);
            assert_eq!(pair.send(CHAT, open.repeat(depth)).await.status(), 200);
        }
    }
}

fn salted(model: &str, salt: Option<&str>) -> String {
    let salt = salt.map(|salt| format!(r#","cache_salt":{salt}"#)).unwrap_or_default();
    let content = text(1, 8192);
    format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"{content}"}}]{salt}}}"#)
}

// D07
#[tokio::test]
async fn only_the_same_model_and_salt_share_a_prefix() {
    for policy in POLICIES {
        let others = [
            ("base", None),
            ("base", Some(r#""ten-2""#)),
            ("ten-1", None),
            ("bas", Some(r#""eten-1""#)),
            ("base", Some(r#""""#)),
            ("base", Some("null")),
            ("base", Some("7")),
            ("base", Some(r#""7""#)),
        ];
        for (model, salt) in others {
            let pair = Pair::under(policy).await;
            pair.load(0.0, 50.0).await;
            assert_eq!(pair.send(CHAT, salted("base", Some(r#""ten-1""#))).await.endpoint(), "a");
            pair.load(2.0, 0.0).await;
            let other = pair.send(CHAT, salted(model, salt)).await;
            assert_eq!((other.matched().0, other.endpoint().as_str()), (0, "b"), "{model} {salt:?}");
        }
    }
}

// D07
#[tokio::test]
async fn the_same_model_and_salt_follow_their_prefix() {
    for policy in POLICIES {
        let pair = Pair::under(policy).await;
        pair.load(0.0, 50.0).await;
        pair.send(CHAT, salted("base", Some(r#""ten-1""#))).await;
        pair.load(2.0, 2.0).await;
        let same = pair.send(CHAT, salted("base", Some(r#""ten-1""#))).await;
        let (matched, total) = same.matched();
        assert_eq!((same.endpoint().as_str(), matched), ("a", total));
    }
}

// Behaviour 68
#[tokio::test]
async fn a_salted_prompt_follows_its_own_salt_and_is_cold_under_another() {
    let pair = Pair::start().await;
    pair.second_follows(CHAT, salted("base", Some(r#""tenant""#))).await;
    assert_eq!(pair.send(CHAT, salted("base", Some(r#""other""#))).await.matched().0, 0);
}

/// Router and engine could read two salts out of one body: refused, and nothing is sent.
#[tokio::test]
async fn a_duplicate_salt_is_refused() {
    let pair = Pair::start().await;
    for members in [r#","cache_salt":"x","cache_salt":"y""#, r#","cache_salt":"x","cache\u005fsalt":"y""#] {
        pair.router.chat(with(&cold(1), members)).await.assert_router_error(400);
    }
    assert_eq!((pair.a.count(), pair.b.count()), (0, 0));
}

/// Of other duplicates the last counts, as in the engine.
#[tokio::test]
async fn of_duplicate_members_the_last_counts() {
    let pair = Pair::start().await;
    pair.send(CHAT, cold(1)).await;
    let messages = format!(r#","messages":[{{"role":"user","content":"{}"}}]"#, text(2, 4096));
    let second = with(&cold(1), &messages);
    assert_eq!(pair.send(CHAT, &second).await.matched().0, 0, "the first messages were read");
    let (matched, total) = pair.send(CHAT, cold(2)).await.matched();
    assert_eq!(matched, total, "the last messages were not read");
}

/// What is not routed by prefix is proxied all the same.
#[tokio::test]
async fn other_paths_and_methods_are_proxied_as_they_came() {
    let pair = Pair::start().await;
    for line in
        ["GET /v1/models?limit=%20a&b HTTP/1.1", "DELETE /v1/x/../y HTTP/1.1", "PATCH /a//b?c=d?e HTTP/1.1"]
    {
        let before = (pair.a.count(), pair.b.count());
        let response = exchange(pair.router.data, format!("{line}\r\nhost: router\r\n\r\n")).await;
        assert_eq!(response.status(), 200, "{line}: {response:?}");
        let reached = if pair.a.count() > before.0 { &pair.a } else { &pair.b };
        assert_eq!(reached.last().head.first_line, line);
    }
}
