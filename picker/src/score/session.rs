//! `session`: a session stays where it was last sent.

use super::View;

/// 1 for the endpoint that the session was last sent to and 0 for the others; all are left out when it is not among them
/// or the request has no session. Source: llm-d's `session-affinity-scorer`.
pub(super) fn score(view: &View<'_>, scores: &mut [Option<f64>]) {
    let is_last = |id| view.session_at == Some(id);
    if view.candidates.iter().any(|candidate| is_last(candidate.id)) {
        for (score, candidate) in scores.iter_mut().zip(view.candidates) {
            *score = Some(f64::from(u8::from(is_last(candidate.id))));
        }
    }
}
