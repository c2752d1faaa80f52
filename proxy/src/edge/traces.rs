//! Where spans go: nowhere, in a build without the feature `otlp`.

/// Spans are wanted of a build that has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("traces: found an address for spans, wanted none: this build has no feature otlp")]
pub(crate) struct NoTraces;

/// Whether this build can do what `traces` of the configuration says; asked before anything starts.
pub(crate) fn supported(traces: Option<&str>) -> Result<(), NoTraces> {
    if traces.is_some() && !cfg!(feature = "otlp") { Err(NoTraces) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_spans_refuses_to_pretend() {
        assert_eq!(supported(None), Ok(()));
        let wanted = if cfg!(feature = "otlp") { Ok(()) } else { Err(NoTraces) };
        assert_eq!(supported(Some("http://127.0.0.1:4318/v1/traces")), wanted);
    }
}
