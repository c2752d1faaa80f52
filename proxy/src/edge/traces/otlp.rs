//! Spans by the standard's own client: a queue that drops what does not fit, and a thread that sends batches.
//!
//! The `OTEL_BSP_*` variables and `OTEL_EXPORTER_OTLP_HEADERS` hold, as everywhere; the address is the configuration's. A
//! caller who does not record its part is followed in that; who says nothing is recorded. The span hangs below the
//! caller's; an engine's own hang there too, as its `traceparent` goes on unchanged.

use std::time::Duration;

use opentelemetry::trace::{
    Span, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer,
    TracerProvider,
};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};

use super::TracesError;
use crate::edge::access_log::{Line, Text};
use crate::edge::trace_context::TraceParent;

/// Names the program in its spans.
const SERVICE: &str = "prefixroute";
/// For a batch to be taken.
const EXPORT_WITHIN: Duration = Duration::from_secs(10);

/// Where spans go.
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Traces {
    /// Starts the thread that sends spans to an address, if there is one. Nothing is sent yet: a collector may come later.
    /// Errors: no address for this, or no thread.
    pub(crate) fn start(url: Option<&str>) -> Result<Option<Self>, TracesError> {
        let Some(url) = url else { return Ok(None) };
        if !url.starts_with("http://") {
            return Err(TracesError::NotHttp);
        }
        // The exporter's client is built with TLS where the laboratory's is, and asks for a provider though it speaks none. An error
        // says that there is one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let exporter = SpanExporter::builder().with_http().with_endpoint(url).with_timeout(EXPORT_WITHIN);
        let exporter = exporter.build().map_err(|error| TracesError::Exporter(error.to_string()))?;
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)))
            .with_resource(Resource::builder().with_service_name(SERVICE).build())
            .build();
        let tracer = provider.tracer(SERVICE);
        Ok(Some(Self { provider, tracer }))
    }

    /// Records a request that has ended. Never waits.
    pub(crate) fn record(&self, line: &Line<'_>, parent: Option<TraceParent<'_>>) {
        let builder = self
            .tracer
            .span_builder(line.api.to_owned())
            .with_kind(SpanKind::Server)
            .with_start_time(line.time)
            .with_attributes(attributes(line));
        let mut span = self.tracer.build_with_context(builder, &context(parent));
        if line.trouble.is_some() || line.status >= 500 {
            span.set_status(Status::error(line.trouble.unwrap_or_default().to_owned()));
        }
        span.end_with_timestamp(line.time + line.total_ms.unwrap_or_default());
    }

    /// Sends what waits, for so long at most. Blocks: not for a thread that serves requests.
    pub(crate) fn stop(&self, within: Duration) {
        if let Err(error) = self.provider.shutdown_with_timeout(within) {
            tracing::warn!(%error, "the last spans were not taken");
        }
    }
}

/// The caller's span as the parent, if there is one.
fn context(parent: Option<TraceParent<'_>>) -> Context {
    let parent = parent.and_then(|parent| {
        let trace = TraceId::from_hex(parent.trace_id).ok()?;
        let span = SpanId::from_hex(parent.parent_id).ok()?;
        let flags = TraceFlags::default().with_sampled(parent.sampled);
        Some(SpanContext::new(trace, span, flags, true, TraceState::default()))
    });
    parent.map_or_else(Context::new, |parent| Context::new().with_remote_span_context(parent))
}

/// What the span says, in OpenTelemetry's names where there are some.
fn attributes(line: &Line<'_>) -> Vec<KeyValue> {
    let text = |text: Text<'_>| Value::from(text.shown().into_owned());
    let name = |name: &str| Value::from(name.to_owned());
    let count = |count: u64| Value::from(i64::try_from(count).unwrap_or(i64::MAX));
    let ms = |time: Duration| Value::from(time.as_secs_f64() * 1e3);
    let values = [
        ("http.request.method", Some(text(line.method))),
        ("url.path", Some(text(line.path.path()))),
        ("http.response.status_code", Some(count(line.status.into()))),
        ("client.address", line.client.map(|client| Value::from(client.to_string()))),
        ("user_agent.original", line.user_agent.map(text)),
        ("error.type", line.trouble.map(name)),
        ("gen_ai.request.model", line.model.map(text)),
        ("gen_ai.usage.input_tokens", line.prompt_tokens.map(count)),
        ("prefixroute.cached_tokens", line.cached_tokens.map(count)),
        ("prefixroute.tenant", line.tenant.map(name)),
        ("prefixroute.pool", line.pool.map(name)),
        ("prefixroute.endpoint", line.endpoint.map(name)),
        ("prefixroute.attempts", Some(count(line.attempts.into()))),
        ("prefixroute.matched_blocks", Some(count(line.matched_blocks.into()))),
        ("prefixroute.blocks", Some(count(line.blocks.into()))),
        ("prefixroute.decision_ms", line.decision_us.map(ms)),
        ("prefixroute.ttfb_ms", line.ttfb_ms.map(ms)),
    ];
    values.into_iter().filter_map(|(key, value)| Some(KeyValue::new(key, value?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00f067aa0ba902b7";
    const WITHIN: Duration = Duration::from_secs(10);

    /// Takes one batch; gives its bytes.
    fn collector() -> (String, thread::JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/v1/traces", listener.local_addr().expect("an address"));
        let take = move || {
            let (mut stream, _) = listener.accept().expect("the exporter");
            stream.set_read_timeout(Some(WITHIN)).expect("a deadline");
            let (mut bytes, mut part) = (Vec::new(), [0; 4_096]);
            while !whole(&bytes) {
                let read = stream.read(&mut part).expect("a request");
                assert_ne!(read, 0, "a whole request");
                bytes.extend_from_slice(&part[..read]);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").expect("an answer");
            bytes
        };
        (url, thread::spawn(take))
    }

    fn whole(bytes: &[u8]) -> bool {
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return false };
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        bytes.len() - end - 4 >= length.unwrap_or(0_usize)
    }

    fn holds(bytes: &[u8], part: &[u8]) -> bool {
        bytes.windows(part.len()).any(|window| window == part)
    }

    #[test]
    fn a_request_is_a_span_below_its_callers() {
        let (url, batch) = collector();
        let traces = Traces::start(Some(&url)).expect("a build with spans").expect("an address");
        let line = Line {
            path: Text(b"/v1/chat/completions?key=secret"),
            api: "chat",
            status: 200,
            endpoint: Some("engine-a"),
            ..Line::default()
        };
        traces.record(&line, Some(TraceParent { trace_id: TRACE, parent_id: PARENT, sampled: true }));
        let silent = Line { endpoint: Some("engine-b"), ..line.clone() };
        traces.record(&silent, Some(TraceParent { trace_id: TRACE, parent_id: PARENT, sampled: false }));
        traces.stop(WITHIN);
        let batch = batch.join().expect("a batch");
        let trace = TraceId::from_hex(TRACE).expect("an id").to_bytes();
        let parent = SpanId::from_hex(PARENT).expect("an id").to_bytes();
        for (shows, part, wanted) in [
            ("posts to the address", &b"POST /v1/traces HTTP/1.1"[..], true),
            ("in the caller's trace", &trace[..], true),
            ("below the caller's span", &parent[..], true),
            ("where it went", b"engine-a", true),
            ("the path", b"/v1/chat/completions", true),
            ("no query", b"secret", false),
            ("who is not recorded by its caller is not by us", b"engine-b", false),
        ] {
            assert_eq!(holds(&batch, part), wanted, "{shows}");
        }
    }
}
