//! How many parameters a model of such a `config.json` has, to a percent or so.
//!
//! The file does not say it. Counted are the embeddings, and of every layer attention and feed-forward; norms and biases are not.

use super::keys::Keys;

/// A number of parameters and the sum that it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Estimate {
    pub(super) count: f64,
    pub(super) formula: String,
}

/// Whose feed-forward has two matrices; that of others has three, one of them a gate.
const WITHOUT_GATE: [&str; 9] =
    ["gpt2", "gpt_neo", "gpt_neox", "gptj", "gpt_bigcode", "opt", "falcon", "phi", "starcoder2"];

/// Estimates; `None` where the file lacks a width.
pub(super) fn estimate(keys: &mut Keys<'_>) -> Option<Estimate> {
    let layers = keys.count(&["num_hidden_layers", "n_layer", "n_layers", "num_layers"])?;
    let width = f64::from(keys.count(&["hidden_size", "n_embd", "d_model"])?);
    let words = f64::from(keys.count(&["vocab_size"])?);
    let tied = keys.anywhere("tie_word_embeddings").and_then(serde_json::Value::as_bool);
    let tied =
        tied.unwrap_or_else(|| ["gemma", "gpt2"].iter().any(|kind| keys.model_type().starts_with(kind)));
    let embeddings = words * width * if tied { 1.0 } else { 2.0 };
    let attention = attention(keys, width)?;
    let matrices = if WITHOUT_GATE.contains(&keys.model_type()) { 2.0 } else { 3.0 };
    let inner = keys.count(&["intermediate_size", "n_inner", "ffn_dim"]).map(f64::from);
    let dense = matrices * width * inner.unwrap_or(4.0 * width);
    let Some(experts) = experts(keys, width, matrices, inner) else {
        let formula = format!("{embeddings} + {layers} x ({attention} + {dense})");
        return Some(Estimate { count: embeddings + f64::from(layers) * (attention + dense), formula });
    };
    let first = keys.value("first_k_dense_replace").and_then(serde_json::Value::as_u64).unwrap_or(0);
    let first = (first as u32).min(layers);
    let sparse = layers - first;
    let formula = format!("{embeddings} + {layers} x {attention} + {first} x {dense} + {sparse} x {experts}");
    let feed_forward = f64::from(first) * dense + f64::from(sparse) * experts;
    Some(Estimate { count: embeddings + f64::from(layers) * attention + feed_forward, formula })
}

/// The experts of a layer, shared ones and the router included; `None` of a model without.
fn experts(keys: &mut Keys<'_>, width: f64, matrices: f64, inner: Option<f64>) -> Option<f64> {
    let routed = f64::from(keys.count(&["num_local_experts", "num_experts", "n_routed_experts"])?);
    let inner = keys.count(&["moe_intermediate_size"]).map(f64::from).or(inner)?;
    let shared = match keys.value("n_shared_experts").and_then(serde_json::Value::as_f64) {
        Some(shared) => shared * inner,
        None => keys.count(&["shared_expert_intermediate_size"]).map_or(0.0, f64::from),
    };
    Some(matrices * width * (routed * inner + shared) + width * routed)
}

/// Projections of queries, keys, values and back.
fn attention(keys: &mut Keys<'_>, width: f64) -> Option<f64> {
    let heads = f64::from(keys.count(&["num_attention_heads", "n_head", "n_heads"])?);
    if let Some(rank) = keys.count(&["kv_lora_rank"]).map(f64::from) {
        return latent(keys, width, heads, rank);
    }
    let kv_heads = keys.count(&["num_key_value_heads", "num_kv_heads", "n_head_kv"]).map_or(heads, f64::from);
    let head_dim = keys.count(&["head_dim"]).map_or(width / heads, f64::from);
    Some(2.0 * width * head_dim * (heads + kv_heads))
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
