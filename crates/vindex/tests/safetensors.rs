//! Safetensors directories become vindexes: the same matrices as in the GGUF that llama.cpp's own
//! converter makes of the same model, for every family.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::path::{Path, PathBuf};

use larql_checkpoint::Checkpoint;
use larql_compute::{Dtype, dequantize_row};
use larql_vindex::{ExtractOptions, NoProgress, Vindex, WeightsOrigin};
use support::extract;

const MODELS: [&str; 14] = [
    "llama",
    "llama_tied",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3moe",
    "gemma",
    "gemma2",
    "gemma3",
    "phi3",
    "gpt2",
    "deepseek2",
    "deepseek3",
];

fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/models")).join(name)
}

#[test]
fn every_family_has_the_bytes_of_the_converted_gguf() {
    let dir = tempfile::tempdir().unwrap();
    for name in MODELS {
        for split in [false, true] {
            let target = dir.path().join(format!("{name}-{split}.vindex"));
            let options = ExtractOptions { split, ..Default::default() };
            let report =
                larql_vindex::extract(&fixture(name).join("hf"), &target, &options, &NoProgress)
                    .unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(report.weights, WeightsOrigin::Written);
            assert!(report.fallbacks.is_empty());
            let vindex = Vindex::open(&target).unwrap_or_else(|e| panic!("{name}: {e}"));
            let converted = Checkpoint::open(fixture(name).join("model.gguf")).unwrap();
            assert_eq!(vindex.config(), converted.config(), "{name}");
            assert_eq!(vindex.manifest().tensors.len(), converted.tensors().len(), "{name}");
            for entry in converted.tensors() {
                let ours = vindex.require(entry.id).unwrap();
                let theirs = converted.matrix(entry).unwrap();
                assert_eq!((ours.dtype(), ours.rows()), (theirs.dtype(), theirs.rows()));
                assert!(ours.bytes() == theirs.bytes(), "{name}: {} differs", entry.name);
            }
        }
    }
}

#[test]
fn a_dtype_converts_matrices_and_leaves_vectors() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["llama", "gemma3", "mixtral"] {
        let target = dir.path().join(format!("{name}.vindex"));
        let options = ExtractOptions { dtype: Some(Dtype::Q8_0), ..Default::default() };
        let source = fixture(name).join("hf");
        let report = larql_vindex::extract(&source, &target, &options, &NoProgress).unwrap();
        let vindex = Vindex::open(&target).unwrap();
        for entry in &vindex.manifest().tensors {
            let fell_back = report.fallbacks.iter().any(|f| f.tensor == entry.name);
            let expected = match entry.shape.len() {
                1 => Dtype::F32,
                _ if entry.id.role.always_f32() => Dtype::F32,
                _ if fell_back => Dtype::F16,
                _ => Dtype::Q8_0,
            };
            assert_eq!(entry.dtype, expected, "{name}: {}", entry.name);
        }
    }
}

/// Routed and shared experts: feature `f` of the layer is row `f`.
#[test]
fn feature_major_down_follows_feature_ids_of_experts() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["mixtral", "deepseek2", "llama"] {
        let target = dir.path().join(format!("{name}.vindex"));
        let options = ExtractOptions { feature_major_down: true, ..Default::default() };
        extract(&fixture(name).join("hf"), &target, &options);
        let vindex = Vindex::open(&target).unwrap();
        let hidden = vindex.config().hidden_size;
        for layer in vindex.layers() {
            let features = vindex.down_features(layer).unwrap();
            assert_eq!(features.rows(), vindex.n_features(layer).unwrap());
            for part in vindex.config().ffn_downs(layer) {
                let id = larql_checkpoint::TensorId::layer(part.role, layer);
                let down = vindex.require(id).unwrap().row_range(part.rows);
                let last = part.n_features - 1;
                let mut row = vec![0.0; hidden];
                dequantize_row(
                    features.dtype(),
                    features.row_bytes(part.first_feature + last),
                    &mut row,
                );
                for (h, &found) in row.iter().enumerate() {
                    let mut columns = vec![0.0; part.n_features];
                    dequantize_row(down.dtype(), down.row_bytes(h), &mut columns);
                    let expected = columns[last];
                    assert!((found - expected).abs() <= expected.abs() / 256.0, "{name} {layer}");
                }
            }
        }
    }
}

#[test]
fn the_source_is_on_record_with_its_hashes() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("llama.vindex");
    extract(&fixture("llama").join("hf"), &target, &ExtractOptions::default());
    let source = Vindex::open(&target).unwrap().manifest().source.clone();
    assert_eq!((source.name.as_str(), source.format.as_str()), ("hf", "safetensors"));
    let config = source.files.iter().find(|file| file.name == "config.json").unwrap();
    let text = std::fs::read(fixture("llama").join("hf/config.json")).unwrap();
    assert_eq!(config.sha256, larql_vindex::hash::Sha::of(&text));
    assert!(source.files.iter().any(|file| file.name.ends_with(".safetensors")));
    let vindex = Vindex::open(&target).unwrap();
    assert!(vindex.tokenizer().unwrap().vocab_size() <= vindex.config().vocab_size);
}
