//! The test's own descriptors: a storm of clients needs more than a shell allows by default.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one; panics when that is less than `wanted`.
pub fn need(wanted: u64) {
    let hard = getrlimit(Resource::Nofile).maximum;
    assert!(
        hard.is_none_or(|hard| hard >= wanted),
        "{hard:?} descriptors, wanted {wanted}: raise the hard limit (ulimit -Hn)"
    );
    let raised = setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard });
    raised.expect("up to the hard limit everybody may go");
}
