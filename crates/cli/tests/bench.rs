//! `larql bench` on the demo model (tests named `model_`), and its flags.

mod support;

use std::fs;

use support::{larql, ran, run, scratch, vindex};

fn on(args: &[&str]) -> Option<support::Ran> {
    let vindex = vindex()?;
    Some(ran(larql().arg("bench").arg(vindex).args(args)))
}

const SHORT: [&str; 6] = ["-n", "3", "--warmup", "1", "--prompt-tokens", "24"];

#[test]
fn model_a_table_says_where_the_time_went() {
    let Some(ran) = on(&SHORT) else { return };
    let text = ran.ok();
    for wanted in ["thread", "ms/token", "p99", "LM head", "weights read", "GB/s", "said"] {
        assert!(text.contains(wanted), "{wanted:?} is not in {text}");
    }
}

#[test]
fn model_json_and_verbose_name_every_part() {
    let Some(ran) = on(&[&SHORT[..], &["-v", "--json"]].concat()) else { return };
    let rows = ran.json();
    let row = &rows["backends"][0];
    let number =
        |pointer: &str| row.pointer(pointer).and_then(serde_json::Value::as_f64).expect(pointer);
    assert_eq!((number("/prefill/tokens"), number("/decode/tokens")), (24.0, 3.0));
    let parts = ["forward_ms", "lm_head_ms", "sampling_ms", "other_ms"];
    let sum: f64 = parts.iter().map(|part| number(&format!("/decode/{part}"))).sum();
    let mean = number("/decode/mean_ms");
    assert!((sum / mean - 1.0).abs() < 0.05, "{sum} of {mean}");
    assert!(number("/decode/p50_ms") <= number("/decode/p99_ms"));
    // All matrices of the blocks, and the head: 246.4 MB of a file of 253.1 MB.
    assert_eq!(number("/weight_bytes_per_token"), 246_364_160.0);
    assert_eq!((number("/lm_head/by_scan"), number("/lm_head/by_planes")), (3.0, 0.0));
    assert!(number("/bandwidth_gb_s") > 0.1 && number("/bandwidth_share") > 0.0);
    if cfg!(target_os = "linux") {
        assert!(number("/peak_memory_bytes") > 50e6);
    }
    assert!(row["text"].as_str().expect("text").starts_with(" France"), "{row}");
    let operations = row["decode_operations"].as_array().expect("operations");
    assert!(operations.iter().any(|o| o["operation"] == "gate_up" && o["bytes"] == 32_440_320.0));
    let caches: Vec<_> = row["caches"].as_array().expect("caches").iter().collect();
    for name in ["keys and values", "down_meta", "lm head planes: bounds and tables"] {
        assert!(caches.iter().any(|cache| cache["name"] == name), "{name}");
    }
    assert!(row["residency"]["roles"].as_array().expect("roles").len() > 10);
}

#[test]
fn model_perplexity_of_a_text() {
    let file = scratch("perplexity").join("text.txt");
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(8);
    fs::write(&file, text).expect("a file");
    let file = file.to_str().expect("UTF-8");
    let Some(ran) = on(&["--perplexity", file, "--window", "32", "--json"]) else { return };
    let row = ran.json();
    assert_eq!(
        (&row["tokens"], &row["windows"], &row["scored"]),
        (&82.into(), &2.into(), &30.into())
    );
    let perplexity = row["perplexity"].as_f64().expect("a number");
    assert!(
        perplexity > 1.0 && perplexity < 3.0,
        "{perplexity}: the sentence is known and repeated"
    );
    let Some(ran) = on(&["--perplexity", file]) else { return };
    ran.fails(1, &["82 tokens", "window of 512", "shorter window"]);
    let Some(ran) = on(&["--perplexity", file, "--window", "3"]) else { return };
    ran.fails(1, &["the window", "3 tokens"]);
    let Some(ran) = on(&["--perplexity", "nowhere.txt"]) else { return };
    ran.fails(1, &["cannot be read", "nowhere.txt"]);
}

#[test]
fn model_a_sweep_compares_walks_with_dense() {
    let file = scratch("sweep").join("text.txt");
    let text = "Anna carries two baskets of bread to the island every day. ".repeat(3);
    fs::write(&file, text).expect("a file");
    let file = file.to_str().expect("UTF-8");
    let args = ["--ffn-sweep", "--text", file, "--keep", "10%,2048", "--window", "32", "--json"];
    let Some(ran) = on(&args) else { return };
    let rows = ran.json()["rows"].clone();
    let modes: Vec<_> = rows.as_array().expect("rows").iter().map(|row| &row["mode"]).collect();
    assert_eq!(modes, ["dense", "walk:10%", "walk:2048"]);
    assert_eq!((&rows[1]["features"], &rows[0]["agreement"]), (&205.into(), &1.0.into()));
    let kl = |row: usize| rows[row]["kl"].as_f64().expect("a number");
    assert!(kl(1) > 0.1, "a tenth of the features is not the model: {rows}");
    assert!(kl(2).abs() < 1e-9, "all features are all features: {rows}");
}

#[test]
fn model_what_cannot_be_measured_is_refused() {
    let Some(ran) = on(&["--prompt-tokens", "3"]) else { return };
    ran.fails(1, &["3 tokens", "has 6", "--prompt-tokens"]);
    let Some(vindex) = vindex() else { return };
    let vindex = vindex.to_str().expect("UTF-8");
    for (args, wanted) in [
        (&["--backends", "gpu"][..], "CPU only"),
        (&["--backends", "abacus"], "the backends are: cpu"),
        (&["-n", "0"], "--tokens"),
        (&["--keep", "1%"], "--ffn-sweep"),
        (&["--ffn-sweep", "--keep", "0"], "1 or more"),
        (&["--ffn-sweep", "--perplexity", "x"], "cannot be used with"),
    ] {
        let ran = run(&[&["bench", vindex], args].concat());
        assert_eq!(ran.code, Some(2), "{ran:#?}");
        assert!(ran.stderr.contains(wanted), "{wanted:?}: {ran:#?}");
    }
}
