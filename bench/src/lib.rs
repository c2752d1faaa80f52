//! Everything that makes or measures load, so that the router's gain can be shown without a GPU.
//!
//! [`engine`] is the one model of a replica; [`fake_server`] gives it vLLM's HTTP face. [`prompt`] reads
//! bodies as that engine does. [`mod@trace`] generates workloads, [`replay`] sends them and records what came
//! back, [`decisions`] reads what the router wrote of its own, and [`demo`] plays them through a real router that its
//! caller hands in: this crate does not know the proxy. [`simulate`] plays them on a virtual clock, [`tune`] looks for
//! weights there, and [`review`] reads what replicas count and says what to change first. [`demo3`] is a workload with
//! published figures. [`disagg`] computes what prefill apart from decode would bring. [`content`] is what the benches
//! measure on.

mod address;
pub mod content;
pub mod decisions;
pub mod demo;
pub mod demo3;
pub mod disagg;
pub mod engine;
pub mod fake_server;
pub mod prometheus;
pub mod prompt;
pub mod replay;
pub mod review;
pub mod simulate;
mod table;
pub mod trace;
pub mod tune;
