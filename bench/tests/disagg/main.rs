//! `disagg` through its public face: the fixture's rows, the second shape of the lessons, files, formulas, bad input.
#![allow(clippy::unwrap_used, clippy::panic)]

mod configs;
mod evaluate;
mod formulas;

use bench::disagg::{self, DisaggArgs, DisaggError};
use clap::Parser;
use serde_json::Value;

const FIXTURE: &str = include_str!("../fixtures/seed/disagg.json");

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: DisaggArgs,
}

/// What the command prints, and its error.
fn run(flags: &[&str]) -> (String, Option<DisaggError>) {
    let words = ["disagg"].iter().chain(flags);
    let mut out = Vec::new();
    let error = disagg::run(&Command::try_parse_from(words).unwrap().args, &mut out).err();
    (String::from_utf8(out).unwrap(), error)
}

/// What it prints with these flags, which have to be good.
fn printed(flags: &str) -> String {
    let (text, error) = run(&flags.split_whitespace().collect::<Vec<_>>());
    assert!(error.is_none(), "{flags}: {error:?}");
    text
}

fn json(flags: &str) -> Value {
    serde_json::from_str(&printed(&format!("{flags} --json"))).unwrap()
}

fn fixture() -> Value {
    serde_json::from_str(FIXTURE).unwrap()
}

#[track_caller]
fn assert_close(got: &Value, want: &Value, allowed: f64, what: &str) {
    let (got, want) = (got.as_f64().unwrap_or(f64::NAN), want.as_f64().unwrap());
    assert!((got - want).abs() <= allowed, "{what}: {got}, wanted {want}");
}

/// Behaviours 51 to 56: every case, every link, to the fixture's four decimals.
#[test]
fn every_case_of_the_fixture() {
    let fixture = fixture();
    let cases = fixture["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 10);
    for case in cases {
        let flag = |name: &str| case[name].to_string();
        let flags = format!(
            "--prompt-tokens {} --cached-tokens {} --prefill-tps {} --chunk-tokens {} --threshold {} --link-latency-ms {}",
            flag("prompt_tokens"),
            flag("cached_tokens"),
            flag("prefill_tps"),
            flag("chunk_tokens"),
            flag("threshold_tokens"),
            flag("link_latency_ms")
        );
        let got = json(&flags);
        for name in ["uncached_tokens", "remote"] {
            assert_eq!(got[name], case[name], "{flags}: {name}");
        }
        let model = &got["models"][0];
        for (got, name) in
            [(&got, "prefill_ms"), (&got, "stall_ms"), (model, "kv_bytes"), (model, "production_gbps")]
        {
            assert_close(&got[name], &case[name], 5e-5, &format!("{flags}: {name}"));
        }
        assert_eq!(model["moved_bytes"], model["kv_bytes"], "one GPU holds no copies");
        let links = case["links"].as_array().unwrap();
        assert_eq!((links.len(), model["links"].as_array().unwrap().len()), (4, 4));
        for (got, want) in model["links"].as_array().unwrap().iter().zip(links) {
            let what = format!("{flags}: {} Gb/s", want["gbps"]);
            assert_eq!(got["keeps_up"], want["keeps_up"], "{what}");
            for name in ["gbps", "transfer_ms", "ttft_local_ms", "ttft_remote_ms"] {
                assert_close(&got[name], &want[name], 5e-5, &format!("{what}: {name}"));
            }
        }
    }
}

/// Behaviours 53 and 55 to 57, as they were published: without a flag.
#[test]
fn no_flags_print_the_published_table() {
    let (fixture, text) = (fixture(), printed(""));
    let published = &fixture["published"];
    let rows = published["rows_ms"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    let table: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.contains("Gb/s  "))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(table.len(), 4, "{text}");
    for (cells, row) in table.iter().zip(rows) {
        let want: Vec<String> = row
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it.as_str().map_or(it.to_string(), str::to_owned))
            .collect();
        let [gbps, transfer, local, remote, keeps_up] = want.try_into().unwrap();
        assert_eq!(
            cells[..9],
            [&gbps, "Gb/s", &keeps_up, &transfer, "ms", &local, "ms", &remote, "ms"],
            "{text}"
        );
    }
    for phrase in [
        "131,072 bytes of KV a token",
        "426,788 tokens of KV",
        "524.3 MB of KV; a busy prefill replica makes 12.6 Gb/s",
        "remote prefill: 4,000 uncached tokens, threshold 512",
        "333.3 ms at 12,000 tokens/s",
    ] {
        assert!(text.contains(phrase), "{phrase}: {text}");
    }
    assert_eq!(json("")["models"][0]["replica_kv_tokens"], fixture["replica_kv_tokens"]);
    assert!(printed("--chunk-tokens 512").contains("stall      42.7 ms"));
}

/// The 70B shape: 16 and 8 bit, eight cards and one.
#[test]
fn the_large_shape_of_the_lessons() {
    let fixture = fixture();
    let want = &fixture["other_shapes_from_seed3"]["llama-70b"];
    let flags = "--model llama-3.1-70b --prompt-tokens 8000 --tp 8 --link-gbps 400 --link-latency-ms 0";
    let eight = &json(&format!("{flags} --nics 8"))["models"][0];
    assert_eq!(eight["kv_bytes_per_token"].as_f64(), want["kv_bytes_per_token"].as_f64());
    let (giga, mega) = (
        |bytes: &Value| (bytes.as_f64().unwrap() / 1e9).into(),
        |bytes: &Value| (bytes.as_f64().unwrap() / 1e6).into(),
    );
    assert_close(&giga(&eight["kv_bytes"]), &want["kv_gb_8000_tokens"], 5e-3, "GB of 8,000 tokens");
    assert_close(&mega(&eight["gpu_bytes"]), &want["per_gpu_mb_tp8"], 0.5, "MB on each of 8 GPUs");
    assert_close(
        &eight["links"][0]["transfer_ms"],
        &want["transfer_ms_8_nics_50GBps"],
        5e-3,
        "8 cards of 50 GB/s",
    );
    let one = &json(flags)["models"][0];
    assert_close(&one["links"][0]["transfer_ms"], &want["transfer_ms_1_nic"], 5e-2, "one card");
    let eight_bit = &json(&format!("{flags} --kv-dtype fp8"))["models"][0];
    assert_eq!(eight_bit["kv_bytes_per_token"].as_f64(), want["fp8_kv_bytes_per_token"].as_f64());
    for (tokens, name) in [(16_000, "kv_gb_16000_tokens"), (100_000, "kv_gb_100000_tokens")] {
        let long = &json(&format!("--model llama-3.1-70b --tp 8 --prompt-tokens {tokens}"))["models"][0];
        assert_close(&giga(&long["kv_bytes"]), &want[name], 5e-2, name);
    }
}

#[test]
fn sizes_of_a_replica_come_one_after_another() {
    let report = json("--model llama-3.1-70b --tp 1,2,4,8 --weights-dtype fp8");
    let models = report["models"].as_array().unwrap();
    let held: Vec<_> =
        models.iter().map(|it| (it["tensor_parallel"].as_u64(), it["replica_kv_tokens"].as_u64())).collect();
    // (n x 72 GB - 70.55 GB) / 327,680.
    let want = [(1, 4_425), (2, 224_151), (4, 663_604), (8, 1_542_510)]
        .map(|(gpus, tokens)| (Some(gpus), Some(tokens)));
    assert_eq!(held, want);
    let text = printed("--model llama-3.1-70b");
    assert!(text.contains("found 141.10 GB of weights on each, wanted less than 72.00 GB"), "{text}");
    assert!(text.contains("layer by layer"), "the rest is told: {text}");
}

/// Each layer moves while the next ones are computed: what is left of 419.4 ms on the wire is beyond 31 of 32 layers' computing.
#[test]
fn layers_hide_the_transfer() {
    let report = json("--link-gbps 10,400");
    let links = &report["models"][0]["links"];
    let slow = 0.5 + 419.4304 + 333.333_333 / 32.0;
    assert_close(&links[0]["ttft_layerwise_ms"], &slow.into(), 1e-3, "the wire is slower");
    let fast = 0.5 + 333.333_333 + 10.485_76 / 32.0;
    assert_close(&links[1]["ttft_layerwise_ms"], &fast.into(), 1e-3, "computing is slower");
}

#[test]
fn a_traffic_is_told_by_hit_rate() {
    let report = json("--rate 12 --output-tokens 500 --hit-rate 0.6");
    let rows = report["models"][0]["traffic"].as_array().unwrap();
    let rates: Vec<f64> = rows.iter().map(|row| row["hit_rate"].as_f64().unwrap()).collect();
    assert_eq!(rates, [0.0, 0.25, 0.5, 0.6, 0.75, 0.9]);
    let replicas =
        |row: &Value| (row["prefill_replicas"].as_u64().unwrap(), row["decode_replicas"].as_u64().unwrap());
    // 12 x uncached / 12,000 busy, planned 0.8 busy; 120 answers of 4,250 tokens where 426,788 fit; 400 are below 512.
    assert_eq!(
        rows.iter().map(replicas).collect::<Vec<_>>(),
        [(5, 2), (4, 2), (3, 2), (2, 2), (2, 2), (0, 2)]
    );
    let text = printed("--rate 12 --output-tokens 500");
    assert!(text.contains("3.35 : 1") && text.contains("none apart"), "{text}");
    assert!(!printed("").contains("requests/s"));
}

/// What holds the weights and one prompt with its answer gets a table; what does not gets the reason in its place.
#[test]
fn replicas_that_cannot_be_are_not_counted() {
    for (flags, reason) in [
        (
            "--model llama-3.1-70b --tp 1",
            Some("found 141.10 GB of weights on each GPU, wanted less than 72.00 GB"),
        ),
        (
            "--prompt-tokens 10000000",
            Some("found room for 426,788 tokens of KV, wanted 10,000,256 for one prompt and its answer"),
        ),
        (
            "--prompt-tokens 426600",
            Some("found room for 426,788 tokens of KV, wanted 426,856 for one prompt and its answer"),
        ),
        ("--prompt-tokens 426532", None),
        ("--model llama-3.1-70b --tp 4", None),
    ] {
        let flags = format!("{flags} --rate 12 --explain");
        let model = &json(&flags)["models"][0];
        assert_eq!(model["traffic_error"].as_str(), reason, "{flags}");
        let rows = model["traffic"].as_array().unwrap().len();
        let formulas = model["formulas"].as_array().unwrap();
        let explained = formulas.iter().any(|figure| figure["name"] == "decode_busy");
        assert_eq!((rows > 0, explained), (reason.is_none(), reason.is_none()), "{flags}");
        let text = printed(&flags);
        assert_eq!(text.contains("or both in one"), reason.is_none(), "{text}");
        assert!(reason.is_none_or(|reason| text.contains(reason)), "{text}");
    }
}

/// Heads are not cut in two, as vLLM has it; the other sizes and the prompt are told.
#[test]
fn heads_are_spread_evenly_or_not_at_all() {
    let (text, error) = run(&["--tp", "3,4,5", "--rate", "12", "--json"]);
    let want = "llama-3.1-8b: --tp: found 3, wanted a divisor of the model's 32 attention heads\n\
                llama-3.1-8b: --tp: found 5, wanted a divisor of the model's 32 attention heads";
    let error = error.unwrap();
    assert!(error.is_usage());
    assert_eq!(error.to_string(), want);
    let report: Value = serde_json::from_str(&text).unwrap();
    let told = report["models"].as_array().unwrap().iter().map(|model| {
        let known = model["kv_bytes_per_token"].is_number() && model["error"].is_null();
        (known, model["traffic"].as_array().unwrap().len())
    });
    assert_eq!(told.collect::<Vec<_>>(), [(false, 0), (true, 5), (false, 0)]);
    let (text, _) = run(&["--tp", "3", "--rate", "12"]);
    assert!(text.contains("333.3 ms at 12,000 tokens/s") && !text.contains("or both in one"), "{text}");
}

#[test]
fn bad_flags_are_told_all_at_once_and_nothing_is_printed() {
    let (text, error) = run(&["--cached-tokens", "5000", "--prefill-tps", "0", "--link-gbps", "0"]);
    let error = error.unwrap();
    assert_eq!(text, "");
    assert!(error.is_usage());
    let want = "--cached-tokens: found 5000, wanted at most the 4000 of --prompt-tokens\n\
                --prefill-tps: found 0, wanted more than 0\n--link-gbps: found 0, wanted more than 0";
    assert_eq!(error.to_string(), want);
}
