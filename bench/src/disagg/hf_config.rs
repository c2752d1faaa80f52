//! The shape of a model as Hugging Face's `config.json` tells it.
//!
//! Read by its members, whatever the architecture: whoever attends over all tokens, over windows or through a latent vector can be
//! computed, under the names that transformers 4 gives to layers, heads and windows. What keeps another kind of state, or none, is
//! refused by name: its cache does not grow with the prompt as the formulas say. An architecture that is not known is told.

use std::io::{self, Read};
use std::path::Path;

use serde_json::Value;

use super::architectures;
use super::keys::Keys;
use super::parameters;
use super::shape::{Attention, ModelShape, Weights};
use super::windows;

/// More is no `config.json`.
const CONFIG_BYTES_MAX: u64 = 4 << 20;
/// An index of a model of 1,000 layers of 1,000 experts has less.
const INDEX_BYTES_MAX: u64 = 256 << 20;

/// Why a file tells no shape.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("found {0}, wanted a config.json that can be read")]
    Unreadable(#[from] io::Error),
    /// It is larger than any.
    #[error("found more than {CONFIG_BYTES_MAX} bytes, wanted a config.json")]
    TooLarge,
    /// It is no JSON.
    #[error("found no JSON ({0}), wanted a config.json")]
    Json(#[from] serde_json::Error),
    /// It is JSON of another kind.
    #[error("found no object, wanted a config.json")]
    NoObject,
    /// Members are missing or make no sense.
    #[error("{0}")]
    Shape(String),
}

/// What the operator says of the numbers' sizes, above what the file says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sizes {
    /// Of a value of the KV cache.
    pub bytes_per_value: Option<f64>,
    /// Of a parameter.
    pub bytes_per_parameter: Option<f64>,
    /// Of all weights.
    pub weights_gb: Option<f64>,
}

/// Reads a `config.json`, or the one in a folder. A `model.safetensors.index.json` beside it tells the size of the weights; else they
/// are estimated.
pub fn read(path: &Path, sizes: Sizes) -> Result<ModelShape, ConfigError> {
    let file = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    let text = read_text(&file, CONFIG_BYTES_MAX)?.ok_or(ConfigError::TooLarge)?;
    parse(&path.display().to_string(), &text, stored_bytes(&file), sizes)
}

fn read_text(path: &Path, bytes_max: u64) -> io::Result<Option<String>> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(bytes_max + 1).read_to_string(&mut text)?;
    Ok((text.len() as u64 <= bytes_max).then_some(text))
}

/// What an index beside the file says that the weights take.
fn stored_bytes(config: &Path) -> Option<f64> {
    let index = config.with_file_name("model.safetensors.index.json");
    let text = read_text(&index, INDEX_BYTES_MAX).ok()??;
    let index: Value = serde_json::from_str(&text).ok()?;
    index.get("metadata")?.get("total_size")?.as_f64().filter(|bytes| *bytes > 0.0)
}

/// The shape that a text tells; `stored_bytes` is what the weights take on disk, where that is known.
pub fn parse(
    name: &str,
    text: &str,
    stored_bytes: Option<f64>,
    sizes: Sizes,
) -> Result<ModelShape, ConfigError> {
    let root: Value = serde_json::from_str(text)?;
    let mut keys = Keys::of(root.as_object().ok_or(ConfigError::NoObject)?);
    refuse_other_kinds(&mut keys);
    let mut notes: Vec<String> = architectures::check(&mut keys).into_iter().collect();
    let layers = keys.required(&["num_hidden_layers", "n_layer", "n_layers", "num_layers"]);
    let (attention, heads) = attention(&mut keys);
    let spread = layers.and_then(|layers| windows::of(&mut keys, layers));
    let bytes_per_value = sizes.bytes_per_value.unwrap_or_else(|| bytes_per_value(&keys, &mut notes));
    let weights = weights(&mut keys, attention, stored_bytes, sizes, &mut notes);
    if keys.value("index_head_dim").is_some() {
        notes.push("the cache of a sparse indexer (index_head_dim) is not counted".to_owned());
    }
    match spread {
        Some((_, Some(_))) => notes.push(WINDOWS.to_owned()),
        _ if windows::chunks_without_pattern(&keys) => notes.push(CHUNKS.to_owned()),
        _ => {}
    }
    match (attention, spread) {
        (Some(attention), Some((full_layers, windowed))) if keys.faults.is_empty() => Ok(ModelShape {
            name: name.to_owned(),
            full_layers,
            windowed,
            attention,
            heads,
            bytes_per_value,
            weights,
            notes,
        }),
        _ => Err(ConfigError::Shape(complaint(&keys))),
    }
}

/// What the reader should know of windowed layers.
const WINDOWS: &str = "windowed layers are taken to keep their window only; an engine that keeps all of them, as vLLM does without its hybrid KV cache manager, holds fewer tokens and moves more";

/// What the reader should know of chunks that no layers are known to have.
const CHUNKS: &str = "attention_chunk_size is not considered: nothing tells which layers attend within chunks only, and all are taken to keep every token";
/// Names of the number of heads that ask.
const HEADS: [&str; 3] = ["num_attention_heads", "n_head", "n_heads"];

/// All that is wrong, in one line.
fn complaint(keys: &Keys<'_>) -> String {
    let mut parts = keys.faults.clone();
    if !keys.missing.is_empty() {
        parts.push(format!("found no {}", keys.missing.join(", no ")));
    }
    let model_type = match keys.model_type() {
        "" => "no model_type".to_owned(),
        model_type => format!("model_type {model_type:?}"),
    };
    format!("{}; wanted the shape of a decoder with attention ({model_type})", parts.join("; "))
}

/// Members of models whose layers keep another state than the KV of tokens.
const OTHER_STATE: [&str; 9] = [
    "attn_layer_period",
    "hybrid_override_pattern",
    "layers_block_type",
    "full_attention_interval",
    "linear_num_key_heads",
    "attn_layer_indices",
    "full_attn_idxs",
    "ssm_cfg",
    "linear_attn_config",
];

fn refuse_other_kinds(keys: &mut Keys<'_>) {
    if let Some(name) = OTHER_STATE.iter().find(|name| keys.value(name).is_some()) {
        keys.faults.push(format!("found {name}: layers that keep another state than the KV of tokens"));
    }
    if keys.anywhere("is_encoder_decoder").and_then(Value::as_bool) == Some(true) {
        keys.faults.push("found is_encoder_decoder true".to_owned());
    }
}

/// What a layer keeps, and the heads that ask.
fn attention(keys: &mut Keys<'_>) -> (Option<Attention>, Option<u32>) {
    if keys.value("kv_lora_rank").is_some() {
        let (rank, rope_dim) = (keys.count(&["kv_lora_rank"]), keys.required(&["qk_rope_head_dim"]));
        let latent = rank.zip(rope_dim).map(|(rank, rope_dim)| Attention::Latent { rank, rope_dim });
        return (latent, keys.count(&HEADS));
    }
    let heads = keys.required(&HEADS);
    (with_heads(keys, heads), heads)
}

fn with_heads(keys: &mut Keys<'_>, heads: Option<u32>) -> Option<Attention> {
    let kv_heads = keys.count(&["num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"]);
    let head_dim = head_dim(keys, heads);
    let old_falcon =
        keys.flag("multi_query") == Some(true) && keys.flag("new_decoder_architecture") != Some(true);
    let kv_heads = if old_falcon { Some(1) } else { kv_heads.or(heads) };
    Some(Attention::Heads { kv_heads: kv_heads?, head_dim: head_dim? })
}

/// `head_dim`, or what the width has for each head.
fn head_dim(keys: &mut Keys<'_>, heads: Option<u32>) -> Option<u32> {
    if let Some(head_dim) = keys.count(&["head_dim", "kv_channels"]) {
        return Some(head_dim);
    }
    let width = keys.required(&["hidden_size", "n_embd", "d_model"])?;
    let heads = heads?;
    if width % heads != 0 {
        keys.faults
            .push(format!("found hidden_size {width} and no head_dim, wanted a multiple of {heads} heads"));
        return None;
    }
    Some(width / heads)
}

/// Of the KV cache, as engines choose it by themselves: that of the model, 16 bit at most.
fn bytes_per_value(keys: &Keys<'_>, notes: &mut Vec<String>) -> f64 {
    let dtype = keys.anywhere("torch_dtype").or_else(|| keys.anywhere("dtype")).and_then(Value::as_str);
    match dtype {
        Some("bfloat16" | "float16") => {}
        Some(other) => notes.push(format!(
            "dtype {other}: KV is taken as 16 bit, as vLLM does by itself; --kv-dtype says otherwise"
        )),
        None => notes.push("no dtype: KV is taken as 16 bit; --kv-dtype says otherwise".to_owned()),
    }
    2.0
}

/// What an estimate is worth: a feed-forward with a gate where one without is meant is up to 40 percent too many.
const LIMITS: &str = "a layout that is not known here can be 40 percent off, and what is beside the decoder (vision, drafts) is not counted";

/// The operator's word, else the index's, else an estimate.
fn weights(
    keys: &mut Keys<'_>,
    attention: Option<Attention>,
    stored: Option<f64>,
    sizes: Sizes,
    notes: &mut Vec<String>,
) -> Option<Weights> {
    if let Some(gb) = sizes.weights_gb {
        return Some(Weights { bytes: gb * 1e9, source: format!("{gb} x 1e9") });
    }
    if let (Some(bytes), None) = (stored, sizes.bytes_per_parameter) {
        return Some(Weights { bytes, source: bytes.to_string() });
    }
    let bytes_per_parameter = sizes.bytes_per_parameter.or_else(|| stored_bytes_per_parameter(keys))?;
    // What an estimate lacks is no fault of the shape.
    let faults = keys.faults.len();
    let estimate = attention.and_then(|attention| parameters::estimate(keys, attention));
    keys.faults.truncate(faults);
    let estimate = estimate?;
    notes.push(format!(
        "weights are estimated: {:.2} billion parameters, bytes of each: {bytes_per_parameter}; {LIMITS}; --weights-gb says otherwise",
        estimate.count / 1e9
    ));
    let source = format!("({}) x {bytes_per_parameter}", estimate.formula);
    Some(Weights { bytes: estimate.count * bytes_per_parameter, source })
}

/// Of a parameter as it is stored; `None` for a way of packing that is not known.
fn stored_bytes_per_parameter(keys: &Keys<'_>) -> Option<f64> {
    let Some(packing) = keys.anywhere("quantization_config") else { return Some(2.0) };
    match packing.get("quant_method").and_then(Value::as_str)? {
        "fp8" => Some(1.0),
        "awq" | "gptq" => packing.get("bits").and_then(Value::as_f64).map(|bits| bits / 8.0),
        _ => None,
    }
}
