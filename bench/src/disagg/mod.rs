//! The command `disagg`: what it costs and saves to compute prompts on replicas of their own, and how many of those a traffic needs.
//!
//! Arithmetic on a model's shape, a prompt, GPUs, links and a traffic; nothing is played. Every number comes with its formula
//! ([`Figure`]), and a test evaluates them. The link is the simulator's ([`crate::engine::Link`]). What is left out: the
//! overhead of a request, waits for a lane or a link (`simulate --prefill-replicas` has both), and that computing and decoding
//! slow each other down beside the stall.

mod architectures;
mod args;
mod command;
mod figure;
mod hf_config;
mod keys;
mod parameters;
mod prompt;
mod replica;
mod report;
mod shape;
mod text;
mod traffic;
mod windows;

pub use args::{DisaggArgs, Dtype};
pub use command::{DisaggError, run};
pub use figure::Figure;
pub use hf_config::{ConfigError, Sizes, parse, read};
pub use prompt::{Gpus, LinkCosts, Moved, Prompt};
pub use replica::Capacity;
pub use report::{ModelReport, Question, Report};
pub use shape::{Attention, ModelShape, Preset, Weights, Windowed};
pub use traffic::{Need, Traffic};
