//! Shapes that are read from files in Hugging Face's form, and files that tell none.

use std::path::{Path, PathBuf};

use bench::disagg::{Attention, ModelShape, Sizes, Windowed, parse};
use serde_json::{Value, json};

use crate::{json as command, run};

/// Latent attention, experts, 8-bit weights, as DeepSeek-V3 has them.
pub(crate) const DEEPSEEK: &str = r#"{"model_type": "deepseek_v3", "torch_dtype": "bfloat16", "num_hidden_layers": 61, "hidden_size": 7168,
    "vocab_size": 129280, "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "first_k_dense_replace": 3,
    "tie_word_embeddings": false, "quantization_config": {"quant_method": "fp8"}}"#;

/// Every other layer has a window, as in gpt-oss-20b; only eight layers here.
pub(crate) const GPT_OSS: &str = r#"{"model_type": "gpt_oss", "torch_dtype": "bfloat16", "num_hidden_layers": 8, "hidden_size": 2880,
    "vocab_size": 201088, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
    "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention",
    "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "quantization_config": {"quant_method": "mxfp4"}}"#;

const LLAMA: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16",
    "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256,
    "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": false, "sliding_window": null}"#;

/// The text model of Llama 4 Scout: chunks but for every fourth layer, and a shared expert that the file does not name.
const LLAMA4: &str = r#"{"model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"], "torch_dtype": "bfloat16",
    "num_hidden_layers": 48, "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    "vocab_size": 202048, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 16,
    "interleave_moe_layer_step": 1, "attention_chunk_size": 8192, "no_rope_layers": []}"#;

/// A folder with a `config.json`, removed at the end.
pub(crate) struct Folder(PathBuf);

pub(crate) fn folder(name: &str, config: &str) -> Folder {
    let path = std::env::temp_dir().join(format!("prefixroute-disagg-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    let folder = Folder(path);
    folder.write("config.json", config);
    folder
}

impl Folder {
    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(Path::new(self.path()).join(name), text).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn shape(config: &Value) -> ModelShape {
    parse("m", &config.to_string(), None, Sizes::default())
        .unwrap_or_else(|error| panic!("{config}: {error}"))
}

/// A text with some members replaced.
fn with(text: &str, members: Value) -> Value {
    let mut config: Value = serde_json::from_str(text).unwrap();
    for (name, value) in members.as_object().unwrap() {
        config[name] = value.clone();
    }
    config
}

fn without(text: &str, name: &str) -> Value {
    let mut config: Value = serde_json::from_str(text).unwrap();
    config.as_object_mut().unwrap().remove(name).unwrap();
    config
}

fn heads(kv_heads: u32, head_dim: u32) -> Attention {
    Attention::Heads { kv_heads, head_dim }
}

#[test]
fn heads_come_under_many_names() {
    let gpt2 = json!({"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "vocab_size": 50257});
    let falcon = json!({"model_type": "falcon", "num_hidden_layers": 32, "num_attention_heads": 71,
        "hidden_size": 4544, "multi_query": true, "new_decoder_architecture": false});
    let nested =
        json!({"model_type": "llava", "torch_dtype": "float16", "text_config": with(LLAMA, json!({}))});
    let twice = json!({"thinker_config": {"text_config": with(LLAMA, json!({}))}, "num_hidden_layers": 3});
    for (shows, config, layers, attention) in [
        ("grouped", with(LLAMA, json!({})), 32, heads(8, 128)),
        ("no KV heads: as many as heads", without(LLAMA, "num_key_value_heads"), 32, heads(32, 128)),
        (
            "null counts as none",
            with(LLAMA, json!({"num_key_value_heads": null, "head_dim": null})),
            32,
            heads(32, 128),
        ),
        ("head_dim is not the width's part", with(LLAMA, json!({"head_dim": 256})), 32, heads(8, 256)),
        ("old names", gpt2, 12, heads(12, 64)),
        ("multi-query", falcon, 32, heads(1, 64)),
        ("nested", nested, 32, heads(8, 128)),
        ("nested twice, the outer count is another's", twice, 32, heads(8, 128)),
        ("latent", with(DEEPSEEK, json!({})), 61, Attention::Latent { rank: 512, rope_dim: 64 }),
    ] {
        let shape = shape(&config);
        assert_eq!(
            (shape.full_layers, shape.windowed, shape.attention),
            (layers, None, attention),
            "{shows}"
        );
        assert_eq!(shape.bytes_per_value, 2.0, "{shows}");
    }
    assert_eq!(shape(&with(DEEPSEEK, json!({}))).bytes_per_token(), 70_272.0);
}

#[test]
fn windows_are_listed_or_known() {
    let window = |members| with(LLAMA, members);
    for (shows, config, full, windowed) in [
        ("listed", with(GPT_OSS, json!({})), 4, Some((4, 128))),
        (
            "all, unless it is said",
            window(json!({"model_type": "mistral", "sliding_window": 4096})),
            0,
            Some((32, 4096)),
        ),
        ("off", window(json!({"sliding_window": 4096, "use_sliding_window": false})), 32, None),
        (
            "qwen's are off by themselves",
            window(json!({"model_type": "qwen2", "sliding_window": 4096})),
            32,
            None,
        ),
        (
            "qwen's upper layers",
            window(
                json!({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": true, "max_window_layers": 28}),
            ),
            28,
            Some((4, 4096)),
        ),
        (
            "every sixth is whole",
            window(json!({"model_type": "gemma3_text", "sliding_window": 512})),
            5,
            Some((27, 512)),
        ),
        (
            "a pattern of its own",
            window(json!({"sliding_window": 512, "sliding_window_pattern": 4})),
            8,
            Some((24, 512)),
        ),
        (
            "every other",
            window(json!({"model_type": "gemma2", "sliding_window": 4096})),
            16,
            Some((16, 4096)),
        ),
        (
            "chunks, and layers that read another's cache",
            json!({"num_hidden_layers": 3, "num_attention_heads": 2, "hidden_size": 8, "attention_chunk_size": 64,
                "num_kv_shared_layers": 1, "layer_types": ["chunked_attention", "full_attention", "full_attention"]}),
            1,
            Some((1, 64)),
        ),
        ("chunks, every fourth whole", with(LLAMA4, json!({})), 12, Some((36, 8192))),
        (
            "chunks where a list says so",
            window(
                json!({"num_hidden_layers": 4, "attention_chunk_size": 64, "no_rope_layers": [1, 0, 1, 0]}),
            ),
            2,
            Some((2, 64)),
        ),
        ("chunks of nobody knows which layers", window(json!({"attention_chunk_size": 64})), 32, None),
    ] {
        let shape = shape(&config);
        let unsure = config["attention_chunk_size"].is_number() && windowed.is_none();
        let not_considered = shape.notes.iter().any(|note| note.starts_with("attention_chunk_size is not"));
        assert_eq!(not_considered, unsure, "{shows}: {:?}", shape.notes);
        let windowed = windowed.map(|(layers, window_tokens)| Windowed { layers, window_tokens });
        assert_eq!((shape.full_layers, shape.windowed), (full, windowed), "{shows}");
        let told = shape.notes.iter().any(|note| note.contains("hybrid KV cache manager"));
        assert_eq!(told, windowed.is_some(), "{shows}: {:?}", shape.notes);
    }
}

/// Known sizes of models, in billions of parameters, to two percent.
#[test]
fn weights_are_estimated() {
    let mixtral = with(LLAMA, json!({"model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8}));
    let qwen = with(
        LLAMA,
        json!({"model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584,
        "intermediate_size": 18944, "vocab_size": 152_064, "num_attention_heads": 28, "num_key_value_heads": 4}),
    );
    let gpt2 = json!({"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "vocab_size": 50257});
    let falcon = json!({"model_type": "falcon", "num_hidden_layers": 32, "num_attention_heads": 71,
        "hidden_size": 4544, "multi_query": true, "parallel_attn": true, "vocab_size": 65024});
    let maverick = with(
        LLAMA4,
        json!({"num_local_experts": 128, "interleave_moe_layer_step": 2, "tie_word_embeddings": false}),
    );
    for (shows, config, billions, bytes) in [
        ("Llama 3.1 8B", with(LLAMA, json!({})), 8.03, 2.0),
        ("Qwen2.5 7B", qwen, 7.62, 2.0),
        ("Mixtral 8x7B", mixtral, 46.7, 2.0),
        ("DeepSeek-V3", with(DEEPSEEK, json!({})), 671.0, 1.0),
        ("GPT-2", gpt2, 0.124, 2.0),
        ("Falcon 7B", falcon, 7.22, 2.0),
        ("Llama 4 Scout", with(LLAMA4, json!({})), 107.8, 2.0),
        ("Llama 4 Maverick", maverick, 400.7, 2.0),
        ("4 bit", with(LLAMA, json!({"quantization_config": {"quant_method": "awq", "bits": 4}})), 8.03, 0.5),
    ] {
        let shape = shape(&config);
        let weights = shape.weights.unwrap();
        let off = weights.bytes / (billions * bytes * 1e9);
        assert!((0.98..1.02).contains(&off), "{shows}: {} GB", weights.bytes / 1e9);
        assert!(shape.notes.iter().any(|note| note.contains("estimated")), "{shows}: {:?}", shape.notes);
    }
    assert_eq!(shape(&with(GPT_OSS, json!({}))).weights, None, "nobody told how mxfp4 is packed");
    assert_eq!(shape(&without(LLAMA, "vocab_size")).weights, None);
}

/// A decoder that is not known is reckoned and told; who has no architecture at all has nothing to be told.
#[test]
fn an_architecture_that_is_not_known_is_told() {
    let of = |names: Value| with(LLAMA, json!({"architectures": names}));
    for (config, unknown) in [
        (of(json!(["FooBarForCausalLM"])), Some("FooBarForCausalLM")),
        (of(json!(["LlamaForCausalLM", "Foo\nBar"])), Some("Foo\\nBar")),
        (of(json!(["MistralModel"])), None),
        (of(json!(["Qwen2ForSequenceClassification"])), None),
        (
            with(&of(json!(["BertLMHeadModel"])).to_string(), json!({"is_decoder": true})),
            Some("BertLMHeadModel"),
        ),
        (without(LLAMA, "architectures"), None),
    ] {
        let notes = shape(&config).notes;
        let told: Vec<_> = notes.iter().filter(|note| note.starts_with("architectures: ")).collect();
        let want = unknown.map(|name| {
            format!(
                "architectures: found {name}, which is not known here: reckoned from its members as a decoder with attention in every layer"
            )
        });
        assert_eq!(told, want.iter().collect::<Vec<_>>(), "{config}");
    }
}

#[test]
fn flags_and_an_index_beside_the_file_go_before_an_estimate() {
    let model =
        |folder: &Folder, flags: &str| command(&format!("{} {flags}", folder.path()))["models"][0].clone();
    let folder = folder("index", LLAMA);
    let estimated = model(&folder, "");
    assert!((estimated["weights_gb"].as_f64().unwrap() - 16.06).abs() < 0.01, "{estimated}");
    assert_eq!(estimated["model"], folder.path());
    folder.write(
        "model.safetensors.index.json",
        r#"{"metadata": {"total_size": 16060522496}, "weight_map": {}}"#,
    );
    let indexed = model(&folder, "");
    assert_eq!((&indexed["weights_gb"], &indexed["notes"]), (&json!(16.060_522_496), &json!([])));
    assert_eq!(model(&folder, "--weights-gb 9.5")["weights_gb"], 9.5);
    let packed = model(&folder, "--weights-dtype fp8 --kv-dtype fp8");
    assert!((packed["weights_gb"].as_f64().unwrap() - 8.03).abs() < 0.01);
    assert_eq!(packed["kv_bytes_per_token"], 65536.0);
    folder.write("model.safetensors.index.json", "{");
    assert_eq!(model(&folder, "")["weights_gb"], estimated["weights_gb"], "a broken index is none");
    assert_eq!(model(&folder, "")["replica_kv_tokens"], 426_788);
}

#[test]
fn a_file_that_tells_no_shape_says_in_one_line_what_is_missing() {
    let wanted = |model_type: &str| format!("; wanted the shape of a decoder with attention ({model_type})");
    let llama = |members| with(LLAMA, members).to_string();
    for (text, want) in [
        (
            r#"{"model_type": "mamba", "hidden_size": 768}"#.to_owned(),
            format!("found no num_hidden_layers, no num_attention_heads{}", wanted("model_type \"mamba\"")),
        ),
        (
            "{}".to_owned(),
            format!(
                "found no num_hidden_layers, no num_attention_heads, no hidden_size{}",
                wanted("no model_type")
            ),
        ),
        (
            llama(json!({"num_hidden_layers": 0, "num_attention_heads": "many"})),
            format!(
                "found num_hidden_layers 0, wanted a whole number from 1 to 100000000; found num_attention_heads \"many\", wanted a whole number from 1 to 100000000{}",
                wanted("model_type \"llama\"")
            ),
        ),
        (
            llama(json!({"hidden_size": 4097})),
            format!(
                "found hidden_size 4097 and no head_dim, wanted a multiple of 32 heads{}",
                wanted("model_type \"llama\"")
            ),
        ),
        (
            llama(json!({"attn_layer_period": 8})),
            format!(
                "found attn_layer_period: layers that keep another state than the KV of tokens{}",
                wanted("model_type \"llama\"")
            ),
        ),
        (
            llama(json!({"num_hidden_layers": 2, "layer_types": ["full_attention", "linear_attention"]})),
            format!(
                "found layer_types[1] \"linear_attention\": a layer that keeps another state than the KV of tokens{}",
                wanted("model_type \"llama\"")
            ),
        ),
        (
            llama(json!({"layer_types": []})),
            format!("found layer_types of 0, wanted 32{}", wanted("model_type \"llama\"")),
        ),
        (
            llama(json!({"is_encoder_decoder": true, "architectures": ["T5ForConditionalGeneration"]})),
            format!("found is_encoder_decoder true{}", wanted("model_type \"llama\"")),
        ),
        (
            llama(json!({"model_type": "bert", "architectures": ["BertModel"]})),
            format!("found architecture BertModel: an encoder{}", wanted("model_type \"bert\"")),
        ),
        (
            llama(json!({"model_type": "bert", "architectures": ["BertForMaskedLM"]})),
            format!("found architecture BertForMaskedLM: an encoder{}", wanted("model_type \"bert\"")),
        ),
        (
            llama(json!({"model_type": "bert", "architectures": null})),
            format!("found model_type bert: an encoder{}", wanted("model_type \"bert\"")),
        ),
        (
            llama(json!({"attention_chunk_size": 64, "no_rope_layers": [0]})),
            format!("found no_rope_layers of 1, wanted 32{}", wanted("model_type \"llama\"")),
        ),
        (
            llama(json!({"kv_lora_rank": 512})),
            format!("found no qk_rope_head_dim{}", wanted("model_type \"llama\"")),
        ),
        (
            llama(json!({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]})),
            format!("found no sliding_window{}", wanted("model_type \"llama\"")),
        ),
        ("[]".to_owned(), "found no object, wanted a config.json".to_owned()),
        (
            "{\"a\":".to_owned(),
            "found no JSON (EOF while parsing a value at line 1 column 5), wanted a config.json".to_owned(),
        ),
    ] {
        let error = parse("m", &text, None, Sizes::default()).unwrap_err().to_string();
        assert_eq!(error, want, "{text}");
    }
    let deep = "[".repeat(20_000);
    assert!(parse("m", &deep, None, Sizes::default()).is_err());
}

/// One file tells nothing, one is not there: both are said, the third is told, and of the first the prompt and the replicas.
#[test]
fn the_rest_is_still_told() {
    let (mamba, good) = (folder("mamba", r#"{"model_type": "mamba2"}"#), folder("good", LLAMA));
    let gone = format!("{}/gone", good.path());
    let flags = [mamba.path(), gone.as_str(), good.path(), "--rate", "3"];
    let (text, error) = run(&flags);
    let error = error.unwrap();
    assert!(error.is_usage());
    let lines: Vec<String> = error.to_string().lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with(&format!("{}: found no num_hidden_layers", mamba.path())), "{lines:?}");
    assert!(lines[1].starts_with(&format!("{gone}: found ")), "{lines:?}");
    assert!(text.contains("333.3 ms at 12,000 tokens/s") && text.contains("8 KV heads of 128"), "{text}");
    let (text, _) = run(&[&flags[..], &["--json"]].concat());
    let report: Value = serde_json::from_str(&text).unwrap();
    let models = report["models"].as_array().unwrap();
    assert_eq!(models.len(), 3);
    for model in &models[..2] {
        assert!(model["error"].is_string() && model["kv_bytes_per_token"].is_null(), "{model}");
        let need = &model["traffic"][0];
        assert!(need["prefill_replicas"] == 2 && need["moved_gbps"].is_null(), "{need}");
    }
    assert!(models[2]["error"].is_null() && models[2]["links"].as_array().unwrap().len() == 4);
}
