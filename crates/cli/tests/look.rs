//! `larql walk` and `larql trace` on the demo model (tests named `model_`).

mod support;

use std::path::Path;

use serde_json::Value;
use support::{larql, ran, scratch, vindex};

const PROMPT: &str = "The capital of France is";

fn on(command: &str, args: &[&str]) -> Option<support::Ran> {
    let vindex = vindex()?;
    Some(ran(larql().arg(command).arg(vindex).args(args)))
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
