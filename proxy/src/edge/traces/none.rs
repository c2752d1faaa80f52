//! A build without spans: there is never a [`Traces`], so nothing can be asked of it.

use std::time::Duration;

use super::TracesError;
use crate::edge::access_log::Line;
use crate::edge::trace_context::TraceParent;

/// What never is.
pub(crate) enum Traces {}

impl Traces {
    /// Refuses a configuration that wants spans.
    pub(crate) fn start(url: Option<&str>) -> Result<Option<Self>, TracesError> {
        if url.is_some() { Err(TracesError::NotBuilt) } else { Ok(None) }
    }

    /// Not to be reached.
    pub(crate) fn record(&self, _: &Line<'_>, _: Option<TraceParent<'_>>) {
        match *self {}
    }

    /// Not to be reached.
    pub(crate) fn stop(&self, _: Duration) {
        match *self {}
    }
}
