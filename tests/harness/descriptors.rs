//! The test's own descriptors: a storm of clients needs more than a shell allows by default.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard one; panics when that is less than `wanted`.
pub fn need(wanted: u64) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("the system tells");
    assert!(hard >= wanted, "{hard} descriptors, wanted {wanted}: raise the hard limit (ulimit -Hn)");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("up to the hard limit everybody may go");
}
