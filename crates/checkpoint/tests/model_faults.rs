//! GGUF files whose metadata lie about the model, and layouts of older or larger checkpoints.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use larql_checkpoint::gguf::{Gguf, GgufWriter, Metadata};
use larql_checkpoint::safetensors::Safetensors;
use larql_checkpoint::{Checkpoint, CheckpointError, ModelConfig, Role, TensorId};
use safetensors::tensor::TensorView;

fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/models")).join(name)
}

/// A tensor to be written: name, shape with columns first, bytes.
type Piece = (String, larql_compute::Dtype, Vec<usize>, Vec<u8>);

/// The fixture's GGUF with other metadata and tensors.
fn edited(
    name: &str,
    metadata: impl Fn(&mut Metadata),
    tensors: impl Fn(&mut Vec<Piece>),
) -> Result<Checkpoint, CheckpointError> {
    let source = Gguf::open(fixture(name).join("model.gguf")).unwrap();
    let mut keys = source.metadata().clone();
    metadata(&mut keys);
    let mut pieces: Vec<Piece> = source
        .tensors()
        .iter()
        .map(|t| (t.name().to_owned(), t.dtype(), t.shape().to_vec(), t.bytes().to_vec()))
        .collect();
    tensors(&mut pieces);
    let mut writer = GgufWriter::new(keys);
    for (name, dtype, shape, _) in &pieces {
        writer.declare(name, *dtype, shape).unwrap();
    }
    let mut data = writer.begin(Vec::new(), "test.gguf").unwrap();
    for (name, _, _, bytes) in &pieces {
        data.tensor(name).unwrap();
        data.write(bytes).unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.gguf");
    std::fs::write(&path, data.finish().unwrap()).unwrap();
    Checkpoint::open(&path)
}

fn refused(name: &str, metadata: impl Fn(&mut Metadata), expected: &str) {
    let error = edited(name, metadata, |_| {}).unwrap_err();
    assert!(error.path().is_some());
    let text = error.to_string();
    assert!(text.contains(expected), "expected {expected:?} in: {text}");
}

#[test]
fn unchanged_files_are_accepted() {
    for name in ["llama", "gemma3", "deepseek3"] {
        edited(name, |_| {}, |_| {}).unwrap();
    }
}

#[test]
fn senseless_counts_are_refused() {
    let count = |key: &'static str, value: u64, expected: &str| {
        refused("llama", |m| m.set(key, value), expected);
    };
    count("llama.block_count", 0, "n_layers");
    count("llama.block_count", u64::MAX, "block_count");
    count("llama.block_count", 4000, "blk.2.attn_norm.weight");
    count("llama.embedding_length", 0, "hidden_size");
    count("llama.embedding_length", 31, "[31, 293]");
    count("llama.attention.head_count", 0, "n_heads");
    count("llama.attention.head_count", 3, "a divisor of the 3 query heads");
    count("llama.attention.head_count_kv", 0, "n_kv_heads");
    count("llama.attention.head_count_kv", 5, "n_kv_heads");
    count("llama.attention.key_length", 1 << 40, "head_dim");
    count("llama.feed_forward_length", 95, "[32, 95]");
    count("llama.context_length", 0, "context_length");
    count("llama.rope.dimension_count", 25, "rope.dim");
    count("llama.rope.dimension_count", 7, "rope.dim");
    count("llama.expert_count", 4, "expert_used_count");
}

#[test]
fn keys_of_a_wrong_kind_or_absent_are_refused_by_name() {
    refused("llama", |m| m.set("general.architecture", "mamba"), "gemma3, phi3");
    refused("llama", |m| m.set("general.architecture", 3u32), "general.architecture");
    refused("llama", |m| m.set("llama.block_count", "two"), "llama.block_count` is two");
    refused("llama", |m| m.set("llama.block_count", -2i32), "llama.block_count` is -2");
    // The epsilon is read, never assumed.
    let epsilon = "llama.attention.layer_norm_rms_epsilon";
    refused("llama", |m| assert!(m.remove(epsilon)), epsilon);
    refused("llama", |m| m.set(epsilon, 0f32), "norm.eps");
    refused("llama", |m| m.set(epsilon, f32::NAN), "norm.eps");
    refused("llama", |m| m.set("llama.rope.freq_base", f32::INFINITY), "rope.theta");
    let kv = "llama.attention.head_count_kv";
    refused("llama", |m| m.set_array(kv, &[2u32, 1]), "differ between layers");
    edited("llama", |m| m.set_array(kv, &[2u32, 2]), |_| {}).unwrap();
    let pattern = "gemma3.attention.sliding_window_pattern";
    refused("gemma3", |m| m.set_array(pattern, &[true, false]), "6 booleans");
    refused("mistral", |m| m.set("llama.rope.scaling.type", "weird"), "weird");
    refused("deepseek3", |m| m.set("deepseek2.expert_gating_func", 9u32), "expert_gating_func");
    refused("deepseek3", |m| m.set("deepseek2.expert_group_count", 4u32), "groups.count");
    refused("deepseek3", |m| m.set("deepseek2.rope.dimension_count", 25u32), "key_length_mla");
    refused("deepseek3", |m| m.set("deepseek2.expert_used_count", 5u32), "n_experts_used");
}

#[test]
fn extra_tensors_are_reported() {
    let extra = |pieces: &mut Vec<Piece>| {
        let copy = (
            "blk.0.something.weight".into(),
            pieces[0].1,
            pieces[0].2.clone(),
            pieces[0].3.clone(),
        );
        pieces.push(copy);
    };
    let checkpoint = edited("llama", |_| {}, extra).unwrap();
    assert_eq!(checkpoint.unknown_tensors(), ["blk.0.something.weight"]);
}

/// Files from before absorbed attention have `attn_kv_b` where newer ones have it in two halves.
#[test]
fn older_mla_files_are_read() {
    let merge = |pieces: &mut Vec<Piece>| {
        let split = |n: &str| n.contains("attn_v_b") || n.contains("attn_k_b");
        let dtype = pieces.iter().find(|p| split(&p.0)).unwrap().1;
        pieces.retain(|p| !split(&p.0));
        for layer in 0..3 {
            let bytes = vec![0; 20 * 4 * 28 * 2];
            pieces.push((format!("blk.{layer}.attn_kv_b.weight"), dtype, vec![20, 4 * 28], bytes));
        }
    };
    let older = |m: &mut Metadata| {
        for key in ["key_length_mla", "value_length_mla"] {
            assert!(m.remove(&format!("deepseek2.attention.{key}")));
        }
        m.set("deepseek2.attention.key_length", 24u32);
        m.set("deepseek2.attention.value_length", 12u32);
        m.set("deepseek2.attention.head_count_kv", 4u32);
    };
    let checkpoint = edited("deepseek3", older, merge).unwrap();
    let newer = Checkpoint::open(fixture("deepseek3").join("model.gguf")).unwrap();
    assert_eq!(checkpoint.config(), newer.config());
    assert!(checkpoint.tensor(TensorId::layer(Role::AttnKvB, 2)).is_some());
    assert!(checkpoint.tensor(TensorId::layer(Role::AttnVB, 2)).is_none());
}

/// Gemma 3 with a vision tower: numbers in `text_config`, tensors one level deeper, in either of
/// two spellings; the tower itself is reported.
#[test]
fn a_language_model_inside_a_larger_one_is_found() {
    let from = fixture("gemma3").join("hf");
    let plain = Checkpoint::open(&from).unwrap();
    let source = Safetensors::open(&from).unwrap();
    let text = std::fs::read(from.join("config.json")).unwrap();
    let text: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let config = serde_json::json!({"model_type": "gemma3", "text_config": text});
    for (was, is) in [("model.", "language_model.model."), ("model.", "model.language_model.")] {
        let directory = tempfile::tempdir().unwrap();
        let mut views: Vec<(String, TensorView<'_>)> = source
            .tensors()
            .iter()
            .map(|t| {
                let name = t.name().strip_prefix(was).map(|rest| format!("{is}{rest}")).unwrap();
                let shape = t.shape().to_vec();
                (name, TensorView::new(safetensors::Dtype::BF16, shape, t.bytes()).unwrap())
            })
            .collect();
        let one = [0u8; 2];
        let tower = TensorView::new(safetensors::Dtype::BF16, vec![1], &one).unwrap();
        views.push(("vision_tower.weight".into(), tower));
        let path = directory.path().join("model.safetensors");
        safetensors::serialize_to_file(views, None, &path).unwrap();
        std::fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.config(), plain.config());
        assert_eq!(checkpoint.unknown_tensors(), ["vision_tower.weight"]);
    }
}

/// Older files say every how many layers attention is global, in place of a type for each layer.
#[test]
fn a_window_in_every_zeroth_layer_is_refused() {
    let text = std::fs::read(fixture("gemma3").join("hf/config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&text).unwrap();
    config.as_object_mut().unwrap().remove("layer_types");
    for key in ["sliding_window_pattern", "_sliding_window_pattern"] {
        let mut config = config.clone();
        config[key] = 0.into();
        let error = ModelConfig::from_hf(&config).unwrap_err().to_string();
        assert!(error.contains("sliding_window_pattern"), "{error}");
    }
}

#[test]
fn a_directory_without_a_model_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let error = Checkpoint::open(directory.path()).unwrap_err();
    assert!(error.to_string().contains("config.json"), "{error}");
    std::fs::write(directory.path().join("config.json"), "{").unwrap();
    let error = Checkpoint::open(directory.path()).unwrap_err();
    assert!(error.to_string().contains("not valid JSON"), "{error}");
    std::fs::write(directory.path().join("config.json"), "[1]").unwrap();
    let error = Checkpoint::open(directory.path()).unwrap_err();
    assert!(error.to_string().contains("model_type"), "{error}");
}
