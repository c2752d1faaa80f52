//! Every number that `--explain` shows is what its formula comes to, and is the number of the report.

use serde_json::Value;

use crate::configs::{DEEPSEEK, GPT_OSS, folder};
use crate::evaluate::evaluate;
use crate::{json, printed};

/// Checks all formulas of a list against the members that stand beside it.
fn check(figures: &Value, flags: &str) -> Vec<String> {
    let figures = figures.as_array().unwrap_or_else(|| panic!("{flags}: no formulas"));
    let check = |figure: &Value| {
        let name = figure["name"].as_str().unwrap().to_owned();
        let (numbers, value) = (figure["numbers"].as_str().unwrap(), figure["value"].as_f64().unwrap());
        let reckoned = evaluate(numbers);
        let allowed = 2e-4 + value.abs() * 2e-4;
        assert!(
            (reckoned - value).abs() <= allowed,
            "{flags}: {name} is {value}, but {numbers} is {reckoned}"
        );
        assert!(!figure["formula"].as_str().unwrap().is_empty(), "{flags}: {name} has no names");
        name
    };
    figures.iter().map(check).collect()
}

#[test]
fn formulas_come_to_what_they_explain() {
    let (deepseek, gpt_oss) = (folder("formulas-mla", DEEPSEEK), folder("formulas-windows", GPT_OSS));
    let traffic = "--rate 7.3 --output-tokens 333";
    for flags in [
        String::new(),
        traffic.to_owned(),
        format!(
            "--prompt-tokens 4001 --cached-tokens 1000 --chunk-tokens 512 --link-latency-ms 1.3 --nics 3 {traffic}"
        ),
        format!("--threshold 0 --utilization 0.63 {traffic}"),
        format!("--model llama-3.1-70b --tp 4,16 --kv-dtype fp8 --weights-dtype int4 --gpu-gb 141 {traffic}"),
        format!("--weights-gb 33.3 --cached-tokens 4000 {traffic}"),
        format!("{} --tp 16 --gpu-gb 192 --weights-dtype fp8 --nics 8 {traffic}", deepseek.path()),
        format!("{} --prompt-tokens 100 {traffic}", gpt_oss.path()),
        format!("{} --prompt-tokens 9000 --hit-rate 0.3 --tp 2 {traffic}", gpt_oss.path()),
        format!("--hit-rate 0.95 {traffic}"),
        "--model llama-3.1-70b".to_owned(),
    ] {
        let report = json(&format!("{flags} --explain"));
        let prompt = check(&report["formulas"], &flags);
        assert_eq!(prompt, ["uncached_tokens", "prefill_ms", "stall_ms"]);
        for model in report["models"].as_array().unwrap() {
            let names = check(&model["formulas"], &flags);
            for member in [
                "kv_bytes_per_token",
                "replica_kv_tokens",
                "kv_bytes",
                "gpu_bytes",
                "moved_bytes",
                "production_gbps",
            ] {
                let told = names.iter().any(|name| name == member);
                assert_eq!(told, model[member].is_number(), "{flags}: {member}");
            }
            let links = names.iter().filter(|name| *name == "transfer_ms").count();
            assert_eq!(links, model["links"].as_array().unwrap().len(), "{flags}");
            let asked = flags.contains("--rate");
            for column in ["decode_busy", "prefill_replicas", "decode_replicas", "together_replicas"] {
                assert_eq!(names.iter().any(|name| name == column), asked, "{flags}: {column}");
            }
        }
        let text = printed(&format!("{flags} --explain"));
        assert!(text.contains("prefill_ms = uncached_tokens / prefill_tps x 1000 = "), "{text}");
    }
}

#[test]
fn formulas_come_only_when_asked() {
    assert!(!printed("").contains("how these come about"));
    assert_eq!(json("")["models"][0]["formulas"], Value::Null);
}
