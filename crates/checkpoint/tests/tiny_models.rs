//! Tiny random models of every family, each as a Hugging Face directory and as the GGUF file that
//! llama.cpp's own converter made of it (`scripts/fixtures/tiny_models.py`): both must be seen as
//! the same model, bit for bit.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use larql_checkpoint::config::{ExpertGroups, Gating, RopeScaling};
use larql_checkpoint::gguf::{Gguf, GgufWriter};
use larql_checkpoint::{Checkpoint, ConfigError, Family, Format, ModelConfig, Role, TensorId};

/// Fixture and family.
const MODELS: [(&str, Family); 14] = [
    ("llama", Family::Llama),
    ("llama_tied", Family::Llama),
    ("mistral", Family::Llama),
    ("mixtral", Family::Llama),
    ("qwen2", Family::Qwen2),
    ("qwen3", Family::Qwen3),
    ("qwen3moe", Family::Qwen3Moe),
    ("gemma", Family::Gemma),
    ("gemma2", Family::Gemma2),
    ("gemma3", Family::Gemma3),
    ("phi3", Family::Phi3),
    ("gpt2", Family::Gpt2),
    ("deepseek2", Family::Deepseek2),
    ("deepseek3", Family::Deepseek2),
];

fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/models")).join(name)
}

fn open(name: &str) -> (Checkpoint, Checkpoint) {
    let hf = Checkpoint::open(fixture(name).join("hf"));
    let gguf = Checkpoint::open(fixture(name).join("model.gguf"));
    (hf.unwrap_or_else(|e| panic!("{name}: {e}")), gguf.unwrap_or_else(|e| panic!("{name}: {e}")))
}

/// All rows of a tensor, through the one door that every source has.
fn bytes(checkpoint: &Checkpoint, id: TensorId) -> Vec<u8> {
    let entry = checkpoint.tensor(id).unwrap();
    let width = entry.dtype.row_bytes(entry.cols).unwrap();
    let mut out = vec![0; width * entry.rows];
    for (row, out) in out.chunks_exact_mut(width).enumerate() {
        checkpoint.read_row(entry, row, out);
    }
    if let Some(matrix) = checkpoint.matrix(entry) {
        assert_eq!(matrix.bytes(), out, "{}", entry.name);
    }
    out
}

#[test]
fn both_formats_give_the_same_configuration() {
    for (name, family) in MODELS {
        let (hf, gguf) = open(name);
        assert_eq!((hf.format(), gguf.format()), (Format::Safetensors, Format::Gguf));
        assert_eq!(hf.config(), gguf.config(), "{name}");
        assert_eq!(hf.config().family, family);
        let json = serde_json::to_string(hf.config()).unwrap();
        assert_eq!(&serde_json::from_str::<ModelConfig>(&json).unwrap(), hf.config(), "{name}");
    }
}

#[test]
fn both_formats_give_the_same_tensors_bit_for_bit() {
    for (name, _) in MODELS {
        let (hf, gguf) = open(name);
        assert!(hf.unknown_tensors().is_empty(), "{name}: {:?}", hf.unknown_tensors());
        assert!(gguf.unknown_tensors().is_empty(), "{name}: {:?}", gguf.unknown_tensors());
        assert_eq!(hf.tensors().len(), gguf.tensors().len(), "{name}");
        for entry in hf.tensors() {
            let other = gguf.tensor(entry.id).unwrap();
            assert_eq!((entry.dtype, &entry.shape), (other.dtype, &other.shape), "{}", entry.name);
            assert_eq!((entry.rows, entry.cols), (other.rows, other.cols), "{}", entry.name);
            let same = bytes(&hf, entry.id) == bytes(&gguf, entry.id);
            assert!(same, "{name}: {} differs", entry.name);
        }
    }
}

/// What the writer of metadata says is what the reader of metadata needs.
#[test]
fn metadata_round_trips_and_agrees_with_the_converter() {
    for (name, _) in MODELS {
        let (hf, gguf) = open(name);
        let written = hf.config().to_gguf_metadata();
        for (key, value) in gguf.gguf().unwrap().metadata().iter() {
            let prefix = format!("{}.", hf.config().family);
            // Where all layers have experts, the dense width means nothing, but must be there.
            let meaningless =
                hf.config().intermediate_size == 0 && key == format!("{prefix}feed_forward_length");
            let ours = written.get(key).filter(|_| key.starts_with(&prefix) && !meaningless);
            if let Some(ours) = ours {
                let same =
                    ours == value || ours.as_int().is_some_and(|v| value.as_int() == Some(v));
                assert!(same, "{name}: {key} is {ours}, the converter says {value}");
            }
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.gguf");
        write_gguf(&hf, &path);
        let again = Checkpoint::open(&path).unwrap();
        assert_eq!(again.config(), hf.config(), "{name}");
        for entry in hf.tensors() {
            assert_eq!(bytes(&hf, entry.id), bytes(&again, entry.id), "{name}: {}", entry.name);
        }
    }
}

/// Every tensor of `from` as one GGUF file.
fn write_gguf(from: &Checkpoint, path: &Path) {
    let mut writer = GgufWriter::new(from.config().to_gguf_metadata());
    for entry in from.tensors() {
        writer.declare(&entry.name, entry.dtype, &entry.shape).unwrap();
    }
    let file = std::fs::File::create(path).unwrap();
    let mut data = writer.begin(file, path).unwrap();
    for entry in from.tensors() {
        data.tensor(&entry.name).unwrap();
        data.write(&bytes(from, entry.id)).unwrap();
    }
    data.finish().unwrap();
}

#[test]
fn the_numbers_are_those_of_the_script() {
    let llama = open("llama").0;
    let config = llama.config();
    let heads = (config.n_heads, config.n_kv_heads, config.head_dim);
    assert_eq!((config.hidden_size, config.vocab_size, heads), (32, 293, (4, 2, 24)));
    assert_eq!(config.norm.eps, 1e-5);
    let rope = config.rope.as_ref().unwrap();
    assert_eq!((rope.theta, rope.scaling), (500_000.0, RopeScaling::Factors));

    let tied = open("llama_tied").0;
    assert!(tied.config().tied && tied.config().biases.qkv);
    assert_eq!(tied.config().rope.as_ref().unwrap().scaling, RopeScaling::Linear { factor: 2.0 });

    let gemma3 = open("gemma3").0;
    let windows = [Some(5), Some(5), Some(5), Some(5), Some(5), None];
    assert_eq!(gemma3.config().windows, windows);
    let rope = gemma3.config().rope.as_ref().unwrap();
    assert_eq!((rope.theta, rope.theta_local), (1e6, Some(1e4)));

    let gemma2 = open("gemma2").0;
    assert_eq!(gemma2.config().windows, [Some(5), None]);
    assert_eq!(
        (gemma2.config().attn_softcap, gemma2.config().final_softcap),
        (Some(50.0), Some(30.0))
    );

    let phi3 = open("phi3").0;
    assert_eq!(phi3.config().rope.as_ref().unwrap().dim, 6);
    assert_eq!(phi3.config().windows, [Some(7); 2]);

    let v3 = open("deepseek3").0;
    let moe = v3.config().moe.clone().unwrap();
    assert_eq!((moe.gating, moe.normalise, moe.scale), (Gating::Sigmoid, true, 2.5));
    assert_eq!(moe.groups, Some(ExpertGroups { count: 3, used: 2 }));
    assert!(moe.score_bias);
    assert_eq!(v3.config().mla.as_ref().unwrap().q_lora_rank, Some(28));
    assert!(v3.config().query_scale > ModelConfig::clone(open("deepseek2").0.config()).query_scale);
}

/// Keys, ups and downs cover every feature once, within the tensors that they name.
#[test]
fn features_are_where_the_layout_says() {
    for (name, _) in MODELS {
        let (checkpoint, _) = open(name);
        let config = checkpoint.config();
        for layer in 0..config.n_layers {
            let n = config.n_features(layer);
            for (parts, gated) in
                [(config.ffn_keys(layer), true), (config.ffn_ups(layer), config.gated())]
            {
                let mut next = 0;
                for part in parts {
                    assert_eq!(part.first_feature, next, "{name}");
                    let entry = checkpoint.tensor(TensorId::layer(part.role, layer)).unwrap();
                    assert!(part.rows.end <= entry.rows && entry.cols == config.hidden_size);
                    next += part.rows.len();
                }
                assert_eq!(next, if gated { n } else { 0 }, "{name}");
            }
            let mut next = 0;
            for part in config.ffn_downs(layer) {
                assert_eq!(part.first_feature, next, "{name}");
                let entry = checkpoint.tensor(TensorId::layer(part.role, layer)).unwrap();
                assert!(part.rows.end <= entry.rows && part.rows.len() == config.hidden_size);
                assert_eq!(entry.cols, part.n_features);
                next += part.n_features;
            }
            assert_eq!(next, n, "{name}");
        }
    }
    let (v3, _) = open("deepseek3");
    assert_eq!(v3.config().expert_size(0), None);
    assert_eq!((v3.config().expert_size(1), v3.config().n_features(1)), (Some(24), 6 * 24 + 24));
    assert_eq!(v3.config().ffn_keys(1)[1].role, Role::FfnGateShexp);
}

/// A copy of a fixture's Hugging Face directory with another `config.json`.
fn with_config(name: &str, edit: impl Fn(&mut serde_json::Value)) -> Result<Checkpoint, String> {
    let directory = tempfile::tempdir().unwrap();
    let from = fixture(name).join("hf");
    std::fs::copy(from.join("model.safetensors"), directory.path().join("model.safetensors"))
        .unwrap();
    let text = std::fs::read(from.join("config.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    edit(&mut json);
    std::fs::write(directory.path().join("config.json"), json.to_string()).unwrap();
    Checkpoint::open(directory.path()).map_err(|e| e.to_string())
}

#[test]
fn senseless_numbers_are_refused_by_name() {
    let cases: [(&str, serde_json::Value, &str); 12] = [
        ("num_attention_heads", 0.into(), "n_heads"),
        ("num_attention_heads", 3.into(), "n_kv_heads"),
        ("num_key_value_heads", 0.into(), "n_kv_heads"),
        ("hidden_size", 0.into(), "hidden_size"),
        ("hidden_size", (1u64 << 60).into(), "hidden_size"),
        ("num_hidden_layers", (1u64 << 40).into(), "num_hidden_layers"),
        ("head_dim", 23.into(), "rope.dim"),
        ("rms_norm_eps", (-1.0).into(), "norm.eps"),
        ("vocab_size", (-5).into(), "vocab_size"),
        ("vocab_size", 294.into(), "model.embed_tokens.weight` has shape [32, 293]"),
        ("intermediate_size", 97.into(), "[32, 97]"),
        ("num_hidden_layers", 3.into(), "model.layers.2.input_layernorm.weight"),
    ];
    for (key, value, expected) in cases {
        let error = with_config("llama", |json| json[key] = value.clone()).unwrap_err();
        assert!(error.contains(expected), "{key} = {value}: {error}");
    }
    let error = with_config("llama", |json| json["model_type"] = "mamba".into()).unwrap_err();
    assert!(error.contains("`mamba`") && error.contains("deepseek_v3"), "{error}");
    let error = with_config("llama", |json| json["hidden_act"] = "relu".into()).unwrap_err();
    assert!(error.contains("hidden_act"), "{error}");
    let error = with_config("llama", |json| {
        json["rope_parameters"]["rope_type"] = "dynamic".into();
    });
    assert!(error.unwrap_err().contains("dynamic"));
}

/// The keys of transformers 4 (`rope_theta` beside `rope_scaling`) mean the same.
#[test]
fn older_spellings_are_read() {
    let older = |json: &mut serde_json::Value| {
        let mut rope = json["rope_parameters"].take();
        json.as_object_mut().unwrap().remove("rope_parameters");
        json["rope_theta"] = rope["rope_theta"].take();
        json["rope_scaling"] = rope;
    };
    for name in ["llama", "llama_tied", "qwen2", "phi3", "deepseek3"] {
        let checkpoint = with_config(name, older).unwrap();
        assert_eq!(checkpoint.config(), open(name).1.config(), "{name}");
    }
    let checkpoint = with_config("gemma3", |json| {
        let rope = json["rope_parameters"].take();
        json.as_object_mut().unwrap().remove("rope_parameters");
        json.as_object_mut().unwrap().remove("layer_types");
        json["sliding_window_pattern"] = 6.into();
        json["rope_theta"] = rope["full_attention"]["rope_theta"].clone();
        json["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"].clone();
        json["rope_scaling"] = serde_json::json!({"rope_type": "linear", "factor": 8.0});
    });
    assert_eq!(checkpoint.unwrap().config(), open("gemma3").1.config());
}

/// A head that the configuration ties away is reported, not dropped.
#[test]
fn left_over_tensors_are_reported() {
    let checkpoint =
        with_config("llama", |json| json["tie_word_embeddings"] = true.into()).unwrap();
    assert_eq!(checkpoint.unknown_tensors(), ["lm_head.weight"]);
    let fewer = with_config("qwen3", |json| {
        json["num_hidden_layers"] = 1.into();
        json["layer_types"] = serde_json::json!(["full_attention"]);
    });
    let fewer = fewer.unwrap();
    assert_eq!(fewer.unknown_tensors().len(), 11);
    assert!(fewer.unknown_tensors().iter().all(|n| n.starts_with("model.layers.1.")));
}

/// A GGUF file without one of its tensors, or with one of another shape.
#[test]
fn a_damaged_gguf_is_refused_by_tensor() {
    let source = Gguf::open(fixture("llama").join("model.gguf")).unwrap();
    let build = |skip: &str, reshape: &str| {
        let mut writer = GgufWriter::new(source.metadata().clone());
        for tensor in source.tensors().iter().filter(|t| t.name() != skip) {
            let mut shape = tensor.shape().to_vec();
            if tensor.name() == reshape {
                shape.reverse();
            }
            writer.declare(tensor.name(), tensor.dtype(), &shape).unwrap();
        }
        let mut data = writer.begin(Vec::new(), "test.gguf").unwrap();
        for tensor in source.tensors().iter().filter(|t| t.name() != skip) {
            data.tensor(tensor.name()).unwrap();
            data.write(tensor.bytes()).unwrap();
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test.gguf");
        std::fs::write(&path, data.finish().unwrap()).unwrap();
        Checkpoint::open(&path).unwrap_err().to_string()
    };
    let error = build("blk.1.ffn_up.weight", "");
    assert!(error.contains("`blk.1.ffn_up.weight` of shape [32, 96] is missing"), "{error}");
    let error = build("", "blk.0.attn_k.weight");
    assert!(error.contains("`blk.0.attn_k.weight` has shape [48, 32]"), "{error}");
    assert!(error.contains("[32, 48]"), "{error}");
}

#[test]
fn the_error_type_is_typed() {
    let json = serde_json::json!({"model_type": "llama"});
    let error = ModelConfig::from_hf(&json).unwrap_err();
    assert!(matches!(error, ConfigError::MissingKey { .. }), "{error}");
    assert!(matches!(
        ModelConfig::from_hf(&serde_json::json!([])),
        Err(ConfigError::MissingKey { .. })
    ));
}
