//! The command line of `trace`.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use picker::hash::{BlockSize, BlockSizeError};

use super::shape::{self, Shape, ShapeError, ShapeOptions};
use super::{TraceOptions, TraceOptionsError, file, generate, hashed};

/// Writes a workload: a line of JSON for each request, with its time, its tenant and its body
///
/// With --shape a line has lengths and ids of blocks in place of a body, in Mooncake's form.
///
/// Example: prefixroute trace -o hot.jsonl --requests 200 --rate 40 --hot 0.7
#[derive(Clone, Debug, clap::Args)]
pub struct TraceArgs {
    /// File to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Requests
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub requests: usize,
    /// Requests per second, in Poisson's manner; 0 puts all at time 0
    #[arg(long, value_name = "R", default_value_t = 20.0, allow_negative_numbers = true)]
    pub rate: f64,
    /// A workload of another kind, in Mooncake's form
    #[arg(long, value_name = "NAME", value_enum,
        conflicts_with_all = ["hot", "groups", "prompt_words", "question_words", "model"])]
    pub shape: Option<Shape>,
    /// Tokens in a block of a shape
    #[arg(long, value_name = "N", default_value_t = 64, requires = "shape", allow_negative_numbers = true)]
    pub block_size: i64,
    /// Share of the requests that one hot tenant sends, 0 to 1
    #[arg(long, value_name = "F", default_value_t = 0.0, allow_negative_numbers = true)]
    pub hot: f64,
    /// Tenants, each with a system prompt of its own
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub groups: usize,
    /// Words of a system prompt
    #[arg(long, value_name = "N", default_value_t = 180)]
    pub prompt_words: usize,
    /// Words of a question
    #[arg(long, value_name = "N", default_value_t = 22)]
    pub question_words: usize,
    /// Same seed, same trace
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Model that the requests ask for
    #[arg(long, value_name = "NAME", default_value = "cc-sim")]
    pub model: String,
}

/// Why there is no trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The options.
    #[error("--{0}")]
    Options(#[from] TraceOptionsError),
    /// The options of a shape.
    #[error("--{0}")]
    Shape(#[from] ShapeError),
    /// The size of a shape's blocks.
    #[error("--block-size: {0}")]
    BlockSize(#[from] BlockSizeError),
    /// The file, or standard output.
    #[error("{path}: {source}")]
    Io {
        /// Its name.
        path: String,
        /// The system's reason.
        source: io::Error,
    },
}

impl TraceError {
    /// Whether the operator gave something wrong; else the command failed while it ran.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Options(_) | Self::Shape(_) | Self::BlockSize(_) => true,
            Self::Io { .. } => false,
        }
    }
}

/// Makes the trace and writes it to its file, or to `out`; nothing where the options are wrong.
pub fn run(args: TraceArgs, out: &mut dyn Write) -> Result<(), TraceError> {
    let lines = lines(&args)?;
    let (written, path) = match args.output {
        Some(path) => (fs::write(&path, lines), path.display().to_string()),
        None => (out.write_all(lines.as_bytes()).and_then(|()| out.flush()), "standard output".to_owned()),
    };
    written.map_err(|source| TraceError::Io { path, source })
}

fn lines(args: &TraceArgs) -> Result<String, TraceError> {
    match args.shape {
        Some(shape) => Ok(hashed::to_lines(&shape::generate(&shape_options(args, shape)?)?)),
        None => Ok(file::to_lines(&generate(&options(args))?)),
    }
}

fn options(args: &TraceArgs) -> TraceOptions {
    let TraceArgs { requests, rate, hot, groups, prompt_words, question_words, seed, .. } = *args;
    TraceOptions {
        requests,
        rate,
        groups,
        hot,
        prompt_words,
        question_words,
        model: args.model.clone(),
        seed,
    }
}

fn shape_options(args: &TraceArgs, shape: Shape) -> Result<ShapeOptions, BlockSizeError> {
    let TraceArgs { requests, rate, seed, .. } = *args;
    Ok(ShapeOptions { shape, requests, rate, seed, block_size: BlockSize::new(args.block_size)? })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: TraceArgs,
    }

    fn written(flags: &[&str]) -> Result<String, String> {
        let command = Command::try_parse_from([&["trace"], flags].concat()).unwrap();
        let mut out = Vec::new();
        run(command.args, &mut out).map_err(|error| error.to_string())?;
        Ok(String::from_utf8(out).unwrap())
    }

    /// Behaviours 41 and 43.
    #[test]
    fn no_flags_are_the_default_trace() {
        assert_eq!(written(&[]), Ok(file::to_lines(&generate(&TraceOptions::default()).unwrap())));
    }

    /// Behaviour 42.
    #[test]
    fn every_flag_reaches_the_trace() {
        let flags = "--requests 9 --rate 3 --hot 0.5 --groups 4 --prompt-words 24 --question-words 5 --seed 6 --model m";
        let options = TraceOptions {
            requests: 9,
            rate: 3.0,
            groups: 4,
            hot: 0.5,
            prompt_words: 24,
            question_words: 5,
            model: "m".to_owned(),
            seed: 6,
        };
        let flags: Vec<&str> = flags.split(' ').collect();
        assert_eq!(written(&flags), Ok(file::to_lines(&generate(&options).unwrap())));
    }

    #[test]
    fn a_shape_is_written_in_mooncakes_form() {
        let flags = "--shape rag --requests 9 --rate 3 --seed 6 --block-size 16";
        let options = ShapeOptions {
            shape: Shape::Rag,
            requests: 9,
            rate: 3.0,
            seed: 6,
            block_size: BlockSize::new(16).unwrap(),
        };
        let text = hashed::to_lines(&shape::generate(&options).unwrap());
        assert_eq!(written(&flags.split(' ').collect::<Vec<_>>()), Ok(text));
    }

    #[test]
    fn flags_that_do_not_go_together_are_refused() {
        for flags in [
            ["--shape", "chat", "--hot", "0.5"],
            ["--shape", "chat", "--groups", "8"],
            ["--shape", "chat", "--prompt-words", "8"],
            ["--shape", "chat", "--question-words", "8"],
            ["--shape", "chat", "--model", "m"],
            ["--block-size", "64", "--seed", "1"],
            ["--shape", "tree", "--seed", "1"],
        ] {
            assert!(Command::try_parse_from([&["trace"], &flags[..]].concat()).is_err(), "{flags:?}");
        }
    }

    #[test]
    fn wrong_options_are_named() {
        for (flags, want) in [
            (["--rate", "-1"], "--rate: found -1, wanted 0 or more"),
            (["--hot", "2"], "--hot: found 2, wanted 0 to 1"),
            (["--groups", "0"], "--groups: found 0, wanted at least 1"),
            (["-o", "no/such/place.jsonl"], "no/such/place.jsonl: No such file or directory (os error 2)"),
        ] {
            assert_eq!(written(&flags), Err(want.to_owned()));
        }
        for (flag, want) in [
            (["--rate", "0"], "--rate: found 0, wanted more than 0"),
            (["--block-size", "-1"], "--block-size: block size must be positive, got -1"),
        ] {
            assert_eq!(written(&[&["--shape", "chat"], &flag[..]].concat()), Err(want.to_owned()));
        }
    }
}
