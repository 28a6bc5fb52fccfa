//! The command line without a model: usage, bad input, exit codes, pipes, completions.

mod support;

use std::fs;

use support::{larql, ran, run, scratch};

#[test]
fn wrong_usage_exits_with_2_and_says_what_is_missing() {
    for (args, wanted) in [
        (&["knn", "x.vindex"][..], "--layer"),
        (&["knn", "x.vindex", "--layer", "3"], "--token"),
        (&["knn", "x.vindex", "--layer", "3", "--token", "a", "--row", "1:2"], "cannot be used"),
        (&["knn", "x.vindex", "--layer", "x", "--token", "a"], "invalid value"),
        (&["knn", "x.vindex", "--layer", "-1", "--token", "a"], "error"),
        (&["knn", "x.vindex", "--layer", "1", "--row", "1"], "LAYER:FEATURE"),
        (&["knn", "x.vindex", "-l", "1", "--token", "a", "--order", "up"], "signed"),
        (&["feature", "x.vindex", "17"], "LAYER:FEATURE"),
        (&["walk", "x.vindex", "a", "--layers", "7..3"], "3..7"),
        (&["walk", "x.vindex", "a", "--query", "gate"], "embedding"),
        (&["walk", "x.vindex", "a", "--position", "first"], "`last` or `all`"),
        (&["trace", "x.vindex"], "<PROMPT>"),
        (&["why", "x.vindex", "a", "--ablate", "0"], "--ablate"),
        (&["why", "x.vindex"], "<PROMPT>"),
        (&["extract-index", "x.gguf"], "--output"),
        (&["extract-index", "x", "-o", "y", "--level", "some"], "browse"),
        (&["extract-index", "x", "-o", "y", "--dtype", "q9"], "q4_k"),
        (&["extract-index", "x", "-o", "y", "--force", "--resume"], "cannot be used"),
        (&["convert", "quantize", "q9", "x", "-o", "y"], "q4_k"),
        (&["slice", "x", "-o", "y"], "--level"),
        (&["slice", "x", "-o", "y", "--roles", "head"], "lm_head"),
        (&["info", "--threads", "0"], "invalid value"),
        (&["info", "--color", "red"], "auto"),
        (&["completions", "tcl"], "fish"),
        (&["run", "x.vindex"], "<PROMPT>"),
        (&["run", "x.vindex", "a", "--context", "0"], "8192,shift"),
        (&["run", "x.vindex", "a", "--kv", "q4"], "q8_0"),
        (&["run", "x.vindex", "a", "--ffn", "walk:101%"], "walk:K"),
        (&["chat"], "<VINDEX>"),
        (&["chat", "x.vindex", "--context", "0"], "8192,shift"),
        (&["chat", "x.vindex", "-n", "x"], "invalid value"),
        (&["lm-head", "x.vindex", "--delete", "--force"], "cannot be used"),
        (&["discribe"], "describe"),
    ] {
        let ran = run(args);
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:#?}");
        assert!(ran.stderr.contains(wanted), "{args:?}: {wanted:?} is not in {:#?}", ran.stderr);
    }
}

#[test]
fn every_command_refuses_a_path_that_does_not_exist() {
    let gone = scratch("gone").join("no.vindex");
    let gone = gone.to_str().expect("UTF-8");
    for args in [
        &["info", gone][..],
        &["extract-index", gone, "-o", "y.vindex"],
        &["convert", "gguf-to-vindex", gone, "-o", "y.vindex"],
        &["convert", "quantize", "q8_0", gone, "-o", "y.vindex"],
        &["verify", gone],
        &["slice", gone, "-o", "y.vindex", "--level", "browse"],
        &["run", gone, "a"],
        &["chat", gone],
        &["stats", gone],
        &["lm-head", gone],
        &["knn", gone, "--layer", "0", "--token", "a"],
        &["walk", gone, "a"],
        &["trace", gone, "a"],
        &["why", gone, "a"],
        &["describe", gone, "a"],
        &["feature", gone, "0:0"],
        &["labels", gone],
        &["labels", gone, "--compute"],
        &["residency", gone],
    ] {
        run(args).fails(1, &[gone]);
    }
    assert!(!std::path::Path::new("y.vindex").exists());
}

#[test]
fn what_is_no_vindex_and_no_model_is_refused() {
    let dir = scratch("junk");
    let empty = dir.join("empty.vindex");
    fs::create_dir(&empty).expect("a directory");
    let empty = empty.to_str().expect("UTF-8");
    for command in ["stats", "verify", "residency"] {
        run(&[command, empty]).fails(1, &["is not a vindex", "larql extract-index"]);
    }
    let junk = dir.join("junk.gguf");
    fs::write(&junk, b"this is no model").expect("a file");
    let junk = junk.to_str().expect("UTF-8");
    run(&["info", junk]).fails(1, &[junk]);
    let target = dir.join("made.vindex");
    let target_text = target.to_str().expect("UTF-8");
    run(&["extract-index", junk, "-o", target_text]).fails(1, &[junk]);
    assert!(!target.exists(), "a failed extraction leaves nothing");
    assert_eq!(fs::read_dir(&dir).expect("a directory").count(), 2, "nor anything beside it");

    let manifest = dir.join("broken.vindex");
    fs::create_dir(&manifest).expect("a directory");
    fs::write(manifest.join("index.json"), b"{").expect("a file");
    run(&["stats", manifest.to_str().expect("UTF-8")]).fails(1, &["index.json"]);
}

#[test]
fn info_says_which_kernels_run_and_cpu_forces_them() {
    let machine = run(&["info", "--json"]).json();
    assert_eq!(machine["version"], env!("CARGO_PKG_VERSION"));
    let available = machine["kernels_available"].as_array().expect("a list");
    assert!(available.contains(&machine["kernels"]));
    let scalar = run(&["info", "--json", "--cpu", "scalar", "--threads", "3"]).json();
    assert_eq!(scalar["kernels"], "scalar");
    assert_eq!(scalar["threads"], 3);
    run(&["info", "--cpu", "mmx"]).fails(1, &["mmx", "scalar", "avx2", "neon"]);
    let absent = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
    run(&["info", "--cpu", absent]).fails(1, &[absent, "scalar"]);
}

#[test]
fn colour_follows_the_flag_and_no_color() {
    assert!(!run(&["info"]).ok().contains('\x1b'));
    assert!(run(&["info", "--color", "always"]).ok().contains('\x1b'));
    assert!(!run(&["info", "--color", "never"]).ok().contains('\x1b'));
    let asked = ran(larql().args(["info", "--color", "always"]).env("NO_COLOR", "1")).ok();
    assert!(asked.contains('\x1b'), "an explicit flag is stronger than the environment");
    let error = run(&["stats", "no-such", "--color", "always"]);
    assert!(error.stderr.contains('\x1b'));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    for args in [&["info"][..], &["info", "--json"], &["completions", "bash"], &["--help"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = larql();
        command.args(args).stdout(writer);
        let output = command.stderr(std::process::Stdio::piped()).spawn().expect("larql starts");
        let output = output.wait_with_output().expect("larql ends");
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(output.stderr.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn completions_are_there_for_the_usual_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]).ok();
        for word in ["describe", "extract-index", "feature-major-down"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn help_is_there_for_every_command() {
    for command in [
        "info",
        "extract-index",
        "convert",
        "verify",
        "slice",
        "run",
        "chat",
        "stats",
        "knn",
        "walk",
        "trace",
        "why",
        "describe",
        "feature",
        "labels",
        "residency",
        "pull",
        "completions",
    ] {
        assert!(run(&[command, "--help"]).ok().contains("Usage: larql"), "{command}");
    }
    assert!(run(&["extract", "--help"]).ok().contains("--feature-major-down"), "the alias");
}
