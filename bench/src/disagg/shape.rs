//! What of a model decides how large its KV cache is: layers, heads, windows, and bytes of a value.

use super::figure::Figure;

/// A model, as far as KV cache and memory go.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    /// As the operator knows it: a preset's name, or the file it was read from.
    pub name: String,
    /// Layers that keep the KV of every token.
    pub full_layers: u32,
    /// Layers that keep the KV of the last tokens only.
    pub windowed: Option<Windowed>,
    /// What a layer keeps of a token.
    pub attention: Attention,
    /// Heads that ask; `None` where the file does not say.
    pub heads: Option<u32>,
    /// Bytes of a value of the KV cache: 2 of bf16, 1 of fp8.
    pub bytes_per_value: f64,
    /// Bytes that the weights take, all GPUs together; `None` where nothing tells.
    pub weights: Option<Weights>,
    /// What the reader should know of how the shape was had, a line each.
    pub notes: Vec<String>,
}

/// What a layer keeps of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// Keys and values of so many heads (multi-head, grouped-query, multi-query).
    Heads {
        /// Heads with keys and values of their own.
        kv_heads: u32,
        /// Values of a key, and of a value.
        head_dim: u32,
    },
    /// One compressed vector for all heads, and the part of the key that is rotated (DeepSeek's MLA).
    Latent {
        /// `kv_lora_rank`.
        rank: u32,
        /// `qk_rope_head_dim`.
        rope_dim: u32,
    },
}

/// Layers that look back over a window only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windowed {
    /// How many.
    pub layers: u32,
    /// How far back, in tokens.
    pub window_tokens: u32,
}

/// Bytes of a model's weights, and how they are known.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// Of all GPUs together.
    pub bytes: f64,
    /// The formula, in words or numbers.
    pub source: String,
}

/// A model that needs no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Preset {
    /// 32 layers, 8 KV heads of 128, 8.03 billion parameters.
    #[value(name = "llama-3.1-8b")]
    Llama8b,
    /// 80 layers, 8 KV heads of 128, 70.55 billion parameters.
    #[value(name = "llama-3.1-70b")]
    Llama70b,
}

impl Preset {
    /// Its shape in 16 bit, with weights of `bytes_per_parameter`.
    pub fn shape(self, bytes_per_parameter: f64) -> ModelShape {
        let (name, full_layers, heads, billions) = match self {
            Self::Llama8b => ("llama-3.1-8b", 32, 32, 8.03),
            Self::Llama70b => ("llama-3.1-70b", 80, 64, 70.55),
        };
        let source = format!("{billions} x {bytes_per_parameter} x 1e9");
        ModelShape {
            name: name.to_owned(),
            full_layers,
            windowed: None,
            attention: Attention::Heads { kv_heads: 8, head_dim: 128 },
            heads: Some(heads),
            bytes_per_value: 2.0,
            weights: Some(Weights { bytes: (billions * bytes_per_parameter * 1e9).round(), source }),
            notes: Vec::new(),
        }
    }
}

impl ModelShape {
    /// Layers that keep anything.
    pub fn layers(&self) -> u32 {
        self.full_layers + self.windowed.map_or(0, |windowed| windowed.layers)
    }

    /// Bytes that a token takes while it is in every layer's window.
    pub fn bytes_per_token(&self) -> f64 {
        f64::from(self.layers()) * self.bytes_per_token_and_layer()
    }

    /// Bytes that the last `tokens` of a sequence take: of a windowed layer those of its window at most.
    pub fn bytes(&self, tokens: u64) -> f64 {
        let (full, windowed) = (f64::from(self.full_layers) * tokens as f64, self.windowed);
        let windowed = windowed.map_or(0.0, |Windowed { layers, window_tokens }| {
            f64::from(layers) * tokens.min(u64::from(window_tokens)) as f64
        });
        (full + windowed) * self.bytes_per_token_and_layer()
    }

    /// The share of the cache that each of `gpus` holds. Heads are spread over them, and copied where there are fewer heads
    /// than GPUs; a latent vector belongs to all heads, so every GPU has the whole. As vLLM's tensor parallelism does.
    pub fn share_of_gpu(&self, gpus: u32) -> f64 {
        match self.attention {
            Attention::Heads { kv_heads, .. } => {
                f64::from(kv_heads.div_ceil(gpus.max(1))) / f64::from(kv_heads)
            }
            Attention::Latent { .. } => 1.0,
        }
    }

    /// Why no engine runs it on so many GPUs, as vLLM says it (`config/model.py`, `verify_with_parallel_config`).
    pub fn refusal(&self, gpus: u32) -> Option<String> {
        let heads = self.heads.filter(|heads| heads % gpus.max(1) != 0)?;
        Some(format!("--tp: found {gpus}, wanted a divisor of the model's {heads} attention heads"))
    }

    fn bytes_per_token_and_layer(&self) -> f64 {
        let values = match self.attention {
            Attention::Heads { kv_heads, head_dim } => 2.0 * f64::from(kv_heads) * f64::from(head_dim),
            Attention::Latent { rank, rope_dim } => f64::from(rank) + f64::from(rope_dim),
        };
        values * self.bytes_per_value
    }

    /// The shape in words.
    pub fn describe(&self) -> String {
        let layers = match self.windowed {
            None => format!("{} layers", self.full_layers),
            Some(Windowed { layers, window_tokens }) => format!(
                "{} layers, {layers} of them with a window of {window_tokens} tokens",
                self.full_layers + layers
            ),
        };
        let kept = match self.attention {
            Attention::Heads { kv_heads, head_dim } => format!("{kv_heads} KV heads of {head_dim}"),
            Attention::Latent { rank, rope_dim } => format!("a latent vector of {rank} + {rope_dim} (MLA)"),
        };
        let unit = if self.bytes_per_value == 1.0 { "byte" } else { "bytes" };
        format!("{layers}, {kept}, {} {unit} a value", self.bytes_per_value)
    }

    /// What a layer keeps of a token, as a product of numbers.
    fn values_symbols(&self) -> (&'static str, String) {
        match self.attention {
            Attention::Heads { kv_heads, head_dim } => {
                ("2 x kv_heads x head_dim", format!("2 x {kv_heads} x {head_dim}"))
            }
            Attention::Latent { rank, rope_dim } => {
                ("(kv_lora_rank + qk_rope_head_dim)", format!("({rank} + {rope_dim})"))
            }
        }
    }

    /// How the bytes of a token come about.
    pub fn figure(&self) -> Figure {
        let (symbols, numbers) = self.values_symbols();
        Figure::new("kv_bytes_per_token", self.bytes_per_token(), "bytes")
            .of(format!("layers x {symbols} x bytes_per_value"))
            .with(format!("{} x {numbers} x {}", self.layers(), self.bytes_per_value))
    }

    /// How the bytes of the last `tokens` come about; `name` and `count` are what they and their number are called.
    pub fn bytes_figure(&self, name: &'static str, count: &str, tokens: u64) -> Figure {
        let figure = Figure::new(name, self.bytes(tokens), "bytes");
        let Some(Windowed { layers, window_tokens }) = self.windowed else {
            return figure
                .of(format!("{count} x kv_bytes_per_token"))
                .with(format!("{tokens} x {}", self.bytes_per_token()));
        };
        let (symbols, numbers) = self.values_symbols();
        figure
            .of(format!("(full_layers x {count} + windowed_layers x min({count}, window)) x {symbols} x bytes_per_value"))
            .with(format!(
                "({} x {tokens} + {layers} x min({tokens}, {window_tokens})) x {numbers} x {}",
                self.full_layers, self.bytes_per_value
            ))
    }

    /// How the share of a GPU comes about.
    pub fn share_figure(&self, gpus: u32) -> Figure {
        let figure = Figure::new("kv_share_of_gpu", self.share_of_gpu(gpus), "");
        match self.attention {
            Attention::Heads { kv_heads, .. } => figure
                .of("ceil(kv_heads / tensor_parallel) / kv_heads")
                .with(format!("ceil({kv_heads} / {gpus}) / {kv_heads}")),
            Attention::Latent { .. } => figure.of("1, for a latent vector is on every GPU").with("1"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(attention: Attention) -> ModelShape {
        ModelShape { attention, ..Preset::Llama70b.shape(2.0) }
    }

    /// Behaviour 51, and the second shape of the lessons.
    #[test]
    fn a_token_takes_keys_and_values_of_every_layer() {
        assert_eq!(Preset::Llama8b.shape(2.0).bytes_per_token(), 131_072.0);
        assert_eq!(Preset::Llama70b.shape(2.0).bytes_per_token(), 327_680.0);
        let eight_bit = ModelShape { bytes_per_value: 1.0, ..Preset::Llama70b.shape(2.0) };
        assert_eq!(eight_bit.bytes_per_token(), 163_840.0);
        // DeepSeek-V3: 61 layers of 512 + 64 values in 16 bit.
        let latent = ModelShape { full_layers: 61, ..shape(Attention::Latent { rank: 512, rope_dim: 64 }) };
        assert_eq!(latent.bytes_per_token(), 70_272.0);
    }

    #[test]
    fn a_window_keeps_the_last_tokens_only() {
        let windowed = Some(Windowed { layers: 10, window_tokens: 100 });
        let shape = ModelShape { full_layers: 2, windowed, ..Preset::Llama8b.shape(2.0) };
        let layer = 2.0 * 8.0 * 128.0 * 2.0;
        for (tokens, want) in [(0, 0.0), (1, 12.0), (100, 1200.0), (101, 1202.0), (1000, 3000.0)] {
            assert_eq!(shape.bytes(tokens), want * layer, "{tokens} tokens");
        }
        assert_eq!((shape.layers(), shape.bytes_per_token()), (12, 12.0 * layer));
    }

    #[test]
    fn heads_are_spread_and_latent_vectors_copied() {
        let heads = |kv_heads| Attention::Heads { kv_heads, head_dim: 128 };
        let latent = Attention::Latent { rank: 512, rope_dim: 64 };
        for (attention, gpus, want) in [
            (heads(8), 1, 1.0),
            (heads(8), 8, 0.125),
            (heads(8), 16, 0.125),
            (heads(8), 3, 0.375),
            (latent, 8, 1.0),
        ] {
            assert_eq!(shape(attention).share_of_gpu(gpus), want, "{attention:?} on {gpus}");
        }
    }
}
