//! From a request's bytes to a choice of endpoint.
//!
//! The modules stand in the order in which a request meets them: [`read`] finds the members of the JSON body
//! as spans, [`identity`] seeds the hash chain, [`canonical`] renders what the engine's template would see,
//! [`tokens`] cuts that into blocks and [`hash`] chains them ([`memo`] spares all this where it can), [`belief`] says
//! who holds how much and [`sessions`] where a session was, [`load`] is what the engines last reported, [`score`] weighs,
//! [`policy`] ranks (both by the constants of [`tuning`]), [`columns`] says why and [`mod@decide`] is the one function that does it all.
//!
//! Everything here is a pure function of its arguments and of one shared [`belief::Index`]; the memo changes only how
//! long it takes. Never here: sockets, clocks, async, logs.

pub mod belief;
pub mod canonical;
pub mod chance;
pub mod columns;
pub mod decide;
pub mod hash;
pub mod identity;
pub mod ledger;
pub mod load;
pub mod memo;
pub mod pace;
pub mod policy;
pub mod read;
pub mod score;
pub mod sessions;
pub mod tokens;
pub mod traffic;
pub mod tuning;

pub use decide::{Ask, Decision, Refusal, Rules, decide, decide_recalling};
pub use tuning::Tuning;
