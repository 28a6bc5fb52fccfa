//! A tiny model for tests: the shape of a Llama, two layers, deterministic values.
#![allow(dead_code, unreachable_pub, reason = "every test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests act as tests do")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use larql_checkpoint::gguf::{GgufWriter, Metadata};
use larql_checkpoint::{ModelConfig, TensorId};
use larql_compute::{Dtype, quantize_row};
use larql_vindex::{ExtractOptions, NoProgress, Progress, VindexError};

pub const HIDDEN: usize = 32;
pub const FEATURES: usize = 64;
pub const LAYERS: usize = 2;
pub const VOCAB: usize = 40;

/// The tiny model's configuration.
pub fn config() -> ModelConfig {
    let json = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": HIDDEN, "intermediate_size": FEATURES, "num_hidden_layers": LAYERS,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "hidden_act": "silu",
    });
    ModelConfig::from_hf(&json).unwrap()
}

/// Pseudo-random numbers in [-0.5, 0.5), the same on every machine.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> f32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 24) as f32 - 0.5
    }
}

/// Metadata of the tiny model, with a vocabulary.
pub fn metadata() -> Metadata {
    let mut metadata = config().to_gguf_metadata();
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    tokens.extend((b'a'..=b'z').map(|c| char::from(c).to_string()));
    while tokens.len() < VOCAB {
        tokens.push(format!("\u{2581}w{}", tokens.len()));
    }
    metadata.set("tokenizer.ggml.model", "llama");
    metadata.set_strings("tokenizer.ggml.tokens", tokens.iter());
    let scores: Vec<f32> = (0..VOCAB).map(|i| -(i as f32)).collect();
    metadata.set_array("tokenizer.ggml.scores", &scores);
    let types: Vec<i32> = (0..VOCAB)
        .map(|i| {
            if i == 0 {
                2
            } else if i < 3 {
                3
            } else {
                1
            }
        })
        .collect();
    metadata.set_array("tokenizer.ggml.token_type", &types);
    metadata.set("tokenizer.ggml.bos_token_id", 1u32);
    metadata.set("tokenizer.ggml.eos_token_id", 2u32);
    metadata.set("tokenizer.ggml.unknown_token_id", 0u32);
    metadata
}

/// Writes the tiny model; matrices as `dtype`.
pub fn write_model(path: &Path, dtype: Dtype) {
    let mut numbers = Numbers(7);
    let tensors = config().tensors();
    let of = |shape: &[usize]| if shape.len() > 1 { dtype } else { Dtype::F32 };
    let mut writer = GgufWriter::new(metadata());
    for tensor in &tensors {
        writer.declare(&tensor.id.to_string(), of(&tensor.shape), &tensor.shape).unwrap();
    }
    let mut data = writer.begin(File::create(path).unwrap(), path).unwrap();
    for tensor in &tensors {
        data.tensor(&tensor.id.to_string()).unwrap();
        let cols = tensor.shape[0];
        let rows: usize = tensor.shape[1..].iter().product();
        for _ in 0..rows {
            let values: Vec<f32> = (0..cols).map(|_| numbers.next()).collect();
            let mut row = vec![0; of(&tensor.shape).row_bytes(cols).unwrap()];
            quantize_row(of(&tensor.shape), &values, &mut row).unwrap();
            data.write(&row).unwrap();
        }
    }
    data.finish().unwrap();
}

/// The values of one row, before they were quantised.
pub fn row(id: TensorId, row: usize) -> Vec<f32> {
    let mut numbers = Numbers(7);
    for tensor in config().tensors() {
        let cols = tensor.shape[0];
        let rows: usize = tensor.shape[1..].iter().product();
        for r in 0..rows {
            let values: Vec<f32> = (0..cols).map(|_| numbers.next()).collect();
            if (tensor.id, r) == (id, row) {
                return values;
            }
        }
    }
    panic!("no {id}");
}

/// A directory with the tiny model in it.
pub fn model_dir() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    write_model(&path, Dtype::Q8_0);
    (dir, path)
}

/// Extracts with `options`.
pub fn extract(source: &Path, destination: &Path, options: &ExtractOptions) {
    larql_vindex::extract(source, destination, options, &NoProgress).unwrap();
}

/// Names in a directory, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A listener that asks to stop at its `n`-th look, counted from 0.
pub struct StopAt {
    n: u64,
    looks: AtomicU64,
}

impl StopAt {
    pub fn new(n: u64) -> Self {
        Self { n, looks: AtomicU64::new(0) }
    }
}

impl Progress for StopAt {
    fn start(&self, _phase: &str, _total: u64, _unit: &str) {}
    fn advance(&self, _n: u64) {}
    fn finish(&self) {}
    fn cancelled(&self) -> bool {
        self.looks.fetch_add(1, Ordering::SeqCst) >= self.n
    }
}

/// The text of an error.
pub fn text<T>(result: Result<T, VindexError>) -> String {
    match result {
        Ok(_) => panic!("no error"),
        Err(error) => error.to_string(),
    }
}

/// The demo model's file; `None` where the environment says to skip its tests.
///
/// # Panics
/// Where the file is absent and nobody said to skip.
#[allow(clippy::disallowed_methods, reason = "tests find the model by the environment")]
pub fn demo_model() -> Option<PathBuf> {
    let cache = || {
        let home = std::env::var_os("HOME").unwrap_or_default();
        Path::new(&home).join(".cache/larql/gemma-3-270m-q4_k_m.gguf")
    };
    let path = std::env::var_os("LARQL_TEST_MODEL").map_or_else(cache, PathBuf::from);
    if path.is_file() {
        return Some(path);
    }
    let skip = std::env::var_os("LARQL_SKIP_MODEL_TESTS").is_some_and(|value| value == "1");
    assert!(
        skip,
        "{} is not there: `make test` fetches it; LARQL_SKIP_MODEL_TESTS=1 skips this test",
        path.display()
    );
    eprintln!("skipped: {} is not there", path.display());
    None
}
