//! What browsers are told about who may ask (the Fetch standard's CORS protocol).
//!
//! Where it is configured, the router answers preflights itself: they carry no key, so they need none and reach no engine.
//! Where it is not, they go to an engine like any other request, also without a key, and its answer is the client's. An
//! origin that is not listed gets an answer without permission, which a browser reads as no; nothing here keeps anybody
//! else out.

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use pingora_http::{RequestHeader, ResponseHeader};

/// What a page may read of an answer, beside the headers that it always may.
const EXPOSED: &str = "retry-after, x-request-id, \
    x-prefixroute-endpoint, x-prefixroute-policy, x-prefixroute-match, x-prefixroute-decision-us, \
    x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, \
    x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens";
const METHODS: &str = "GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS";
/// What an answer to a preflight hangs on.
const PREFLIGHT_VARY: &str = "origin, access-control-request-method, access-control-request-headers";
/// All response headers of the protocol; an engine's own are replaced.
const OURS: [HeaderName; 6] = [
    header::ACCESS_CONTROL_ALLOW_ORIGIN,
    header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
    header::ACCESS_CONTROL_ALLOW_HEADERS,
    header::ACCESS_CONTROL_ALLOW_METHODS,
    header::ACCESS_CONTROL_EXPOSE_HEADERS,
    header::ACCESS_CONTROL_MAX_AGE,
];

/// What is configured, ready to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Cors {
    /// `None` for all.
    origins: Option<Vec<String>>,
    /// `None` for those that are asked for.
    headers: Option<HeaderValue>,
    max_age: HeaderValue,
}

/// Whether a request is a browser's question whether it may ask.
pub(crate) fn is_preflight(head: &RequestHeader) -> bool {
    let has = |name: HeaderName| head.headers.contains_key(name);
    head.method == Method::OPTIONS && has(header::ORIGIN) && has(header::ACCESS_CONTROL_REQUEST_METHOD)
}

impl Cors {
    /// What is configured. Header names that HTTP cannot carry are left out.
    pub(crate) fn new(cors: &config::Cors) -> Self {
        let all = cors.origins.iter().any(|origin| origin == "*");
        let listed = HeaderValue::try_from(cors.headers.join(", ")).ok();
        Self {
            origins: (!all).then(|| cors.origins.clone()),
            headers: listed.filter(|_| !cors.headers.is_empty()),
            max_age: cors.max_age.as_secs().into(),
        }
    }

    /// The answer to a preflight: 204 without a body. Errors: pingora's, for a head that cannot be built.
    pub(crate) fn preflight(&self, head: &RequestHeader) -> pingora_core::Result<ResponseHeader> {
        let mut answer = ResponseHeader::build(204, Some(8))?;
        answer.insert_header(header::VARY, PREFLIGHT_VARY)?;
        let Some(origin) = self.allowed(&head.headers) else { return Ok(answer) };
        answer.insert_header(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin)?;
        answer.insert_header(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS)?;
        answer.insert_header(header::ACCESS_CONTROL_MAX_AGE, self.max_age.clone())?;
        let asked = || head.headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
        if let Some(headers) = self.headers.clone().or_else(asked) {
            answer.insert_header(header::ACCESS_CONTROL_ALLOW_HEADERS, headers)?;
        }
        Ok(answer)
    }

    /// Adds what a browser wants to an answer, the router's own errors too, in place of what an engine said of it.
    /// Errors: pingora's, for a header that cannot be set.
    pub(crate) fn amend(&self, request: &HeaderMap, answer: &mut ResponseHeader) -> pingora_core::Result<()> {
        for name in &OURS {
            answer.remove_header(name);
        }
        if self.origins.is_some() && !varies(&answer.headers) {
            answer.append_header(header::VARY, "origin")?;
        }
        if let Some(origin) = self.allowed(request) {
            answer.insert_header(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin)?;
            answer.insert_header(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED)?;
        }
        Ok(())
    }

    /// What an origin is told that it may: itself, or the star where all may.
    fn allowed(&self, request: &HeaderMap) -> Option<HeaderValue> {
        let origin = request.get(header::ORIGIN)?;
        let Some(origins) = &self.origins else { return Some(HeaderValue::from_static("*")) };
        let listed = |known: &String| known.as_bytes().eq_ignore_ascii_case(origin.as_bytes());
        origins.iter().any(listed).then(|| origin.clone())
    }
}

/// Whether an answer says already that it hangs on the origin.
fn varies(answer: &HeaderMap) -> bool {
    let values = answer.get_all(header::VARY).iter().filter_map(|value| value.to_str().ok());
    let mut names = values.flat_map(|value| value.split(',')).map(str::trim);
    names.any(|name| name == "*" || name.eq_ignore_ascii_case("origin"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const APP: (&str, &str) = ("origin", "https://app.example");
    const METHOD: (&str, &str) = ("access-control-request-method", "POST");
    const WANTED: (&str, &str) = ("access-control-request-headers", "authorization,content-type");

    fn cors(origins: &[&str], headers: &[&str]) -> Cors {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        let max_age = Duration::from_secs(600);
        Cors::new(&config::Cors { origins: owned(origins), headers: owned(headers), max_age })
    }

    fn request(method: &str, headers: &[(&'static str, &str)]) -> RequestHeader {
        let mut head = RequestHeader::build(method, b"/v1/chat/completions", None).expect("a head");
        for (name, value) in headers {
            head.append_header(*name, *value).expect("a header");
        }
        head
    }

    fn lines(answer: &ResponseHeader) -> Vec<String> {
        let line = |(name, value): (&HeaderName, &HeaderValue)| {
            let name = name.as_str().trim_start_matches("access-control-");
            format!("{name}: {}", value.to_str().expect("text"))
        };
        let mut lines: Vec<_> = answer.headers.iter().map(line).collect();
        lines.sort();
        lines
    }

    #[test]
    fn a_preflight_is_told_from_other_requests() {
        for (shows, method, headers, wanted) in [
            ("a preflight", "OPTIONS", vec![APP, METHOD], true),
            ("with headers", "OPTIONS", vec![APP, METHOD, WANTED], true),
            ("no origin", "OPTIONS", vec![METHOD], false),
            ("no method", "OPTIONS", vec![APP], false),
            ("another method", "POST", vec![APP, METHOD], false),
        ] {
            assert_eq!(is_preflight(&request(method, &headers)), wanted, "{shows}");
        }
    }

    #[test]
    fn preflights_are_answered_as_configured() {
        let (methods, age) = (format!("allow-methods: {METHODS}"), "max-age: 600".to_owned());
        let vary = format!("vary: {PREFLIGHT_VARY}");
        let yes = |headers: Option<&str>, origin: &str| {
            let headers = headers.map(|headers| format!("allow-headers: {headers}"));
            let origin = format!("allow-origin: {origin}");
            let mut lines = vec![methods.clone(), origin, age.clone(), vary.clone()];
            lines.extend(headers);
            lines.sort();
            lines
        };
        let no = || vec![vary.clone()];
        let (app, asked) = (APP.1, Some(WANTED.1));
        for (shows, cors, headers, wanted) in [
            ("a listed origin", cors(&["https://b", app], &[]), vec![APP, METHOD, WANTED], yes(asked, app)),
            (
                "headers as listed",
                cors(&[app], &["x-a", "x-b"]),
                vec![APP, METHOD, WANTED],
                yes(Some("x-a, x-b"), app),
            ),
            ("no headers wanted", cors(&[app], &[]), vec![APP, METHOD], yes(None, app)),
            ("all origins", cors(&["*"], &[]), vec![APP, METHOD, WANTED], yes(asked, "*")),
            ("another origin", cors(&["https://b"], &[]), vec![APP, METHOD, WANTED], no()),
            ("one that begins so", cors(&["https://app.exam"], &[]), vec![APP, METHOD], no()),
            ("one that is longer", cors(&["https://app.example.org"], &[]), vec![APP, METHOD], no()),
        ] {
            let answer = cors.preflight(&request("OPTIONS", &headers)).expect("an answer");
            assert_eq!(answer.status, 204, "{shows}");
            assert_eq!(lines(&answer), wanted, "{shows}");
        }
    }

    #[test]
    fn pages_may_read_every_rate_limit() {
        let one = std::num::NonZeroU32::new(1);
        let limits = config::TenantLimits {
            requests_per_second: one,
            prompt_tokens_per_minute: one,
            ..config::TenantLimits::default()
        };
        let sent = crate::edge::limits::Limits::after(None, &limits).headers(picker::ledger::Micros(0));
        let exposed: Vec<_> = EXPOSED.split(", ").collect();
        assert_eq!(sent.len(), 6);
        for (name, _) in sent {
            assert!(exposed.contains(&name.as_str()), "{name}");
        }
    }

    #[test]
    fn answers_say_it_once_and_in_our_words() {
        let exposed = format!("expose-headers: {EXPOSED}");
        let allowed = "allow-origin: https://app.example";
        let engines = vec![
            ("access-control-allow-origin", "*"),
            ("Access-Control-Allow-Credentials", "true"),
            ("access-control-expose-headers", "x-engine"),
            ("server", "uvicorn"),
        ];
        let app = APP.1;
        for (shows, cors, asks, engine, wanted) in [
            (
                "a listed origin",
                cors(&[app], &[]),
                vec![APP],
                vec![],
                vec![allowed, &exposed, "vary: origin"],
            ),
            (
                "in place of the engine's",
                cors(&[app], &[]),
                vec![APP],
                engines.clone(),
                vec![allowed, &exposed, "server: uvicorn", "vary: origin"],
            ),
            (
                "all origins do not vary",
                cors(&["*"], &[]),
                vec![APP],
                vec![],
                vec!["allow-origin: *", &exposed],
            ),
            (
                "another origin gets none",
                cors(&["https://b"], &[]),
                vec![APP],
                engines,
                vec!["server: uvicorn", "vary: origin"],
            ),
            ("no browser", cors(&[app], &[]), vec![], vec![], vec!["vary: origin"]),
            (
                "another vary is kept",
                cors(&[app], &[]),
                vec![],
                vec![("vary", "accept-encoding")],
                vec!["vary: accept-encoding", "vary: origin"],
            ),
            (
                "said already",
                cors(&[app], &[]),
                vec![],
                vec![("vary", "accept-encoding, Origin")],
                vec!["vary: accept-encoding, Origin"],
            ),
            ("varies in all", cors(&[app], &[]), vec![], vec![("vary", "*")], vec!["vary: *"]),
        ] {
            let mut answer = ResponseHeader::build(200, None).expect("a head");
            for (name, value) in engine {
                answer.append_header(name, value).expect("a header");
            }
            cors.amend(&request("POST", &asks).headers, &mut answer).expect("headers");
            assert_eq!(lines(&answer), wanted, "{shows}");
        }
    }
}
