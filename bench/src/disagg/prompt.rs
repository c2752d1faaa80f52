//! What computing one prompt apart costs and saves: behaviours 51 to 56.

use serde::Serialize;

use super::figure::{Figure, grouped, short};
use super::shape::ModelShape;
use crate::engine::{Link, Seconds};

/// A prompt, and how replicas take it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prompt {
    /// Its length.
    pub tokens: u64,
    /// Of it, cached where the answer is decoded; never more than `tokens`.
    pub cached_tokens: u64,
    /// Uncached tokens that a replica computes in a second.
    pub prefill_tokens_per_second: f64,
    /// Tokens that are computed between two steps of the running answers; 0: the whole prompt at once.
    pub chunk_tokens: u64,
    /// Uncached tokens from which a prompt is computed apart; 0: none is.
    pub threshold_tokens: u64,
}

impl Prompt {
    /// Tokens that are computed, and of which the KV is moved if they are computed apart.
    pub fn uncached_tokens(&self) -> u64 {
        self.tokens.saturating_sub(self.cached_tokens)
    }

    /// Time to compute them.
    pub fn prefill(&self) -> Seconds {
        Seconds(self.uncached_tokens() as f64 / self.prefill_tokens_per_second)
    }

    /// How long running answers stand still for it at a stretch, where it is computed beside them.
    pub fn stall(&self) -> Seconds {
        match self.chunk_tokens {
            0 => self.prefill(),
            chunk => Seconds(self.uncached_tokens().min(chunk) as f64 / self.prefill_tokens_per_second),
        }
    }

    /// Whether it is computed apart.
    pub fn is_remote(&self) -> bool {
        self.threshold_tokens > 0 && self.uncached_tokens() >= self.threshold_tokens
    }

    /// Where it is computed, and why, in words.
    pub fn describe_decision(&self) -> String {
        let count = |tokens: u64| grouped(tokens as f64);
        let (uncached, threshold) = (count(self.uncached_tokens()), count(self.threshold_tokens));
        match (self.is_remote(), self.threshold_tokens) {
            (true, _) => format!("remote prefill: {uncached} uncached tokens, threshold {threshold}"),
            (false, 0) => "local prefill: threshold 0 turns remote prefill off".to_owned(),
            (false, _) => {
                format!("local prefill: {uncached} uncached tokens are below the threshold of {threshold}")
            }
        }
    }

    /// How its figures come about.
    pub fn figures(&self) -> Vec<Figure> {
        let (uncached, rate) = (self.uncached_tokens(), self.prefill_tokens_per_second);
        let stall = Figure::new("stall_ms", self.stall().millis(), "ms");
        vec![
            Figure::new("uncached_tokens", uncached as f64, "tokens")
                .of("prompt_tokens - cached_tokens")
                .with(format!("{} - {}", self.tokens, self.cached_tokens)),
            Figure::new("prefill_ms", self.prefill().millis(), "ms")
                .of("uncached_tokens / prefill_tps x 1000")
                .with(format!("{uncached} / {rate} x 1000")),
            match self.chunk_tokens {
                0 => stall.of("prefill_ms").with(short(self.prefill().millis())),
                chunk => stall
                    .of("min(uncached_tokens, chunk_tokens) / prefill_tps x 1000")
                    .with(format!("min({uncached}, {chunk}) / {rate} x 1000")),
            },
        ]
    }
}

/// The GPUs of a replica, in one tensor-parallel group, and its network cards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpus {
    /// How many; at least 1.
    pub count: u32,
    /// Memory of each, in GB of 10^9 bytes.
    pub memory_gb: f64,
    /// Share of that memory which the engine takes.
    pub memory_share: f64,
    /// Network cards that move a replica's KV side by side; at least 1.
    pub nics: u32,
}

/// The KV cache of a prompt that is computed apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Moved {
    /// Of the uncached tokens.
    pub kv_bytes: f64,
    /// What each GPU holds of it.
    pub gpu_bytes: f64,
    /// What goes over the network: what all GPUs hold. More than `kv_bytes` where GPUs hold copies.
    pub moved_bytes: f64,
    /// Gigabits in a second that a busy prefill replica makes.
    pub production_gbps: f64,
}

impl Moved {
    /// Of a prompt on such a model and GPUs.
    pub fn of(prompt: &Prompt, shape: &ModelShape, gpus: Gpus) -> Self {
        let kv_bytes = shape.bytes(prompt.uncached_tokens());
        let gpu_bytes = kv_bytes * shape.share_of_gpu(gpus.count);
        let moved_bytes = gpu_bytes * f64::from(gpus.count);
        let production_gbps = Self::bytes_per_token(prompt, shape)
            * shape.share_of_gpu(gpus.count)
            * f64::from(gpus.count)
            * prompt.prefill_tokens_per_second
            * 8.0
            / 1e9;
        Self { kv_bytes, gpu_bytes, moved_bytes, production_gbps }
    }

    /// Of the mean uncached token; of any, where there is none.
    fn bytes_per_token(prompt: &Prompt, shape: &ModelShape) -> f64 {
        match (prompt.uncached_tokens(), shape.windowed) {
            (0, _) | (_, None) => shape.bytes_per_token(),
            (tokens, Some(_)) => shape.bytes(tokens) / tokens as f64,
        }
    }

    /// How its figures come about.
    pub fn figures(&self, prompt: &Prompt, shape: &ModelShape, gpus: Gpus) -> Vec<Figure> {
        let (share, count) = (shape.share_of_gpu(gpus.count), gpus.count);
        let whole = shape.windowed.is_none() || prompt.uncached_tokens() == 0;
        let each = if whole { "kv_bytes_per_token" } else { "kv_bytes / uncached_tokens" };
        let each_number = match whole {
            true => short(shape.bytes_per_token()),
            false => format!("{} / {}", self.kv_bytes, prompt.uncached_tokens()),
        };
        let rate = prompt.prefill_tokens_per_second;
        vec![
            shape.bytes_figure("kv_bytes", "uncached_tokens", prompt.uncached_tokens()),
            shape.share_figure(count),
            Figure::new("gpu_bytes", self.gpu_bytes, "bytes")
                .of("kv_bytes x kv_share_of_gpu")
                .with(format!("{} x {share}", self.kv_bytes)),
            Figure::new("moved_bytes", self.moved_bytes, "bytes")
                .of("gpu_bytes x tensor_parallel")
                .with(format!("{} x {count}", self.gpu_bytes)),
            Figure::new("production_gbps", self.production_gbps, "Gb/s")
                .of(format!("{each} x kv_share_of_gpu x tensor_parallel x prefill_tps x 8 / 1e9"))
                .with(format!("{each_number} x {share} x {count} x {rate} x 8 / 1e9")),
        ]
    }
}

/// What a link makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LinkCosts {
    /// Gigabits in a second of each network card.
    pub gbps: f64,
    /// Time to move the KV.
    pub transfer_ms: f64,
    /// To the first token where the prompt is computed where it is answered.
    pub ttft_local_ms: f64,
    /// To the first token where it is computed, then moved.
    pub ttft_remote_ms: f64,
    /// The same where each layer is moved while the next ones are computed.
    pub ttft_layerwise_ms: f64,
    /// Whether the link carries what a busy prefill replica makes.
    pub keeps_up: bool,
}

impl LinkCosts {
    /// Of a prompt over such a link; `layers` is how many pieces the KV comes in, layer by layer.
    pub fn of(prompt: &Prompt, moved: &Moved, link: Link, gpus: Gpus, layers: u32) -> Self {
        let all = Link { gigabits_per_second: link.gigabits_per_second * f64::from(gpus.nics), ..link };
        let (prefill, wire) = (prompt.prefill(), all.wire(moved.moved_bytes));
        Self {
            gbps: link.gigabits_per_second,
            transfer_ms: all.transfer(moved.moved_bytes).millis(),
            ttft_local_ms: prefill.millis(),
            ttft_remote_ms: (prefill + all.transfer(moved.moved_bytes)).millis(),
            ttft_layerwise_ms: (all.latency + layerwise(prefill, wire, layers)).millis(),
            keeps_up: all.gigabits_per_second >= moved.production_gbps,
        }
    }

    /// How its figures come about.
    pub fn figures(
        &self,
        prompt: &Prompt,
        moved: &Moved,
        link: Link,
        gpus: Gpus,
        layers: u32,
    ) -> Vec<Figure> {
        let (gbps, latency, nics) = (link.gigabits_per_second, link.latency.millis(), gpus.nics);
        let prefill = prompt.prefill().millis();
        let (bytes, wire) = (moved.moved_bytes, self.transfer_ms - latency);
        let (whole, part) = (short(prefill), short(wire));
        vec![
            Figure::new("link_total_gbps", gbps * f64::from(nics), "Gb/s")
                .of("link_gbps x nics, which keeps up from production_gbps on")
                .with(format!("{gbps} x {nics}")),
            Figure::new("transfer_ms", self.transfer_ms, "ms")
                .of("link_latency_ms + moved_bytes x 8 / (link_gbps x nics x 1e9) x 1000")
                .with(format!("{} + {bytes} x 8 / ({gbps} x {nics} x 1e9) x 1000", short(latency))),
            Figure::new("ttft_remote_ms", self.ttft_remote_ms, "ms")
                .of("prefill_ms + transfer_ms")
                .with(format!("{whole} + {}", short(self.transfer_ms))),
            Figure::new("ttft_layerwise_ms", self.ttft_layerwise_ms, "ms")
                .of("link_latency_ms + max(prefill_ms + wire_ms / layers, prefill_ms / layers + wire_ms), wire_ms = transfer_ms - link_latency_ms")
                .with(format!(
                    "{} + max({whole} + {part} / {layers}, {whole} / {layers} + {part})",
                    short(latency)
                )),
        ]
    }
}

/// Computing and moving as a pipeline of two stages with `layers` equal pieces: the slower stage works without a pause, and the other's
/// one piece comes before it or after it.
fn layerwise(prefill: Seconds, wire: Seconds, layers: u32) -> Seconds {
    let pieces = f64::from(layers.max(1));
    Seconds((prefill.0 + wire.0 / pieces).max(prefill.0 / pieces + wire.0))
}

#[cfg(test)]
mod tests {
    use super::super::shape::{Attention, Preset, Windowed};
    use super::*;

    fn prompt(tokens: u64, cached_tokens: u64) -> Prompt {
        Prompt {
            tokens,
            cached_tokens,
            prefill_tokens_per_second: 12_000.0,
            chunk_tokens: 0,
            threshold_tokens: 512,
        }
    }

    const ONE: Gpus = Gpus { count: 1, memory_gb: 80.0, memory_share: 0.9, nics: 1 };

    /// Behaviour 54.
    #[test]
    fn a_prompt_goes_apart_from_the_threshold_on() {
        for (uncached, threshold_tokens, want) in
            [(512, 512, true), (511, 512, false), (4000, 0, false), (0, 1, false), (1, 1, true)]
        {
            let prompt = Prompt { threshold_tokens, ..prompt(4000, 4000 - uncached) };
            assert_eq!(prompt.is_remote(), want, "{uncached} of {threshold_tokens}");
            let says = if want { "remote" } else { "local" };
            assert!(prompt.describe_decision().starts_with(says), "{}", prompt.describe_decision());
        }
    }

    /// Behaviour 53.
    #[test]
    fn a_chunk_bounds_the_stall() {
        let stall = |uncached: u64, chunk_tokens: u64| {
            Prompt { chunk_tokens, ..prompt(4000, 4000 - uncached) }.stall().millis().round()
        };
        assert_eq!((stall(4000, 0), stall(4000, 512), stall(240, 512)), (333.0, 43.0, 20.0));
    }

    #[test]
    fn layers_on_their_way_hide_the_shorter_of_the_two() {
        let whole = |prefill, wire, layers| layerwise(Seconds(prefill), Seconds(wire), layers).0;
        assert_eq!(whole(8.0, 4.0, 4), 9.0, "the last layer's way is left");
        assert_eq!(whole(4.0, 8.0, 4), 9.0, "the first layer's computing is left");
        assert_eq!((whole(4.0, 8.0, 1), whole(0.0, 0.0, 4)), (12.0, 0.0), "one piece hides nothing");
    }

    #[test]
    fn copies_are_moved_once_for_each_gpu() {
        let shape = ModelShape {
            attention: Attention::Latent { rank: 512, rope_dim: 64 },
            ..Preset::Llama8b.shape(2.0)
        };
        let moved = Moved::of(&prompt(4000, 0), &shape, Gpus { count: 8, ..ONE });
        assert_eq!((moved.gpu_bytes, moved.moved_bytes), (moved.kv_bytes, 8.0 * moved.kv_bytes));
        let moved = Moved::of(&prompt(4000, 0), &Preset::Llama8b.shape(2.0), Gpus { count: 8, ..ONE });
        assert_eq!((moved.gpu_bytes * 8.0, moved.moved_bytes), (moved.kv_bytes, moved.kv_bytes));
    }

    #[test]
    fn a_window_makes_less_to_move() {
        let windowed = Some(Windowed { layers: 16, window_tokens: 1000 });
        let shape = ModelShape { full_layers: 16, windowed, ..Preset::Llama8b.shape(2.0) };
        let moved = Moved::of(&prompt(4000, 0), &shape, ONE);
        assert_eq!(moved.kv_bytes, 131_072.0 / 2.0 * 5000.0);
        assert!((moved.production_gbps - 12.582_912 * 5.0 / 8.0).abs() < 1e-9, "{moved:?}");
        let nothing = Moved::of(&prompt(4000, 4000), &shape, ONE);
        assert_eq!((nothing.moved_bytes, nothing.production_gbps), (0.0, 12.582_912));
    }

    #[test]
    fn cards_share_what_is_moved() {
        let moved = Moved::of(&prompt(4000, 0), &Preset::Llama8b.shape(2.0), ONE);
        let over = |nics, gigabits_per_second| {
            let link = Link { gigabits_per_second, latency: Seconds(0.0) };
            LinkCosts::of(&prompt(4000, 0), &moved, link, Gpus { nics, ..ONE }, 32)
        };
        let (one, four) = (over(1, 10.0), over(4, 10.0));
        assert!((one.transfer_ms - 4.0 * four.transfer_ms).abs() < 1e-9);
        assert_eq!((one.keeps_up, four.keeps_up, over(1, 12.582_912).keeps_up), (false, true, true));
    }
}
