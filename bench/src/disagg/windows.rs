//! Which of a model's layers look back over a window only.
//!
//! Newer files list `layer_types`; older ones leave the pattern to the code of the model, so a few are known here by `model_type`.
//! Source: transformers 4.57, `configuration_*.py` of gemma2, gemma3, cohere2, qwen2, mistral and llama4.

use serde_json::Value;

use super::keys::Keys;
use super::shape::Windowed;

/// Of so many layers of Llama 4 the last attends over all tokens.
const CHUNKED_INTERVAL: u32 = 4;

/// Layers that keep everything, and those with a window. `None` puts the reason into the keys' faults.
pub(super) fn of(keys: &mut Keys<'_>, layers: u32) -> Option<(u32, Option<Windowed>)> {
    match keys.value("layer_types") {
        Some(types) => listed(keys, types, layers),
        None => by_pattern(keys, layers),
    }
}

/// Whether there are chunks, and nothing that tells of which layers.
pub(super) fn chunks_without_pattern(keys: &Keys<'_>) -> bool {
    let has = |name| keys.value(name).is_some();
    has("attention_chunk_size") && !has("layer_types") && !tells_chunks(keys)
}

/// By `layer_types`. The last `num_kv_shared_layers` read the cache of others and keep nothing.
fn listed(keys: &mut Keys<'_>, types: &Value, layers: u32) -> Option<(u32, Option<Windowed>)> {
    let types = types.as_array().map(Vec::as_slice).unwrap_or_default();
    if types.len() != layers as usize {
        keys.faults.push(format!("found layer_types of {}, wanted {layers}", types.len()));
        return None;
    }
    let shared = keys.value("num_kv_shared_layers").and_then(Value::as_u64).unwrap_or(0);
    let (mut full, mut sliding, mut chunked) = (0, 0, 0);
    for (place, kind) in types.iter().enumerate().take(u64::from(layers).saturating_sub(shared) as usize) {
        match kind.as_str() {
            Some("full_attention") => full += 1,
            Some("sliding_attention") => sliding += 1,
            Some("chunked_attention") => chunked += 1,
            _ => {
                keys.faults.push(format!(
                    "found layer_types[{place}] {kind}: a layer that keeps another state than the KV of tokens"
                ));
                return None;
            }
        }
    }
    match (sliding, chunked) {
        (0, 0) => Some((full, None)),
        (windowed, 0) => with_window(keys, full, windowed, "sliding_window"),
        (0, windowed) => with_window(keys, full, windowed, "attention_chunk_size"),
        _ => {
            keys.faults.push("found layer_types with sliding and chunked attention".to_owned());
            None
        }
    }
}

fn tells_chunks(keys: &Keys<'_>) -> bool {
    let has = |name| keys.value(name).is_some();
    keys.model_type().starts_with("llama4") || has("no_rope_layers") || has("no_rope_layer_interval")
}

/// By `attention_chunk_size`: a layer without rotary embeddings, a 0 in `no_rope_layers`, attends over all tokens. Without a list it is
/// every fourth, unless the file says which.
fn chunked(keys: &mut Keys<'_>, layers: u32) -> Option<(u32, Option<Windowed>)> {
    let listed = keys.value("no_rope_layers").and_then(Value::as_array).filter(|list| !list.is_empty());
    let full = match listed {
        None => layers / keys.count(&["no_rope_layer_interval"]).unwrap_or(CHUNKED_INTERVAL),
        Some(list) if list.len() == layers as usize => {
            list.iter().filter(|rope| rope.as_u64() == Some(0)).count() as u32
        }
        Some(list) => {
            keys.faults.push(format!("found no_rope_layers of {}, wanted {layers}", list.len()));
            return None;
        }
    };
    with_window(keys, full, layers - full, "attention_chunk_size")
}

/// By `sliding_window` and what goes with it, or by chunks.
fn by_pattern(keys: &mut Keys<'_>, layers: u32) -> Option<(u32, Option<Windowed>)> {
    if keys.value("attention_chunk_size").is_some() && tells_chunks(keys) {
        return chunked(keys, layers);
    }
    let kind = keys.model_type();
    let off = match keys.flag("use_sliding_window") {
        Some(used) => !used,
        None => kind.starts_with("qwen"),
    };
    if off || keys.value("sliding_window").is_none() {
        return Some((layers, None));
    }
    let pattern = keys.count(&["sliding_window_pattern", "_sliding_window_pattern"]);
    let known = match kind {
        "gemma2" => Some(2),
        _ if kind.starts_with("gemma3") => Some(6),
        "cohere2" => Some(4),
        _ => None,
    };
    let full = match (pattern.or(known), kind.starts_with("qwen")) {
        (Some(each), _) => layers / each,
        (None, true) => keys.required(&["max_window_layers"])?.min(layers),
        (None, false) => 0,
    };
    with_window(keys, full, layers - full, "sliding_window")
}

fn with_window(keys: &mut Keys<'_>, full: u32, windowed: u32, name: &str) -> Option<(u32, Option<Windowed>)> {
    let window_tokens = keys.required(&[name])?;
    let windowed = (windowed > 0).then_some(Windowed { layers: windowed, window_tokens });
    Some((full, windowed))
}
