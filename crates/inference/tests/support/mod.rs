//! Tiny random models of every family, with the logits of `transformers` for a prompt
//! (`scripts/fixtures/tiny_models.py`).
#![allow(dead_code, unreachable_pub, reason = "every test binary uses a part of it")]
#![allow(clippy::unwrap_used, reason = "helpers of tests act as tests do")]

use std::path::{Path, PathBuf};

use larql_compute::{Cpu, Dtype};
use larql_inference::{CacheOptions, KvDtype, Model, NoHooks, Overflow, State};
use larql_vindex::{ExtractOptions, NoProgress, Vindex};

pub const FAMILIES: [&str; 14] = [
    "deepseek2",
    "deepseek3",
    "gemma",
    "gemma2",
    "gemma3",
    "gpt2",
    "llama",
    "llama_tied",
    "mistral",
    "mixtral",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3moe",
];

/// A prompt and the logits after each of its tokens, row by row.
pub struct Reference {
    pub prompt: Vec<u32>,
    pub logits: Vec<f32>,
}

pub fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/models")
}

pub fn reference(path: &Path) -> Reference {
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let numbers = json["prompt"].as_array().unwrap();
    let bytes = base64(json["f32_le_base64"].as_str().unwrap());
    let logits = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
    Reference {
        prompt: numbers.iter().map(|n| n.as_u64().unwrap() as u32).collect(),
        logits: logits.collect(),
    }
}

fn base64(text: &str) -> Vec<u8> {
    let (mut out, mut bits, mut n) = (Vec::new(), 0_u32, 0);
    for c in text.bytes().take_while(|&c| c != b'=') {
        let digit = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            _ => 63,
        };
        bits = bits << 6 | u32::from(digit);
        n += 6;
        if n >= 8 {
            n -= 8;
            out.push((bits >> n) as u8);
            bits &= (1 << n) - 1;
        }
    }
    out
}

/// Extracts `source` (a GGUF file or a Hugging Face directory) with its float tensors as they are.
pub fn vindex(source: &Path, dir: &Path) -> Vindex {
    let path = dir.join("tiny.vindex");
    larql_vindex::extract(source, &path, &ExtractOptions::default(), &NoProgress).unwrap();
    Vindex::open(&path).unwrap()
}

pub fn options(context: usize, kv: KvDtype) -> CacheOptions {
    CacheOptions { context, kv, overflow: Overflow::Error }
}

/// Logits after every token, `[n, vocab_size]`: the tokens in steps of these sizes.
pub fn logits(model: &Model<'_>, state: &mut State, tokens: &[u32], step: usize) -> Vec<f32> {
    let vocab_size = model.config().vocab_size;
    let mut all = Vec::new();
    for step in tokens.chunks(step) {
        model.feed_all(state, step, &mut NoHooks).unwrap();
        let mut out = vec![0.0; step.len() * vocab_size];
        model.logits_from(state, 0, &mut out).unwrap();
        all.extend(out);
    }
    all
}

/// The largest difference, relative to the largest logit.
pub fn difference(found: &[f32], truth: &[f32]) -> f32 {
    assert_eq!(found.len(), truth.len());
    let largest = truth.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
    found.iter().zip(truth).fold(0.0_f32, |m, (a, b)| m.max((a - b).abs())) / largest
}

pub fn cpu(threads: usize) -> Cpu {
    Cpu::new(None, Some(threads)).unwrap()
}

pub fn is_float(dtype: Dtype) -> bool {
    dtype.block_len() == 1
}
