//! The binary `prefixroute`: commands, exit codes, logging.
//!
//! Exit 0: done. 1: failed while running. 2: wrong input or usage; nothing was started.

mod cli;

use std::process::ExitCode;

/// Costs less CPU a request than the system's; the figures are in ARCHITECTURE.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run()
}
