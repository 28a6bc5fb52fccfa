//! The seeds of the fuzz targets, and what they once failed on, through the same readers in an
//! ordinary test: none of them may panic, and whole files must still be accepted.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;

use larql_checkpoint::gguf::Gguf;
use larql_checkpoint::safetensors::Safetensors;
use larql_checkpoint::tokenizer::Tokenizer;
use larql_checkpoint::{Map, ModelConfig};
use larql_vindex::Manifest;
use larql_vindex::labels::Labels;

/// Reads every seed of a target; returns the names of those that were accepted, sorted.
fn accepted(target: &str, read: impl Fn(Vec<u8>) -> bool) -> Vec<String> {
    let corpus = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus"));
    let mut names: Vec<String> = std::fs::read_dir(corpus.join(target))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| read(std::fs::read(path).unwrap()))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

fn map(bytes: Vec<u8>) -> Map {
    Map::from_bytes("seed", bytes)
}

#[test]
fn seeds_are_read_without_a_panic() {
    assert_eq!(
        accepted("gguf", |bytes| Gguf::from_map(map(bytes)).is_ok()),
        ["arrays", "empty", "scalars", "tensors", "version2"]
    );
    assert_eq!(
        accepted("safetensors", |bytes| Safetensors::from_map(map(bytes)).is_ok()),
        ["empty", "scalar", "two"]
    );
    assert_eq!(
        accepted("manifest", |bytes| Manifest::from_slice(&bytes).is_ok()),
        ["experts", "large-file", "one-tensor", "whole"]
    );
    assert_eq!(
        accepted("down_meta", |bytes| Labels::from_bytes(bytes).is_ok_and(|l| l.check().is_ok())),
        ["done", "no-layers", "states"]
    );
    let model = |bytes: Vec<u8>| match serde_json::from_slice(&bytes) {
        Ok(json) => ModelConfig::from_hf(&json).is_ok(),
        Err(_) => Gguf::from_map(map(bytes)).is_ok_and(|gguf| {
            let tokenizer = Tokenizer::from_gguf(gguf.metadata());
            ModelConfig::from_gguf(&gguf).is_ok() && tokenizer.is_ok()
        }),
    };
    let families = ["deepseek2", "deepseek3", "gemma3", "gpt2", "llama", "llama-spm", "phi3"];
    assert_eq!(accepted("model", model), [&families[..], &["qwen3-bpe", "qwen3moe"]].concat());
}
