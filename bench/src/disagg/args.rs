//! The flags of `disagg`.

use std::path::PathBuf;

use super::hf_config::Sizes;
use super::prompt::{Gpus, Prompt};
use super::report::Question;
use super::shape::Preset;
use super::traffic::Traffic;
use crate::engine::{Link, Seconds};

/// More tokens are no prompt and no answer.
const TOKENS_MAX: u64 = 1_000_000_000;
/// More GPUs or network cards are no replica's.
const REPLICA_PARTS_MAX: u32 = 1_024;
/// What is asked for as more than 0 lies between these, so that nothing that is computed of it is infinite.
const LEAST: f64 = 1e-6;
const MOST: f64 = 1e12;

/// What computing prompts on replicas of their own would cost and save, and how many of them a traffic needs
#[derive(Clone, Debug, clap::Args)]
pub struct DisaggArgs {
    /// A config.json of Hugging Face, or the folder that has it; several are told one after another
    #[arg(value_name = "CONFIG")]
    pub configs: Vec<PathBuf>,
    /// A model that needs no file [default: llama-3.1-8b, unless there is a file]
    #[arg(long, value_name = "NAME", value_enum)]
    pub model: Option<Preset>,
    /// Of the KV cache [default: 16 bit]
    #[arg(long, value_name = "TYPE", value_enum, help_heading = "Model")]
    pub kv_dtype: Option<Dtype>,
    /// Of the weights [default: what the file says]
    #[arg(long, value_name = "TYPE", value_enum, help_heading = "Model")]
    pub weights_dtype: Option<Dtype>,
    /// GB that the weights take, all GPUs together [default: of model.safetensors.index.json beside the file, else estimated]
    #[arg(long, value_name = "GB", allow_negative_numbers = true, help_heading = "Model")]
    pub weights_gb: Option<f64>,

    /// Tokens of a prompt
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        default_value_t = 4000,
        help_heading = "Prompt"
    )]
    pub prompt_tokens: u64,
    /// Of them, cached where it is answered
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        default_value_t = 0,
        help_heading = "Prompt"
    )]
    pub cached_tokens: u64,
    /// The same as a share, 0 to 1
    #[arg(
        long,
        value_name = "F",
        conflicts_with = "cached_tokens",
        allow_negative_numbers = true,
        help_heading = "Prompt"
    )]
    pub hit_rate: Option<f64>,
    /// Uncached tokens that a replica computes per second; measure it, it depends on model and GPUs
    #[arg(
        long,
        value_name = "N",
        default_value_t = 12_000.0,
        allow_negative_numbers = true,
        help_heading = "Prompt"
    )]
    pub prefill_tps: f64,
    /// Tokens computed between two steps of the running answers; 0: whole prompts
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        default_value_t = 0,
        help_heading = "Prompt"
    )]
    pub chunk_tokens: u64,
    /// Uncached tokens from which a prompt is computed apart (llm-d: nonCachedTokens); 0: none is
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        default_value_t = 512,
        help_heading = "Prompt"
    )]
    pub threshold: u64,

    /// GPUs of a replica (tensor parallel); several sizes are told one after another
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1", help_heading = "Replica")]
    pub tp: Vec<u32>,
    /// GB of memory of a GPU
    #[arg(
        long,
        value_name = "GB",
        default_value_t = 80.0,
        allow_negative_numbers = true,
        help_heading = "Replica"
    )]
    pub gpu_gb: f64,
    /// Share of it that the engine takes
    #[arg(
        long,
        value_name = "F",
        default_value_t = 0.9,
        allow_negative_numbers = true,
        help_heading = "Replica"
    )]
    pub gpu_memory_utilization: f64,
    /// Network cards of a replica, which move KV side by side
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Replica")]
    pub nics: u32,
    /// Gigabits per second of each card
    #[arg(
        long,
        value_name = "G,G",
        value_delimiter = ',',
        default_value = "10,25,100,400",
        allow_negative_numbers = true,
        help_heading = "Replica"
    )]
    pub link_gbps: Vec<f64>,
    /// Milliseconds before the first byte arrives
    #[arg(
        long,
        value_name = "MS",
        default_value_t = Link::LATENCY.0 * 1e3,
        allow_negative_numbers = true,
        help_heading = "Replica"
    )]
    pub link_latency_ms: f64,

    /// Requests per second of the whole fleet: tells how many replicas of each kind they need
    #[arg(long, value_name = "R", allow_negative_numbers = true, help_heading = "Traffic")]
    pub rate: Option<f64>,
    /// Tokens of an answer
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        default_value_t = 256,
        help_heading = "Traffic"
    )]
    pub output_tokens: u64,
    /// Tokens of an answer that come per second after its first
    #[arg(
        long,
        value_name = "N",
        default_value_t = 50.0,
        allow_negative_numbers = true,
        help_heading = "Traffic"
    )]
    pub decode_tps: f64,
    /// Answers that a replica decodes side by side at that pace
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        default_value_t = 256,
        help_heading = "Traffic"
    )]
    pub decode_seqs: u64,
    /// Share of a replica's time that is planned for; the rest is for bursts
    #[arg(
        long,
        value_name = "F",
        default_value_t = 0.8,
        allow_negative_numbers = true,
        help_heading = "Traffic"
    )]
    pub utilization: f64,

    /// Print the formula of every number
    #[arg(long, help_heading = "Output")]
    pub explain: bool,
    /// Print JSON in place of tables
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// How a number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Dtype {
    /// 2 bytes.
    Bf16,
    /// 2 bytes.
    Fp16,
    /// 1 byte.
    Fp8,
    /// 1 byte.
    Int8,
    /// Half a byte.
    Fp4,
    /// Half a byte.
    Int4,
}

impl Dtype {
    /// Bytes of a number; the scales of blocks are left out.
    pub fn bytes(self) -> f64 {
        match self {
            Self::Bf16 | Self::Fp16 => 2.0,
            Self::Fp8 | Self::Int8 => 1.0,
            Self::Fp4 | Self::Int4 => 0.5,
        }
    }
}

/// What is wrong with flags, a line for each.
#[derive(Debug, Default)]
struct Faults(Vec<String>);

impl Faults {
    fn add(&mut self, flag: &str, found: impl std::fmt::Display, wanted: impl std::fmt::Display) {
        self.0.push(format!("{flag}: found {found}, wanted {wanted}"));
    }

    fn positive(&mut self, flag: &str, value: f64) -> f64 {
        if value.is_nan() || value <= 0.0 {
            self.add(flag, value, "more than 0");
        } else if !(LEAST..=MOST).contains(&value) {
            self.add(flag, value, format!("{LEAST} to {MOST}"));
        }
        value
    }

    fn share(&mut self, flag: &str, value: f64) -> f64 {
        if !(LEAST..=1.0).contains(&value) {
            self.add(flag, value, "more than 0, 1 at most");
        }
        value
    }

    fn tokens(&mut self, flag: &str, least: u64, value: u64) -> u64 {
        if !(least..=TOKENS_MAX).contains(&value) {
            self.add(flag, value, format!("{least} to {TOKENS_MAX}"));
        }
        value
    }

    fn parts(&mut self, flag: &str, value: u32) -> u32 {
        if !(1..=REPLICA_PARTS_MAX).contains(&value) {
            self.add(flag, value, format!("1 to {REPLICA_PARTS_MAX}"));
        }
        value
    }
}

impl DisaggArgs {
    /// Checks what clap cannot. Errors: all that is wrong, each naming its flag.
    pub fn question(&self) -> Result<Question, Vec<String>> {
        let mut faults = Faults::default();
        let prompt = self.prompt(&mut faults);
        let gpus = self.gpus(&mut faults);
        let links = self.links(&mut faults);
        let traffic = self.traffic(&mut faults);
        if let Some(gb) = self.weights_gb {
            faults.positive("--weights-gb", gb);
        }
        let question = Question { prompt, gpus, links, traffic };
        if faults.0.is_empty() { Ok(question) } else { Err(faults.0) }
    }

    /// What the flags say of the sizes of numbers.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            bytes_per_value: self.kv_dtype.map(Dtype::bytes),
            bytes_per_parameter: self.weights_dtype.map(Dtype::bytes),
            weights_gb: self.weights_gb,
        }
    }

    fn prompt(&self, faults: &mut Faults) -> Prompt {
        let tokens = faults.tokens("--prompt-tokens", 1, self.prompt_tokens);
        if self.cached_tokens > tokens {
            faults.add(
                "--cached-tokens",
                self.cached_tokens,
                format!("at most the {tokens} of --prompt-tokens"),
            );
        }
        let hit_rate = self.hit_rate.inspect(|share| {
            if !(0.0..=1.0).contains(share) {
                faults.add("--hit-rate", share, "0 to 1");
            }
        });
        Prompt {
            tokens,
            cached_tokens: hit_rate.map_or(self.cached_tokens, |share| (tokens as f64 * share) as u64),
            prefill_tokens_per_second: faults.positive("--prefill-tps", self.prefill_tps),
            chunk_tokens: faults.tokens("--chunk-tokens", 0, self.chunk_tokens),
            threshold_tokens: faults.tokens("--threshold", 0, self.threshold),
        }
    }

    fn gpus(&self, faults: &mut Faults) -> Vec<Gpus> {
        let memory_gb = faults.positive("--gpu-gb", self.gpu_gb);
        let memory_share = faults.share("--gpu-memory-utilization", self.gpu_memory_utilization);
        let nics = faults.parts("--nics", self.nics);
        let gpus = |&count| Gpus { count: faults.parts("--tp", count), memory_gb, memory_share, nics };
        self.tp.iter().map(gpus).collect()
    }

    fn links(&self, faults: &mut Faults) -> Vec<Link> {
        let latency = self.link_latency_ms;
        if !(0.0..=MOST).contains(&latency) {
            faults.add("--link-latency-ms", latency, "0 or more");
        }
        let latency = Seconds::from_millis(latency);
        let link = |&gbps| Link { gigabits_per_second: faults.positive("--link-gbps", gbps), latency };
        self.link_gbps.iter().map(link).collect()
    }

    fn traffic(&self, faults: &mut Faults) -> Option<Traffic> {
        let output_tokens = faults.tokens("--output-tokens", 1, self.output_tokens);
        let decode_tokens_per_second = faults.positive("--decode-tps", self.decode_tps);
        let answers_max = faults.tokens("--decode-seqs", 1, self.decode_seqs);
        let planned_share = faults.share("--utilization", self.utilization);
        let requests_per_second = faults.positive("--rate", self.rate?);
        Some(Traffic {
            requests_per_second,
            output_tokens,
            decode_tokens_per_second,
            answers_max,
            planned_share,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: DisaggArgs,
    }

    fn args(flags: &str) -> DisaggArgs {
        let words = ["disagg"].into_iter().chain(flags.split_whitespace());
        Command::try_parse_from(words).unwrap().args
    }

    #[test]
    fn every_flag_is_asked() {
        let flags = "--prompt-tokens 8000 --hit-rate 0.25 --prefill-tps 6000 --chunk-tokens 2048 --threshold 100 --tp 4,8 --gpu-gb 141 \
             --gpu-memory-utilization 0.95 --nics 8 --link-gbps 200,400 --link-latency-ms 0.25 --rate 9 --output-tokens 300 \
             --decode-tps 40 --decode-seqs 64 --utilization 0.7 --kv-dtype fp8 --weights-dtype int4 --weights-gb 35";
        let gpus = |count| Gpus { count, memory_gb: 141.0, memory_share: 0.95, nics: 8 };
        let link = |gigabits_per_second| Link { gigabits_per_second, latency: Seconds(0.00025) };
        let want = Question {
            prompt: Prompt {
                tokens: 8000,
                cached_tokens: 2000,
                prefill_tokens_per_second: 6000.0,
                chunk_tokens: 2048,
                threshold_tokens: 100,
            },
            gpus: vec![gpus(4), gpus(8)],
            links: vec![link(200.0), link(400.0)],
            traffic: Some(Traffic {
                requests_per_second: 9.0,
                output_tokens: 300,
                decode_tokens_per_second: 40.0,
                answers_max: 64,
                planned_share: 0.7,
            }),
        };
        assert_eq!(args(flags).question(), Ok(want));
        let sizes =
            Sizes { bytes_per_value: Some(1.0), bytes_per_parameter: Some(0.5), weights_gb: Some(35.0) };
        assert_eq!(args(flags).sizes(), sizes);
        assert_eq!(args("").question().unwrap().traffic, None);
    }

    #[test]
    fn all_faults_come_at_once() {
        for (flags, want) in [
            (
                "--cached-tokens 4001",
                "--cached-tokens: found 4001, wanted at most the 4000 of --prompt-tokens",
            ),
            ("--prompt-tokens 0", "--prompt-tokens: found 0, wanted 1 to 1000000000"),
            ("--hit-rate 1.5", "--hit-rate: found 1.5, wanted 0 to 1"),
            ("--prefill-tps 0", "--prefill-tps: found 0, wanted more than 0"),
            ("--prefill-tps NaN", "--prefill-tps: found NaN, wanted more than 0"),
            ("--link-gbps 10,-1", "--link-gbps: found -1, wanted more than 0"),
            ("--link-gbps inf", "--link-gbps: found inf, wanted 0.000001 to 1000000000000"),
            ("--link-latency-ms -1", "--link-latency-ms: found -1, wanted 0 or more"),
            ("--tp 8,0", "--tp: found 0, wanted 1 to 1024"),
            ("--nics 0", "--nics: found 0, wanted 1 to 1024"),
            (
                "--gpu-memory-utilization 90",
                "--gpu-memory-utilization: found 90, wanted more than 0, 1 at most",
            ),
            ("--rate 0", "--rate: found 0, wanted more than 0"),
            ("--rate 1 --decode-seqs 0", "--decode-seqs: found 0, wanted 1 to 1000000000"),
            ("--weights-gb 0", "--weights-gb: found 0, wanted more than 0"),
            (
                "--gpu-gb 0 --utilization 0",
                "--gpu-gb: found 0, wanted more than 0\n--utilization: found 0, wanted more than 0, 1 at most",
            ),
        ] {
            assert_eq!(args(flags).question().unwrap_err().join("\n"), want, "{flags}");
        }
        assert!(Command::try_parse_from(["disagg", "--hit-rate", "0.5", "--cached-tokens", "1"]).is_err());
        let negative =
            Command::try_parse_from(["disagg", "--prompt-tokens", "-1"]).map(|_| ()).unwrap_err().to_string();
        assert!(negative.contains("invalid value '-1' for '--prompt-tokens <N>'"), "{negative}");
    }
}
