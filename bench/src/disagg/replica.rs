//! How many tokens of KV cache a replica holds beside the weights: behaviour 57.

use super::figure::{Figure, grouped};
use super::prompt::Gpus;
use super::shape::ModelShape;

/// Room for KV cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Capacity {
    /// Tokens of sequences of the length that was asked for.
    Tokens(u64),
    /// A GPU's part of the weights is larger than what the engine may take of it.
    TooSmall {
        /// Part of the weights, in GB.
        weights_gb: f64,
        /// What the engine may take, in GB.
        allowed_gb: f64,
    },
    /// Nothing tells how large the weights are.
    UnknownWeights,
}

impl Capacity {
    /// Of a replica for sequences of so many tokens, at least 1. The length matters for windowed layers only.
    pub fn of(shape: &ModelShape, gpus: Gpus, sequence_tokens: u64) -> Self {
        let Some(weights) = &shape.weights else { return Self::UnknownWeights };
        let allowed = gpus.memory_gb * gpus.memory_share * 1e9;
        let weights = weights.bytes / f64::from(gpus.count);
        if weights >= allowed {
            return Self::TooSmall { weights_gb: weights / 1e9, allowed_gb: allowed / 1e9 };
        }
        let tokens = (allowed - weights) / gpu_bytes_per_token(shape, gpus, sequence_tokens);
        Self::Tokens(tokens as u64)
    }

    /// The tokens, if there are any.
    pub fn tokens(self) -> Option<u64> {
        match self {
            Self::Tokens(tokens) => Some(tokens),
            Self::TooSmall { .. } | Self::UnknownWeights => None,
        }
    }

    /// In words.
    pub fn describe(self, shape: &ModelShape, gpus: Gpus, sequence_tokens: u64) -> String {
        let Gpus { count, memory_gb, .. } = gpus;
        let size = if count == 1 {
            format!("1 GPU of {memory_gb} GB")
        } else {
            format!("{count} GPUs of {memory_gb} GB")
        };
        let weights_gb = shape.weights.as_ref().map_or(0.0, |weights| weights.bytes / 1e9);
        match self {
            Self::Tokens(tokens) => {
                let sequences = tokens / sequence_tokens.max(1);
                format!(
                    "{size}, {weights_gb:.2} GB of weights: {} tokens of KV, {} sequences of {}",
                    grouped(tokens as f64),
                    grouped(sequences as f64),
                    grouped(sequence_tokens as f64)
                )
            }
            Self::TooSmall { weights_gb, allowed_gb } => format!(
                "{size}: found {weights_gb:.2} GB of weights on each, wanted less than {allowed_gb:.2} GB; give a larger --tp, --gpu-gb or a smaller --weights-dtype"
            ),
            Self::UnknownWeights => {
                format!("{size}: the size of the weights is not known, wanted --weights-gb")
            }
        }
    }

    /// How the tokens come about.
    pub fn figures(self, shape: &ModelShape, gpus: Gpus, sequence_tokens: u64) -> Vec<Figure> {
        let Some(weights) = &shape.weights else { return Vec::new() };
        let mut figures = vec![
            Figure::new("weight_bytes", weights.bytes, "bytes")
                .of("parameters x bytes_per_parameter, or as told")
                .with(weights.source.clone()),
        ];
        let Self::Tokens(tokens) = self else { return figures };
        let each = gpu_bytes_per_token(shape, gpus, sequence_tokens);
        figures.push(
            Figure::new("gpu_bytes_per_token", each, "bytes")
                .of("bytes of the KV of a sequence / sequence_tokens x kv_share_of_gpu")
                .with(format!(
                    "{} / {} x {}",
                    shape.bytes(sequence_tokens.max(1)),
                    sequence_tokens.max(1),
                    shape.share_of_gpu(gpus.count)
                )),
        );
        figures.push(
            Figure::new("replica_kv_tokens", tokens as f64, "tokens")
                .of("floor((gpu_gb x gpu_memory_utilization x 1e9 - weight_bytes / tensor_parallel) / gpu_bytes_per_token)")
                .with(format!(
                    "floor(({} x {} x 1e9 - {} / {}) / {each})",
                    gpus.memory_gb, gpus.memory_share, weights.bytes, gpus.count
                )),
        );
        let sequence_tokens = sequence_tokens.max(1);
        figures.push(
            Figure::new("replica_sequences", (tokens / sequence_tokens) as f64, "")
                .of("floor(replica_kv_tokens / sequence_tokens)")
                .with(format!("floor({tokens} / {sequence_tokens})")),
        );
        figures
    }
}

/// What a token of a sequence of that length takes on each GPU.
fn gpu_bytes_per_token(shape: &ModelShape, gpus: Gpus, sequence_tokens: u64) -> f64 {
    let tokens = sequence_tokens.max(1);
    shape.bytes(tokens) / tokens as f64 * shape.share_of_gpu(gpus.count)
}

#[cfg(test)]
mod tests {
    use super::super::shape::{Attention, Preset, Windowed};
    use super::*;

    const ONE: Gpus = Gpus { count: 1, memory_gb: 80.0, memory_share: 0.9, nics: 1 };

    #[test]
    fn a_replica_holds_what_the_weights_leave() {
        let small = Preset::Llama8b.shape(2.0);
        assert_eq!(Capacity::of(&small, ONE, 4000), Capacity::Tokens(426_788));
        assert_eq!(Capacity::of(&small, ONE, 1), Capacity::Tokens(426_788), "whatever the length");
        let large = Preset::Llama70b.shape(2.0);
        let eight = Gpus { count: 8, ..ONE };
        // (8 x 72 GB - 141.1 GB) / 327,680.
        assert_eq!(Capacity::of(&large, eight, 8000), Capacity::Tokens(1_327_209));
        // With more GPUs than heads, each head is there twice: (16 x 72 - 141.1) / (2 x 327,680).
        let sixteen = Gpus { count: 16, ..ONE };
        assert_eq!(Capacity::of(&large, sixteen, 8000), Capacity::Tokens(1_542_510));
        let latent = ModelShape { attention: Attention::Latent { rank: 512, rope_dim: 64 }, ..large };
        // Each of 8 GPUs holds 80 x 576 x 2 bytes of every token.
        assert_eq!(Capacity::of(&latent, eight, 8000), Capacity::Tokens(589_870));
    }

    #[test]
    fn windows_leave_room_for_more_of_long_sequences() {
        let windowed = Some(Windowed { layers: 16, window_tokens: 1000 });
        let shape = ModelShape { full_layers: 16, windowed, ..Preset::Llama8b.shape(2.0) };
        assert_eq!(Capacity::of(&shape, ONE, 1000), Capacity::Tokens(426_788));
        assert_eq!(Capacity::of(&shape, ONE, 4000), Capacity::Tokens(682_861), "8/5 of that");
    }

    #[test]
    fn what_does_not_fit_says_what_would() {
        let shape = Preset::Llama70b.shape(2.0);
        let capacity = Capacity::of(&shape, ONE, 4000);
        assert_eq!(capacity.tokens(), None);
        let says = capacity.describe(&shape, ONE, 4000);
        assert!(
            says.starts_with("1 GPU of 80 GB: found 141.10 GB of weights on each, wanted less than 72.00 GB"),
            "{says}"
        );
        let unknown = ModelShape { weights: None, ..shape };
        assert_eq!(Capacity::of(&unknown, ONE, 4000), Capacity::UnknownWeights);
    }
}
