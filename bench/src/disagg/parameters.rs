//! About how many parameters a model of such a `config.json` has.
//!
//! The file does not say it. Counted are the embeddings, and of every layer attention and feed-forward; norms and biases are not, nor
//! what stands beside the decoder. Of the models that `tests/disagg/configs.rs` lists it is within two percent. A feed-forward of two
//! matrices that is not listed here is taken for one of three, and a model comes out up to 40 percent too large.

use serde_json::Value;

use super::keys::Keys;
use super::shape::Attention;

/// A number of parameters and the sum that it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Estimate {
    pub(super) count: f64,
    pub(super) formula: String,
}

/// Whose feed-forward has two matrices; that of others has three, one of them a gate.
const WITHOUT_GATE: [&str; 17] = [
    "arcee",
    "bloom",
    "codegen",
    "falcon",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "mpt",
    "nemotron",
    "opt",
    "persimmon",
    "phi",
    "RefinedWeb",
    "RefinedWebModel",
    "starcoder2",
];

/// Estimates; `None` where the file lacks a width.
pub(super) fn estimate(keys: &mut Keys<'_>, attention: Attention) -> Option<Estimate> {
    let layers = keys.count(&["num_hidden_layers", "n_layer", "n_layers", "num_layers"])?;
    let width = f64::from(keys.count(&["hidden_size", "n_embd", "d_model"])?);
    let words = f64::from(keys.count(&["vocab_size"])?);
    let tied = keys.anywhere("tie_word_embeddings").and_then(Value::as_bool);
    let tied =
        tied.unwrap_or_else(|| ["gemma", "gpt2"].iter().any(|kind| keys.model_type().starts_with(kind)));
    let embeddings = words * width * if tied { 1.0 } else { 2.0 };
    let attention = projections(keys, attention, width)?;
    let matrices = if WITHOUT_GATE.contains(&keys.model_type()) { 2.0 } else { 3.0 };
    let inner = keys.count(&["intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"]).map(f64::from);
    // Llama 4 has a width of its own for layers without experts.
    let of_dense = keys.count(&["intermediate_size_mlp"]).map(f64::from).or(inner);
    let dense = matrices * width * of_dense.unwrap_or(4.0 * width);
    let Some(experts) = experts(keys, width, matrices, inner) else {
        let formula = format!("{embeddings} + {layers} x ({attention} + {dense})");
        return Some(Estimate { count: embeddings + f64::from(layers) * (attention + dense), formula });
    };
    let first = keys.value("first_k_dense_replace").and_then(Value::as_u64).unwrap_or(0);
    let first = first.min(u64::from(layers)) as u32;
    let sparse = (layers - first) / keys.count(&["interleave_moe_layer_step"]).unwrap_or(1);
    let plain = layers - sparse;
    let formula = format!("{embeddings} + {layers} x {attention} + {plain} x {dense} + {sparse} x {experts}");
    let feed_forward = f64::from(plain) * dense + f64::from(sparse) * experts;
    Some(Estimate { count: embeddings + f64::from(layers) * attention + feed_forward, formula })
}

/// The experts of a layer, shared ones and the router included; `None` of a model without.
fn experts(keys: &mut Keys<'_>, width: f64, matrices: f64, inner: Option<f64>) -> Option<f64> {
    let routed = f64::from(keys.count(&["num_local_experts", "num_experts", "n_routed_experts"])?);
    let inner = keys.count(&["moe_intermediate_size"]).map(f64::from).or(inner)?;
    let shared = match keys.value("n_shared_experts").and_then(Value::as_f64) {
        Some(shared) => shared * inner,
        // Llama 4 has one, of which its file says nothing.
        None if keys.model_type().starts_with("llama4") => inner,
        None => keys.count(&["shared_expert_intermediate_size"]).map_or(0.0, f64::from),
    };
    Some(matrices * width * (routed * inner + shared) + width * routed)
}

/// Projections of queries, keys, values and back.
fn projections(keys: &mut Keys<'_>, attention: Attention, width: f64) -> Option<f64> {
    let heads = f64::from(keys.count(&["num_attention_heads", "n_head", "n_heads"])?);
    match attention {
        Attention::Heads { kv_heads, head_dim } => {
            Some(2.0 * width * f64::from(head_dim) * (heads + f64::from(kv_heads)))
        }
        Attention::Latent { rank, .. } => latent(keys, width, heads, f64::from(rank)),
    }
}

/// The same of MLA, whose queries may go through a narrow vector too.
fn latent(keys: &mut Keys<'_>, width: f64, heads: f64, rank: f64) -> Option<f64> {
    let rope = f64::from(keys.count(&["qk_rope_head_dim"])?);
    let plain = f64::from(keys.count(&["qk_nope_head_dim"])?);
    let value = f64::from(keys.count(&["v_head_dim"])?);
    let of_queries = heads * (plain + rope);
    let queries = match keys.count(&["q_lora_rank"]).map(f64::from) {
        Some(narrow) => narrow * (width + of_queries),
        None => width * of_queries,
    };
    Some(queries + width * (rank + rope) + rank * heads * (plain + value) + heads * value * width)
}
