//! `larql walk`, `trace` and `why` on the demo model (tests named `model_`).

mod support;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;
use support::{larql, ran, scratch, vindex};

const PROMPT: &str = "The capital of France is";
const MEANS: &str = "feature_means.bin";

fn on(command: &str, args: &[&str]) -> Option<support::Ran> {
    let vindex = vindex()?;
    Some(ran(larql().arg(command).arg(vindex).args(args)))
}

/// A vindex that `larql why` has stored the features' means in, which it does once and says.
fn with_means() -> Option<&'static Path> {
    static MADE: OnceLock<Option<PathBuf>> = OnceLock::new();
    MADE.get_or_init(|| {
        let path = scratch("means").join("g.vindex");
        let (model, made) = (support::model()?, path.to_str().expect("UTF-8"));
        support::run(&["extract-index", model.to_str().expect("UTF-8"), "-o", made]).ok();
        let why = || support::run(&["why", made, PROMPT, "-k", "1"]);
        let (first, second) = (why(), why());
        assert!(first.stderr.contains("once for this vindex"), "{first:#?}");
        assert!(second.stderr.is_empty() && path.join(MEANS).exists(), "{second:#?}");
        assert_eq!(first.ok(), second.ok());
        Some(path)
    })
    .as_deref()
}

fn why(args: &[&str]) -> Option<support::Ran> {
    Some(ran(larql().arg("why").arg(with_means()?).args(args)))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a Vec<Value> {
    value[key].as_array().expect("a list")
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().expect("a number")
}

/// The texts of a drawing, which must be well-formed XML and stay within its borders.
fn texts(path: &Path) -> Vec<String> {
    let svg = std::fs::read_to_string(path).expect("a drawing");
    let document = roxmltree::Document::parse(&svg).expect("valid XML");
    let root = document.root_element();
    assert_eq!(root.tag_name().name(), "svg");
    assert_eq!(root.tag_name().namespace(), Some("http://www.w3.org/2000/svg"));
    let size = |node: roxmltree::Node<'_, '_>, name: &str| -> f64 {
        node.attribute(name).expect(name).parse().expect("a number")
    };
    let (width, height) = (size(root, "width"), size(root, "height"));
    let texts = root.descendants().filter(|node| node.has_tag_name("text"));
    texts
        .map(|node| {
            assert!((0.0..=width).contains(&size(node, "x")), "{node:?}");
            assert!((0.0..=height).contains(&size(node, "y")), "{node:?}");
            node.text().unwrap_or_default().to_owned()
        })
        .collect()
}

#[test]
fn model_walk_ranks_what_fires() {
    let Some(ran) = on("walk", &[PROMPT, "--top", "2", "--json"]) else { return };
    let walk = ran.json();
    assert_eq!(walk["query"], "residual");
    assert_eq!(list(&walk, "tokens").len(), 6);
    let firings = list(&walk, "firings");
    assert_eq!(firings.len(), 36);
    assert!(firings.iter().all(|f| f["position"] == 5));
    for (i, pair) in firings.chunks_exact(2).enumerate() {
        assert!(pair.iter().all(|f| f["layer"] == i));
        assert!(number(&pair[0], "contribution") >= number(&pair[1], "contribution"));
        assert!(number(&pair[0], "share") <= 1.0);
    }
    // One whose labels leave no doubt.
    let city = firings.iter().find(|f| f["layer"] == 12 && f["feature"] == 1542).expect("1542");
    assert!(list(&city["label"], "promotes").iter().any(|token| token["text"] == " city"));

    let Some(ran) = on("walk", &[PROMPT, "--layers", "3..=4", "--position", "2"]) else { return };
    let text = ran.ok();
    assert!(text.contains("position 2, ␣capital") && text.contains("L3") && text.contains("L4"));
    assert!(!text.contains("L5") && !text.contains("␣France"), "{text}");
    let Some(ran) = on("walk", &[PROMPT, "-k", "1", "-p", "all", "--json"]) else { return };
    assert_eq!(list(&ran.json(), "firings").len(), 6 * 18);
}

/// What an earlier position computes does not depend on what follows it.
#[test]
fn model_positions_do_not_see_what_follows() {
    let Some(all) = on("walk", &[PROMPT, "-k", "1", "-p", "all", "--json"]) else { return };
    let Some(one) = on("walk", &[PROMPT, "-k", "1", "-p", "3", "--json"]) else { return };
    let ids = |value: Value| -> Vec<(Value, Value)> {
        let third = list(&value, "firings").iter().filter(|f| f["position"] == 3);
        third.map(|f| (f["layer"].clone(), f["feature"].clone())).collect()
    };
    assert_eq!(ids(all.json()), ids(one.json()));
}

#[test]
fn model_walk_by_embedding_is_for_comparison() {
    let args = ["The capital of France", "--query", "embedding", "--top", "2"];
    let Some(ran) = on("walk", &[&args[..], &["--json"]].concat()) else { return };
    let walk = ran.json();
    assert_eq!(list(&walk, "hits").len(), 36);
    assert_eq!(walk["asked_by"]["text"], " France");
    assert_eq!(walk["query"], "embedding");
    let Some(ran) = on("walk", &args) else { return };
    assert!(ran.ok().contains("for comparison only"));
    let Some(help) = on("walk", &["--help"]) else { return };
    assert!(help.ok().contains("for comparison only"));
}

#[test]
fn model_trace_sums_to_the_logit() {
    for (prompt, token) in [(PROMPT, " Paris"), ("import numpy as", " np")] {
        let args = [prompt, "--token", token.trim(), "--json", "-k", "30"];
        let Some(ran) = on("trace", &args) else { return };
        let trace = ran.json();
        assert_eq!(trace["token"]["text"], token);
        let sum = &trace["attribution"];
        let logit = number(sum, "logit");
        // Float32 residuals, summed in an order of their own.
        assert!((number(sum, "sum") - logit).abs() < 1e-3, "{sum}");
        let parts = ["embedding", "attention", "ffn", "norm_bias"];
        let total: f64 = parts.iter().map(|part| number(sum, part)).sum();
        assert!((total - number(sum, "sum")).abs() < 1e-6);
        // Activations rounded to eight bits: measured 0.04 and less.
        assert!(number(sum, "rounding").abs() < 0.2, "{sum}");
        let layers = list(&trace, "layers");
        assert_eq!(layers.len(), 19);
        let by_layer: f64 = layers.iter().map(|row| number(row, "ffn")).sum();
        assert!((by_layer - number(sum, "ffn") - number(sum, "embedding")).abs() < 1e-6);
        let features = list(&trace, "features");
        assert_eq!(features.len(), 30);
        let sizes: Vec<f64> = features.iter().map(|f| number(f, "logit").abs()).collect();
        assert!(sizes.is_sorted_by(|a, b| a >= b));
    }
}

/// Of another implementation, with unrounded activations: the .191, a .111, Paris .084, rank 3.
#[test]
fn model_trace_ends_in_what_the_model_says() {
    let Some(ran) = on("trace", &[PROMPT, "--token", "Paris", "--json"]) else { return };
    let trace = ran.json();
    let last = list(&trace, "layers").last().expect("layers").clone();
    assert_eq!(last["rank"], 2);
    assert!((number(&last, "probability") - 0.084).abs() < 0.015, "{last}");
    let top = list(&last, "top");
    for (row, (text, probability)) in top.iter().zip([(" the", 0.191), (" a", 0.111)]) {
        assert_eq!(row["text"], text);
        assert!((number(row, "probability") - probability).abs() < 0.015, "{row}");
    }
    let Some(ran) = on("trace", &["Paris is the capital of"]) else { return };
    let text = ran.ok();
    for wanted in ["followed: ␣France", "attn share", "embedding", "The logit of", "L17"] {
        assert!(text.contains(wanted), "{wanted:?} is not in {text}");
    }
}

#[test]
fn model_drawings_are_svg() {
    let dir = scratch("svg");
    // What breaks out of an element, a cell or a line.
    let prompt = "a <b> & \"c\"\u{1}\n日本語 internationalization";
    for command in ["walk", "trace"] {
        let file = dir.join(format!("{command}.svg"));
        let name = file.to_str().expect("UTF-8");
        let Some(ran) = on(command, &[prompt, "--svg", name]) else { return };
        assert!(ran.stderr.contains(name), "{ran:#?}");
        ran.ok();
        let texts = texts(&file);
        assert!(["L0", "L17"].iter().all(|layer| texts.iter().any(|t| t == layer)), "{texts:?}");
        assert!(texts.iter().any(|text| text == "␣&") && texts.iter().any(|text| text == "\\n"));
    }
    let long = "word ".repeat(40);
    let file = dir.join("long.svg");
    let Some(ran) = on("walk", &[&long, "--layers", "..2", "--svg", file.to_str().expect("UTF-8")])
    else {
        return;
    };
    ran.ok();
    assert!(texts(&file).iter().any(|text| text.contains("left out")));
    assert_eq!(std::fs::read_dir(&dir).expect("it").count(), 3, "no temporary files stay");
}

#[test]
fn model_what_cannot_be_is_refused() {
    for (command, args, wanted) in [
        ("walk", &["a", "--layers", "17..19"][..], &["18"][..]),
        ("walk", &["a", "--layers", "18.."], &["18"]),
        ("walk", &[""], &["empty"]),
        ("walk", &["one two", "-p", "9"], &["--position", "0 to 2", "␣two"]),
        ("walk", &["a", "--query", "embedding", "--svg", "x.svg"], &["--svg", "--query"]),
        ("walk", &["a", "--query", "embedding", "-p", "all"], &["--position", "--query"]),
        ("trace", &[""], &["empty"]),
        ("trace", &["a", "-t", "Kreuzberg"], &["--token", "tokens of this model"]),
        ("trace", &["a", "-p", "7"], &["--position"]),
        ("trace", &["a", "--svg", "no/such/dir/x.svg"], &["no/such/dir"]),
    ] {
        let Some(ran) = on(command, args) else { return };
        ran.fails(1, wanted);
    }
}

#[test]
fn model_why_finds_what_an_independent_computation_finds() {
    let data =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/analysis/gemma-3-270m.json");
    let truth = std::fs::read(data).expect("a file");
    let truth: Value = serde_json::from_slice(&truth).expect("JSON");
    let prompt = truth["prompt"].as_str().expect("a prompt");
    // Activations rounded to eight bits against float32.
    let near = |found: f64, expected: f64| (found - expected).abs() < 0.02 + 0.05 * expected.abs();
    let entries = |key: &str| -> Vec<(Value, Value, f64)> {
        let entry = |row: &Value| (row[0].clone(), row[1].clone(), row[2].as_f64().expect("n"));
        list(&truth, key).iter().map(entry).collect()
    };
    let check = |rows: &[Value], key: &str, field: &str| {
        for (layer, feature, expected) in entries(key) {
            let row = rows.iter().find(|row| row["layer"] == layer && row["feature"] == feature);
            let row = row.unwrap_or_else(|| panic!("{key}: {layer}:{feature} is not there"));
            assert!(near(number(row, field), expected), "{key}: {expected} {row}");
        }
    };
    let args = [prompt, "--token", "Paris", "--json", "-k", "40"];
    let Some(ran) = on("trace", &args) else { return };
    check(list(&ran.json(), "features"), "trace", "logit");
    let Some(ran) = on("walk", &[prompt, "--json"]) else { return };
    check(list(&ran.json(), "firings"), "walk", "contribution");
    let Some(ran) = why(&[&args[..], &["--ablate", "20"]].concat()) else { return };
    let answer = ran.json();
    assert_eq!(answer["token"]["id"], truth["token"]);
    assert_eq!(answer["usual"]["positions"], truth["positions"]);
    check(list(&answer, "speak_for"), "why", "score");
    let ablation = &answer["ablation"];
    let before = number(&truth, "log_prob");
    let change = number(&truth, "log_prob_ablated") - before;
    assert!((number(&answer, "log_prob") - before).abs() < 0.15, "{answer}");
    let found = number(ablation, "log_prob_after") - number(ablation, "log_prob_before");
    assert!((found - change).abs() < 0.3, "{found} {change}");
}

/// What a causal test must show: the word becomes much rarer, other texts stay as they are, and as
/// many other features do neither.
#[test]
fn model_why_ablation_is_specific() {
    let args = ["Berlin is the capital of", "--ablate", "50", "-k", "3", "--json"];
    let Some(ran) = why(&args) else { return };
    let answer = ran.json();
    assert_eq!(answer["token"]["text"], " Germany");
    let ablation = &answer["ablation"];
    let before = number(ablation, "log_prob_before");
    assert!((before - number(&answer, "log_prob")).abs() < 1e-9);
    assert!(number(ablation, "log_prob_after") < before - 3.0, "{ablation}");
    let unrelated = list(ablation, "unrelated");
    let damage: f64 = unrelated.iter().map(|row| number(row, "divergence")).sum();
    assert!(damage / (unrelated.len() as f64) < 0.15, "{ablation}");
    let control = &ablation["control"];
    assert!((number(control, "log_prob_after") - before).abs() < 0.5, "{ablation}");
    assert_eq!(ablation["features"], 50);
}

#[test]
fn model_why_takes_alternatives_and_contrasts() {
    let Some(ran) = why(&[PROMPT, "-t", "Paris", "--against", "the", "-k", "2"]) else {
        return;
    };
    let text = ran.ok();
    assert!(text.contains("why ␣Paris (9079)") && text.contains("not ␣the"), "{text}");
    let args = [PROMPT, "-t", "Paris", "-k", "5", "--json", "--contrast"];
    let Some(ran) = why(&[&args[..], &["The capital of Japan is"]].concat()) else { return };
    let answer = ran.json();
    assert_eq!(answer["usual"]["prompts"], serde_json::json!(["The capital of Japan is"]));
    assert_eq!(list(&answer, "speak_for").len(), 5);
    assert!(answer["ablation"].is_null());
    // A text in contrast with itself has nothing to say.
    let Some(ran) = why(&[&args[..], &[PROMPT]].concat()) else { return };
    let answer = ran.json();
    assert_eq!((number(&answer, "total_for"), number(&answer, "total_against")), (0.0, 0.0));
    assert!(list(&answer, "speak_for").is_empty());
    for (args, wanted) in [
        (&["", "-t", "a"][..], &["empty"][..]),
        (&["a", "--against", "Kreuzberg"], &["--against", "tokens of this model"]),
        (&["a", "--contrast", ""], &["empty"]),
        (&["a", "-p", "3"], &["--position"]),
    ] {
        let Some(ran) = why(args) else { return };
        ran.fails(1, wanted);
    }
}

/// What is broken is refused with what to do, and found by `verify`.
#[test]
fn model_broken_means_are_refused() {
    let (Some(model), Some(vindex)) = (support::model(), with_means()) else { return };
    let broken = scratch("broken").join("g.vindex");
    let made = broken.to_str().expect("UTF-8");
    support::run(&["extract-index", model.to_str().expect("UTF-8"), "-o", made]).ok();
    let mut bytes = std::fs::read(vindex.join(MEANS)).expect("the means");
    std::fs::write(broken.join(MEANS), &bytes).expect("a file");
    support::run(&["verify", made]).ok();
    assert!(support::run(&["stats", made]).ok().contains("feature means"));
    // Those of the same model and text fit.
    let why = || support::run(&["why", made, PROMPT, "-k", "1"]);
    assert!(why().stderr.is_empty());
    bytes[40] ^= 1;
    std::fs::write(broken.join(MEANS), bytes).expect("a file");
    why().fails(1, &[MEANS, "delete the file", "larql why"]);
}
