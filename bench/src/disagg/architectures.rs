//! Which models a `config.json` may be of: decoders that are known, encoders that are refused, and others, which are told.
//!
//! Shapes are read by members, so a decoder that is not listed is still reckoned; but nobody has looked whether its layers are what
//! the members say, and the reader should know. Source: vLLM 0.11, `model_executor/models/registry.py`.

use serde_json::Value;

use super::keys::Keys;

/// Decoders with attention in every layer, by what their architecture begins with; the rest of the name is one of [`ENDINGS`].
const DECODERS: [&str; 75] = [
    "Apertus",
    "Arcee",
    "Aria",
    "Baichuan",
    "BaiChuan",
    "Bloom",
    "ChatGLM",
    "CodeGen",
    "Cohere",
    "Cohere2",
    "Dbrx",
    "Deepseek",
    "DeepseekV2",
    "DeepseekV3",
    "DeepseekV32",
    "Dots1",
    "Ernie4_5",
    "Ernie4_5_Moe",
    "Exaone",
    "Exaone4",
    "Falcon",
    "Gemma",
    "Gemma2",
    "Gemma3",
    "Gemma3n",
    "Glm",
    "Glm4",
    "Glm4Moe",
    "GPT2",
    "GPTBigCode",
    "GPTJ",
    "GPTNeoX",
    "GptOss",
    "Granite",
    "GraniteMoe",
    "HunYuanDenseV1",
    "HunYuanMoEV1",
    "InternLM",
    "InternLM2",
    "InternLM3",
    "InternVLChat",
    "KimiVL",
    "Llama",
    "Llama4",
    "Llava",
    "LlavaNext",
    "LlavaOnevision",
    "MiMo",
    "MiniCPM",
    "MiniCPM3",
    "Mistral",
    "Mistral3",
    "Mixtral",
    "MPT",
    "Nemotron",
    "Olmo",
    "Olmo2",
    "Olmo3",
    "Olmoe",
    "OPT",
    "Orion",
    "Persimmon",
    "Phi",
    "Phi3",
    "PhiMoE",
    "Qwen2",
    "Qwen2_5_VL",
    "Qwen2Moe",
    "Qwen2VL",
    "Qwen3",
    "Qwen3Moe",
    "SeedOss",
    "SmolLM3",
    "StableLm",
    "Starcoder2",
];
const ENDINGS: [&str; 8] = [
    "ForCausalLM",
    "LMHeadModel",
    "ForConditionalGeneration",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForRewardModel",
    "Model",
    "",
];
/// Encoders, by what their architecture begins with and by `model_type`.
const ENCODERS: [(&str, &str); 14] = [
    ("Albert", "albert"),
    ("Bert", "bert"),
    ("Camembert", "camembert"),
    ("Deberta", "deberta"),
    ("DebertaV2", "deberta-v2"),
    ("DistilBert", "distilbert"),
    ("Electra", "electra"),
    ("Esm", "esm"),
    ("ModernBert", "modernbert"),
    ("MPNet", "mpnet"),
    ("NomicBert", "nomic_bert"),
    ("Roberta", "roberta"),
    ("XLMRoberta", "xlm-roberta"),
    ("XLMRobertaXL", "xlm-roberta-xl"),
];

/// Puts what is no decoder into the keys' faults; of one that is not known here, the line that says so.
pub(super) fn check(keys: &mut Keys<'_>) -> Option<String> {
    let names = keys.anywhere("architectures").and_then(Value::as_array);
    let names: Vec<&str> = names.into_iter().flatten().filter_map(Value::as_str).collect();
    let decodes = keys.flag("is_decoder") == Some(true);
    if let Some(name) = names.iter().find(|name| is_encoder(name) && !decodes) {
        keys.faults.push(format!("found architecture {}: an encoder", shown(name)));
        return None;
    }
    let kind = keys.model_type();
    if names.is_empty() && !decodes && ENCODERS.iter().any(|(_, encoder)| *encoder == kind) {
        keys.faults.push(format!("found model_type {kind}: an encoder"));
        return None;
    }
    let unknown = names.iter().find(|name| !is_one_of(name, DECODERS.iter().copied()))?;
    Some(format!(
        "architectures: found {}, which is not known here: reckoned from its members as a decoder with attention in every layer",
        shown(unknown)
    ))
}

fn is_encoder(name: &str) -> bool {
    name.ends_with("ForMaskedLM")
        || name.ends_with("EncoderModel")
        || is_one_of(name, ENCODERS.iter().map(|(encoder, _)| *encoder))
}

fn is_one_of(name: &str, mut stems: impl Iterator<Item = &'static str>) -> bool {
    stems.any(|stem| name.strip_prefix(stem).is_some_and(|ending| ENDINGS.contains(&ending)))
}

/// A name out of a file, in a line.
fn shown(name: &str) -> String {
    name.escape_debug().take(80).collect()
}
