//! Servers that fail, break off or do not count, and traces that cannot be read: told by kind, the rest told all the same.

use super::*;

/// Misbehaves as the model says that is asked for, and says its counters from a list.
async fn answer(headers: HeaderMap, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let header = |name| headers.get(name).map_or("", |value| value.to_str().unwrap());
    let event = |text: &str| Ok::<_, std::io::Error>(format!("data: {text}\n\n"));
    let token = event(r#"{"choices":[{"delta":{"content":"a"}}]}"#);
    let kind = [("content-type", "text/event-stream; charset=utf-8"), ("x-prefixroute-endpoint", "e")];
    let streamed = |events: Vec<_>| (kind, Body::from_stream(stream::iter(events))).into_response();
    match body["model"].as_str().unwrap() {
        "busy" => (StatusCode::SERVICE_UNAVAILABLE, r#"{"error":{"message":"come again"}}"#).into_response(),
        "page" => "<html>please log in</html>".into_response(),
        "no-end" => streamed(vec![token]),
        "error" => streamed(vec![token, event(r#"{"error":{"message":"out of memory"}}"#)]),
        "slow" => std::future::pending().await,
        "key" if header("authorization") != "Bearer sk-secret" => StatusCode::UNAUTHORIZED.into_response(),
        "named"
            if !(header("x-request-id").starts_with("replay-") && header("x-request-id").ends_with("-1")) =>
        {
            StatusCode::BAD_REQUEST.into_response()
        }
        "session" if header("x-session-id") != "s-1" => StatusCode::BAD_REQUEST.into_response(),
        _ => streamed(vec![token, event("[DONE]")]),
    }
}

pub(super) async fn stub() -> String {
    serve(axum::Router::new().fallback(answer)).await.0
}

pub(super) fn bodies(models: &[&str]) -> File {
    let body = |model: &&str| TraceRequest {
        at: Seconds(0.0),
        group: "g".to_owned(),
        body: format!(r#"{{"model":"{model}","messages":[]}}"#),
    };
    File::new(&file::to_lines(&models.iter().map(body).collect::<Vec<_>>()))
}

#[tokio::test]
async fn failures_are_counted_by_kind_and_the_rest_is_told() {
    let trace = bodies(&["good", "busy", "busy", "no-end", "no-end", "error", "slow", "page"]);
    let url = stub().await;
    let found = json(&trace.0, &format!("--url {url} --timeout 1s")).await;
    let lane = &found["lanes"][0];
    let kinds: Vec<(&str, u64, &str)> = lane["failures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            (one["kind"].as_str().unwrap(), one["count"].as_u64().unwrap(), one["first"].as_str().unwrap())
        })
        .collect();
    assert_eq!(kinds.len(), 5, "{kinds:?}");
    let (kind, count, first) = kinds[0];
    assert_eq!((kind, count), ("timeout", 1), "{first}");
    assert_eq!(kinds[1], ("status 503", 2, "status 503 Service Unavailable: come again"));
    assert_eq!((kinds[2].0, kinds[2].1), ("cut off", 2), "without an end");
    assert_eq!(kinds[3], ("error in stream", 1, "the answer says: out of memory"));
    assert_eq!(kinds[4], ("no JSON", 1, "an answer that is neither a stream of events nor JSON"));
    assert_eq!((&lane["failed"], &lane["latency_ms"]["count"]), (&7.into(), &1.into()));
    let (text, _) = replay(&trace.0, &format!("--url {url} --timeout 1s")).await;
    assert!(
        text.contains("2 failed: status 503; the first: status 503 Service Unavailable: come again\n"),
        "{text}"
    );
}

/// Reads a request whole, says that and closes.
async fn says(answer: &'static str) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"}") {
                connection.read_buf(&mut request).await.unwrap();
            }
            connection.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    url
}

#[tokio::test]
async fn answers_that_break_off_and_that_never_begin_are_told_apart() {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-length: 999\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n";
    for (answer, kind) in [(head, "cut off"), ("", "no answer"), ("HTTP/1.1 200", "no answer")] {
        let (text, result) = replay(&bodies(&["m"]).0, &format!("--url {}", says(answer).await)).await;
        assert!(text.contains(&format!("\n1 failed: {kind}; the first: ")) && result.is_err(), "{text}");
    }
}

#[tokio::test]
async fn who_reaches_nobody_has_failed() {
    let (text, result) = replay(&bodies(&["a", "b"]).0, &format!("--url {}", nobody().await)).await;
    assert!(text.contains("2 failed: refused; the first: "), "{text}");
    let error = result.unwrap_err();
    assert!(
        error.to_string().starts_with("none of the 2 requests to 127.0.0.1:") && !error.is_usage(),
        "{error}"
    );
    let flags = format!("--url a={} --url b={}", stub().await, nobody().await);
    let (text, result) = replay(&bodies(&["a"]).0, &flags).await;
    assert_eq!(result.unwrap_err().to_string(), "none of the 2 requests to b was answered", "{text}");
}

/// What had ended is told; the request that is never answered is left, and those behind it are not sent.
#[tokio::test]
async fn an_interrupted_replay_tells_what_it_has() {
    let (interrupt, interrupted) = watch::channel(false);
    let answered = Arc::new(AtomicUsize::new(0));
    let app = axum::Router::new().fallback(async move || {
        if answered.fetch_add(1, Ordering::Relaxed) < 2 {
            return "{}".into_response();
        }
        interrupt.send(true).unwrap();
        std::future::pending().await
    });
    let trace = bodies(&["m"; 5]);
    let words = ["replay", trace.0.to_str().unwrap(), "--url"];
    let url = serve(app).await.0;
    let Command { args } =
        Command::try_parse_from(words.into_iter().chain([&*url, "--clients", "1"])).unwrap();
    let (mut out, router) = (Vec::new(), SmallRouter::default());
    let run = replay::run_until(&args, &router, &mut out, interrupted);
    let result = tokio::time::timeout(DEADLINE, run).await.unwrap();
    assert!(matches!(result, Err(ReplayError::Interrupted)));
    let text = String::from_utf8(out).unwrap();
    assert!(
        text.starts_with("Interrupted: only what had ended by then is counted.\n\n2 requests to "),
        "{text}"
    );
}

/// A page of counters that fall at every look.
async fn restarts(State(looks): State<Arc<AtomicUsize>>) -> String {
    format!("vllm:prefix_cache_queries_total {}\n", 1000 - looks.fetch_add(1, Ordering::Relaxed))
}

#[tokio::test]
async fn servers_that_cannot_be_counted_are_told_and_the_rest_still_counts() {
    let good = fast(16).await;
    let app = axum::Router::new().fallback(restarts).with_state(Arc::default());
    let (other, falling, refusing) = (stub_page("up 1\n").await, serve(app).await.0, nobody().await);
    let flags = format!(
        "--url {} --server good={} --server other={other} --server new={falling} --server gone={refusing}",
        good.url(),
        good.url()
    );
    let (text, result) = replay(&default_trace().0, &format!("{flags} --clients 1")).await;
    assert!(result.is_ok());
    let line =
        |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(
        line("server other: "),
        "server other: found no vllm:prefix_cache_queries_total on its /metrics, wanted an engine that counts its prefix cache"
    );
    assert_eq!(
        line("server new: "),
        "server new: restarted midway: its counters began anew, so what it counted is left out"
    );
    assert!(line("server gone: ").ends_with("Connection refused (os error 111)"), "{text}");
    assert!(line("cached: ").ends_with("76.0 % by the servers"), "{text}");
    assert!(line("good ").trim_end().ends_with("14144"), "{text}");
}

async fn stub_page(page: &'static str) -> String {
    serve(axum::Router::new().fallback(move || async move { page })).await.0
}

/// Behaviour 64: a server that is not listed has counted the rest.
#[tokio::test]
async fn counters_that_never_cover_what_was_sent_are_told() {
    let (served, listed) = (fast(16).await, fast(16).await);
    let flags = format!("--url {} --server {} --server-wait 0s", served.url(), listed.url());
    let (text, result) = replay(&default_trace().0, &flags).await;
    assert!(result.is_ok());
    let want = "after 0ns the servers have counted 0 prompt tokens, wanted the 14144 of the answers";
    assert!(text.contains(want), "{text}");
}

#[tokio::test]
async fn keys_and_sessions_are_sent_and_keys_are_not_told() {
    let key = File::new("sk-secret\n");
    let url = stub().await;
    let (text, result) =
        replay(&bodies(&["key"]).0, &format!("--url {url} --key file:{}", key.0.display())).await;
    assert!(result.is_ok() && !text.contains("secret"), "{text}");
    let (text, _) = replay(&bodies(&["key"]).0, &format!("--url {url}")).await;
    assert!(text.contains("1 failed: status 401"), "{text}");
    let (text, result) = replay(&bodies(&["named"]).0, &format!("--url {url}")).await;
    assert!(result.is_ok() && text.contains("\nx-request-id: replay-"), "{text}");
    let line = r#"{"timestamp":0,"input_length":9,"output_length":7,"hash_ids":[0],"session_id":"s-1"}"#;
    let found = json(&File::new(line).0, &format!("--url {url} --model session")).await;
    let lane = &found["lanes"][0];
    assert_eq!((&lane["failed"], &lane["groups"], &lane["groups_on_one"]), (&0.into(), &1.into(), &1.into()));
}

#[tokio::test]
async fn bad_traces_are_refused_or_skipped() {
    let url = stub().await;
    let good = r#"{"at":0,"group":"g","body":{"model":"m","messages":[]}}"#;
    let trace = File::new(&format!("{good}\n{{\"at\":0,\"group\":\"g\"}}\n{good}\n{good}\n"));
    let (text, result) = replay(&trace.0, &format!("--url {url}")).await;
    let error = result.unwrap_err();
    let want = ":2:20: missing field `body`; --skip-bad leaves it out";
    assert!(error.to_string().ends_with(want) && error.is_usage(), "{error}");
    assert_eq!(text, "");
    let (text, result) = replay(&trace.0, &format!("--url {url} --skip-bad --limit 2")).await;
    assert!(result.is_ok() && text.starts_with("1 bad line left out, the first of them:\n  "), "{text}");
    assert!(text.contains("2 requests to "), "{text}");
    let odd = r#"{"timestamp":0,"input_length":900,"output_length":7,"hash_ids":[0]}"#;
    let (_, result) = replay(&File::new(odd).0, &format!("--url {url} --block-size 16")).await;
    let error = result.unwrap_err().to_string();
    let want =
        "request 1: found 1 hash ids, wanted 57 for 900 tokens in blocks of 16; --skip-bad leaves it out";
    assert!(error.ends_with(want), "{error}");
    let good = r#"{"timestamp":0,"input_length":900,"output_length":7,"hash_ids":[0,1]}"#;
    let trace = File::new(&[good, odd, good].join("\n"));
    let (text, result) = replay(&trace.0, &format!("--url {url} --model m --skip-bad")).await;
    assert!(result.is_ok() && text.contains("\n2 requests to "), "{text}");
    assert!(
        text.contains("  request 2: found 1 hash ids, wanted 2 for 900 tokens in blocks of 512\n"),
        "{text}"
    );
}
