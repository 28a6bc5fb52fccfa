//! Every command on the demo model. Names begin with `model_`: these tests need it.

mod support;

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use serde_json::Value;
use support::{larql, model, ran, scratch, vindex};

/// `run` with the vindex as the first argument of a command.
fn on(vindex: &Path, command: &str, args: &[&str]) -> support::Ran {
    ran(larql().arg(command).arg(vindex).args(args))
}

fn hits(value: &Value) -> Vec<(u64, u64, f64)> {
    let hit = |hit: &Value| {
        let number = |key: &str| hit[key].as_u64().expect("a number");
        (number("layer"), number("feature"), hit["score"].as_f64().expect("a score"))
    };
    value["hits"].as_array().expect("hits").iter().map(hit).collect()
}

#[test]
fn model_info_tells_configuration_tensors_and_sizes() {
    let Some(model) = model() else { return };
    let info = ran(larql().arg("info").arg(&model).args(["--json", "--tensors"])).json();
    assert_eq!(info["config"]["family"], "gemma3");
    assert_eq!(info["config"]["n_layers"], 18);
    assert_eq!(info["config"]["hidden_size"], 640);
    assert_eq!(info["parameters"], 268_098_176);
    assert_eq!(info["unknown_tensors"].as_array().expect("a list").len(), 0);
    let tensors = info["tensors"].as_array().expect("a list");
    assert_eq!(tensors.len(), 236);
    let text = ran(larql().arg("info").arg(&model)).ok();
    for wanted in ["gemma3", "268.1 M", "q5_0", "640 x 262144", "512 positions in 15 of 18 layers"]
    {
        assert!(text.contains(wanted), "{wanted:?} is not in {text}");
    }
    let Some(vindex) = vindex() else { return };
    let same = on(vindex, "info", &["--json"]).json();
    assert_eq!(same["config"], info["config"]);
    assert_eq!(same["roles"], info["roles"]);
}

#[test]
fn model_stats_count_features_and_bytes() {
    let Some(vindex) = vindex() else { return };
    let stats = on(vindex, "stats", &["--json"]).json();
    assert_eq!(stats["n_features"], 36_864);
    assert_eq!(stats["layers"].as_array().expect("layers").len(), 18);
    assert!(on(vindex, "stats", &[]).ok().contains("36,864"));
}

#[test]
fn model_knn_is_sorted_complete_and_the_same_on_every_kernel() {
    let Some(vindex) = vindex() else { return };
    let args = ["--layer", "12", "--token", "France", "--top", "50", "--json"];
    let found = on(vindex, "knn", &args).json();
    let found = hits(&found);
    assert_eq!(found.len(), 50);
    assert!(found.windows(2).all(|pair| pair[0].2.abs() >= pair[1].2.abs()));
    assert_eq!(found.iter().map(|hit| hit.1).collect::<HashSet<_>>().len(), 50);
    let scalar = [&args[..], &["--cpu", "scalar", "--threads", "1"]].concat();
    assert_eq!(hits(&on(vindex, "knn", &scalar).json()), found, "bit for bit");
    let signed = [&args[..], &["--order", "signed"]].concat();
    let signed = hits(&on(vindex, "knn", &signed).json());
    assert!(signed.windows(2).all(|pair| pair[0].2 >= pair[1].2));
}

#[test]
fn model_knn_takes_vectors_and_rows() {
    let Some(vindex) = vindex() else { return };
    let own = on(vindex, "knn", &["--layer", "5", "--row", "5:77", "--top", "1", "--json"]).json();
    assert_eq!(hits(&own)[0].1, 77, "a row is nearest to itself");

    let dir = scratch("vectors");
    let vector = dir.join("q.json");
    let ones: Vec<f32> = vec![1.0; 640];
    fs::write(&vector, serde_json::to_vec(&ones).expect("JSON")).expect("a file");
    let path = vector.to_str().expect("UTF-8");
    let by_json = on(vindex, "knn", &["-l", "5", "--vector", path, "--json"]).json();
    let npy = dir.join("q.npy");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (640,), }\n";
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(ones.iter().flat_map(|x| x.to_le_bytes()));
    fs::write(&npy, bytes).expect("a file");
    let by_npy =
        on(vindex, "knn", &["-l", "5", "--vector", npy.to_str().expect("UTF-8"), "--json"]);
    assert_eq!(hits(&by_npy.json()), hits(&by_json));

    fs::write(&vector, b"[1, 2, 3]").expect("a file");
    on(vindex, "knn", &["-l", "5", "--vector", path]).fails(1, &["3", "640", path]);
    let mut broken: Vec<String> = vec!["1".to_owned(); 640];
    broken[7] = "1e39".to_owned();
    fs::write(&vector, format!("[{}]", broken.join(","))).expect("a file");
    on(vindex, "knn", &["-l", "5", "--vector", path]).fails(1, &["position 7", path]);
}

#[test]
fn model_describe_finds_the_features_that_write_a_word() {
    let Some(vindex) = vindex() else { return };
    let found = on(vindex, "describe", &["France", "--json"]).json();
    let features = found["parts"][0]["features"].as_array().expect("features").clone();
    assert_eq!(features.len(), 20);
    let ids: Vec<(u64, u64)> = features
        .iter()
        .map(|f| (f["layer"].as_u64().expect("n"), f["feature"].as_u64().expect("n")))
        .collect();
    assert!(ids.contains(&(17, 1593)), "{ids:?}");
    assert!(ids.windows(2).all(|pair| pair[0].0 <= pair[1].0), "grouped by layer");
    let strong =
        on(vindex, "describe", &["France", "--min", "0.2", "--layers", "17", "--json"]).json();
    let strong = strong["parts"][0]["features"].as_array().expect("features").clone();
    assert!(
        strong.iter().all(|f| f["score"].as_f64().expect("n").abs() >= 0.2 && f["layer"] == 17)
    );
    let several = on(vindex, "describe", &["Kreuzberg", "--json"]).json();
    let parts = several["parts"].as_array().expect("parts").len();
    assert!(parts >= 3, "a word of several tokens: each, and all together");
    assert!(on(vindex, "describe", &["Monday"]).ok().contains("chance"));
    let args = ["France", "--query", "embedding", "--json"];
    let customary = hits(&on(vindex, "describe", &args).json());
    assert_eq!(customary.len(), 20);
    assert!(customary.windows(2).all(|pair| pair[0].0 <= pair[1].0), "grouped by layer");
    // Each is the best of its layer, by the same search as `knn`.
    let (layer, feature, score) = customary[0];
    let knn = ["-l", &layer.to_string(), "--token", "France", "-k", "1", "--json"];
    assert_eq!(hits(&on(vindex, "knn", &knn).json()), [(layer, feature, score)]);
    let text = on(vindex, "describe", &args[..3]).ok();
    assert!(text.contains("for comparison only"));
}

#[test]
fn model_feature_shows_norms_and_labels() {
    let Some(vindex) = vindex() else { return };
    let feature = on(vindex, "feature", &["17:1593", "--json"]).json();
    assert!(feature["gate_norm"].as_f64().expect("a norm") > 0.0);
    let promotes = feature["label"]["promotes"].as_array().expect("a label").clone();
    let text: Vec<&str> = promotes.iter().filter_map(|token| token["text"].as_str()).collect();
    assert!(text.iter().any(|token| token.contains("countr")), "{text:?}");
    assert!(on(vindex, "feature", &["17:1593"]).ok().contains("gate norm"));
}

#[test]
fn model_what_is_not_there_is_an_error_with_the_range() {
    let Some(vindex) = vindex() else { return };
    for (command, args, wanted) in [
        ("knn", &["--layer", "18", "--token", "a"][..], &["18"][..]),
        ("knn", &["--layer", "0", "--token", ""], &["empty"]),
        ("knn", &["--layer", "0", "--row", "0:2048"], &["2048"]),
        ("knn", &["--layer", "0", "--token", "a", "--expert", "1"], &["expert"]),
        ("knn", &["--layer", "0", "--token", "a", "--routed"], &["expert"]),
        ("knn", &["--layer", "0", "--vector", "no-such.npy"], &["no-such.npy"]),
        ("describe", &["  "], &["empty"]),
        ("describe", &["a", "--min", "2"], &["--min"]),
        ("describe", &["a", "--layers", "18.."], &["18"]),
        ("describe", &["a", "--query", "embedding", "--min", "0.1"], &["--min"]),
        ("feature", &["18:0"], &["18"]),
        ("feature", &["0:2048"], &["2048"]),
        ("labels", &["--layer", "18"], &["18"]),
    ] {
        on(vindex, command, args).fails(1, wanted);
    }
}

#[test]
fn model_verify_finds_a_changed_byte_and_a_missing_file() {
    let Some(model) = model() else { return };
    let dir = scratch("damage");
    let copy = dir.join("copy.vindex");
    let made = ran(larql().arg("extract-index").arg(&model).arg("-o").arg(&copy).arg("--copy"));
    assert!(made.ok().contains("model.gguf"));
    assert!(on(&copy, "verify", &[]).ok().contains("sound"));

    let weights = copy.join("model.gguf");
    let mut bytes = fs::read(&weights).expect("weights");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&weights, &bytes).expect("a file");
    let found = on(&copy, "verify", &["--json"]);
    assert_eq!(found.code, Some(1), "{found:#?}");
    assert!(found.stderr.contains("error"));
    let report: Value = serde_json::from_str(&found.stdout).expect("the report is printed anyway");
    assert_eq!(report["files"][0]["state"], "damaged");

    fs::write(&weights, &bytes[..middle]).expect("a file");
    on(&copy, "stats", &[]).fails(1, &["model.gguf", "extract"]);
    fs::remove_file(&weights).expect("removed");
    on(&copy, "stats", &[]).fails(1, &["model.gguf", "extract"]);
    assert_eq!(on(&copy, "verify", &[]).code, Some(1));
}

#[test]
fn model_slices_answer_what_they_hold_and_name_what_they_do_not() {
    let Some(vindex) = vindex() else { return };
    let dir = scratch("slice");
    let browse = dir.join("browse.vindex");
    let target = browse.to_str().expect("UTF-8");
    on(vindex, "slice", &["--level", "browse", "-o", target]).ok();
    let args = ["--layer", "3", "--token", "France", "--json"];
    assert_eq!(
        hits(&on(&browse, "knn", &args).json()),
        hits(&on(vindex, "knn", &args).json()),
        "the same rows, the same scores"
    );
    let all = on(&browse, "knn", &["-l", "0", "--token", "a", "-k", "999999", "--json"]).json();
    assert_eq!(hits(&all).len(), 2048, "min(k, n)");
    on(&browse, "describe", &["France"]).fails(1, &["browse", "larql"]);
    on(vindex, "slice", &["--level", "browse", "-o", target]).fails(1, &["exists", "--force"]);
    on(vindex, "slice", &["--level", "browse", "-o", target, "--force"]).ok();

    let small = dir.join("small.vindex");
    let target = small.to_str().expect("UTF-8");
    on(vindex, "slice", &["--roles", "gate,ffn", "--layers", "0..2", "-o", target]).ok();
    let requantised = dir.join("q8.vindex");
    let report = ran(larql()
        .args(["convert", "quantize", "q8_0"])
        .arg(&small)
        .arg("-o")
        .arg(&requantised)
        .arg("--json"))
    .json();
    let roles = report["roles"].as_array().expect("roles").clone();
    assert!(!roles.is_empty());
    assert!(roles.iter().all(|role| role["relative"].as_f64().expect("n") < 0.02), "{roles:#?}");
}

#[test]
fn model_residency_adds_up() {
    let Some(vindex) = vindex() else { return };
    let residency = on(vindex, "residency", &["--json"]).json();
    for role in residency["roles"].as_array().expect("roles") {
        assert!(role["resident"].as_u64() <= role["mapped"].as_u64(), "{role}");
    }
    let heap = residency["heap"].as_array().expect("heap").iter();
    let heap: u64 = heap.map(|owner| owner["bytes"].as_u64().expect("bytes")).sum();
    assert!(heap < 2 << 20, "no weight stands on the heap: {heap} bytes");
}

/// Ctrl-C during the labels of an extraction: exit 130, and the vindex is whole.
#[cfg(unix)]
#[test]
fn model_ctrl_c_stops_within_a_moment_and_leaves_nothing_half_done() {
    use std::process::{Command, Stdio};
    let Some(model) = model() else { return };
    let dir = scratch("interrupt");
    let target = dir.join("x.vindex");
    let mut command = larql();
    command.arg("extract-index").arg(&model).arg("-o").arg(&target).args(["--labels", "eager"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().expect("kill runs").success());
    let begun = std::time::Instant::now();
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{output:#?}");
    assert!(begun.elapsed().as_secs() < 10);
    for entry in fs::read_dir(&dir).expect("a directory") {
        assert_eq!(entry.expect("an entry").path(), target, "no leftover");
    }
    if target.exists() {
        on(&target, "verify", &[]).ok();
    }
}
