//! Spans over OTLP/HTTP, one for each request, in a build with the feature `otlp`.
//!
//! Both builds have the same [`Traces`], so that nobody else asks which one it is. Without the feature there is none, and a
//! configuration that wants one is refused before anything starts.

#[cfg(not(feature = "otlp"))]
mod none;
#[cfg(feature = "otlp")]
mod otlp;

#[cfg(not(feature = "otlp"))]
pub(crate) use none::Traces;
#[cfg(feature = "otlp")]
pub(crate) use otlp::Traces;

/// Why there are no spans. The address is not repeated: it may hold a key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TracesError {
    /// This build cannot.
    #[cfg(not(feature = "otlp"))]
    #[error("traces: found an address for spans, wanted none: this build has no feature otlp")]
    NotBuilt,
    /// The exporter has no TLS.
    #[cfg(feature = "otlp")]
    #[error(
        "traces: found an address that is not http, wanted http://HOST:PORT/v1/traces of a collector nearby"
    )]
    NotHttp,
    /// The exporter cannot be had.
    #[cfg(feature = "otlp")]
    #[error("traces: {0}")]
    Exporter(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_started_for_nothing() {
        assert!(matches!(Traces::start(None), Ok(None)));
    }

    #[test]
    fn what_cannot_be_done_is_refused_at_the_start() {
        let refused = |url| Traces::start(Some(url)).err().map(|error| error.to_string()).unwrap_or_default();
        let refused = [refused("https://key@collector/v1/traces"), refused("grpc://key@collector")];
        let wanted = if cfg!(feature = "otlp") { "not http" } else { "no feature otlp" };
        for text in refused {
            assert!(text.contains(wanted) && !text.contains("key"), "{text}");
        }
    }
}
