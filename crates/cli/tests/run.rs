//! `larql run` on the demo model (tests named `model_`), and its flags.

mod support;

use std::io::Write;
use std::process::Stdio;

use support::{larql, model, ran, run, scratch, vindex};

const PROMPT: &str = "Paris is the capital of";

fn on(args: &[&str]) -> Option<support::Ran> {
    let vindex = vindex()?;
    Some(ran(larql().arg("run").arg(vindex).args(args)))
}

#[test]
fn model_a_text_is_continued() {
    let Some(ran) = on(&[PROMPT, "-n", "11"]) else { return };
    assert!(ran.stderr.contains("6 tokens") && ran.stderr.contains("tok/s"), "{ran:#?}");
    let text = ran.ok();
    assert!(text.starts_with(" France and is the most visited city in the world"), "{text:?}");
    let Some(quiet) = on(&[PROMPT, "-n", "2", "--quiet"]) else { return };
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), (" France and\n", ""));
}

#[test]
fn model_json_tells_tokens_and_timings() {
    let Some(ran) = on(&[PROMPT, "-n", "3", "--json"]) else { return };
    let row = ran.json();
    assert_eq!(row["text"], " France and is");
    assert_eq!(row["tokens"].as_array().expect("tokens").len(), 3);
    assert_eq!(row["tokens"][0]["text"], " France");
    assert_eq!((&row["finish"], &row["prompt_tokens"]), (&"length".into(), &6.into()));
    assert!(row["seed"].is_null(), "greedy draws nothing");
    assert!(row["timings"]["prefill_ms"].as_f64().expect("ms") > 0.0);
}

#[test]
fn model_the_prompt_comes_from_stdin() {
    let Some(vindex) = vindex() else { return };
    let mut command = larql();
    command.arg("run").arg(vindex).args(["-", "-n", "2", "-q"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("larql starts");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(format!("{PROMPT}\n").as_bytes()).expect("it reads");
    drop(input);
    let output = child.wait_with_output().expect("larql ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout), " France and\n");
}

#[test]
fn model_stop_strings_end_the_text_and_are_not_shown() {
    let Some(ran) = on(&[PROMPT, "--stop", "visited city", "--json"]) else { return };
    let row = ran.json();
    assert_eq!(
        (&row["text"], &row["finish"]),
        (&" France and is the most ".into(), &"stop".into())
    );
    let Some(ran) = on(&[PROMPT, "--stop", ""]) else { return };
    ran.fails(1, &["a stop string"]);
}

#[test]
fn model_seeds_are_reproducible() {
    let draw = |seed: &str| {
        let args = [PROMPT, "-n", "12", "--temperature", "1.5", "--top-p", "1", "--seed", seed];
        on(&args).map(support::Ran::ok)
    };
    let Some(first) = draw("1") else { return };
    assert_eq!(draw("1"), Some(first.clone()));
    assert_ne!(draw("2"), Some(first));
}

#[test]
fn model_what_cannot_be_is_refused() {
    for (args, wanted) in [
        (&["a", "--top-k", "5"][..], &["--top-k", "--temperature"][..]),
        (&["a", "--seed", "5"], &["--seed"]),
        (&["a", "--temperature", "-1"], &["temperature", "-1"]),
        (&["a", "--temperature", "1", "--top-p", "1.5"], &["top-p", "1.5"]),
        (&["", "--raw"], &["no tokens"]),
        (&["one two three four", "--context", "3"], &["3 tokens", "--context", "shift"]),
    ] {
        let Some(ran) = on(args) else { return };
        ran.fails(1, wanted);
    }
    let Some(model) = model() else { return };
    let model = model.to_str().expect("UTF-8");
    run(&["run", model, "a"]).fails(1, &["is not a vindex", "larql extract-index"]);
}

#[test]
fn model_a_full_context_is_an_error_and_shift_forgets() {
    let Some(ran) = on(&[PROMPT, "-n", "20", "--context", "10"]) else { return };
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    assert_eq!(ran.stdout, " France and is the most\n", "what was made is shown");
    assert!(ran.stderr.contains("shift"), "{ran:#?}");
    let Some(ran) = on(&[PROMPT, "-n", "20", "--context", "10,shift", "--json"]) else { return };
    assert_eq!(ran.json()["finish"], "length");
}

#[test]
fn model_modes_are_named_and_near() {
    for kv in ["q8_0", "f32"] {
        let Some(ran) = on(&[PROMPT, "-n", "4", "--kv", kv]) else { return };
        assert_eq!(ran.ok(), " France and is the\n", "{kv}");
    }
    let Some(ran) = on(&[PROMPT, "-n", "2", "--ffn", "walk:100%"]) else { return };
    assert!(ran.stderr.contains("approximation"), "{ran:#?}");
    assert_eq!(ran.ok(), " France and\n", "all features are all features");
}

#[test]
fn model_trace_saves_residuals() {
    let file = scratch("trace").join("t.safetensors");
    let Some(ran) = on(&[PROMPT, "-n", "3", "--trace", file.to_str().expect("UTF-8")]) else {
        return;
    };
    ran.ok();
    let bytes = std::fs::read(&file).expect("the trace");
    let (_, header) = bytes.split_at(8);
    let len = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let header: serde_json::Value = serde_json::from_slice(&header[..len]).expect("a header");
    // Six tokens of the prompt, and two that were generated and run.
    for name in ["embed", "blocks.0.resid_pre", "blocks.17.resid_post", "ln_final"] {
        assert_eq!(header[name]["shape"], serde_json::json!([8, 640]), "{name}");
        assert_eq!(header[name]["dtype"], "F32", "{name}");
    }
    assert_eq!(header["blocks.3.mlp_post"]["shape"], serde_json::json!([8, 2048]));
    assert_eq!(std::fs::read_dir(file.parent().expect("a directory")).expect("it").count(), 1);
    // A place that cannot be written to is found before the model runs.
    let Some(ran) = on(&[PROMPT, "--trace", "no/such/dir/t.safetensors"]) else { return };
    ran.fails(1, &["no/such/dir/t.safetensors"]);
}

/// Ctrl-C: exit 130, and what was made stays.
#[cfg(unix)]
#[test]
fn model_ctrl_c_ends_the_text() {
    use std::io::Read;
    use std::process::Command;
    let Some(vindex) = vindex() else { return };
    let mut command = larql();
    command.arg("run").arg(vindex).args([PROMPT, "-n", "4000"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("larql starts");
    let mut first = [0; 7];
    child.stdout.as_mut().expect("a pipe").read_exact(&mut first).expect("text comes");
    assert_eq!(&first, b" France");
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().expect("kill runs").success());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{output:#?}");
    assert!(output.stdout.ends_with(b"\n"));
}
