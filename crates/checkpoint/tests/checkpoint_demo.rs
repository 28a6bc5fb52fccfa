//! The demo model (Gemma 3 270M, Q4_K_M) as a checkpoint.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use larql_checkpoint::config::{Activation, RopeScaling};
use larql_checkpoint::{Checkpoint, Family, ModelConfig, Role, TensorId};

/// The demo model's file; `None` where the tests that need it are switched off.
#[allow(clippy::disallowed_methods, reason = "tests are told by the environment what to skip")]
fn demo_model() -> Option<PathBuf> {
    if std::env::var_os("LARQL_SKIP_MODEL_TESTS").is_some() {
        return None;
    }
    let path = match std::env::var_os("LARQL_TEST_MODEL") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(std::env::var_os("HOME").unwrap())
            .join(".cache/larql/gemma-3-270m-q4_k_m.gguf"),
    };
    assert!(path.exists(), "{} is missing: run `make model`", path.display());
    Some(path)
}

#[test]
fn model_gemma3_270m() {
    let Some(path) = demo_model() else { return };
    let checkpoint = Checkpoint::open(path).unwrap();
    let config = checkpoint.config();
    assert_eq!(config.family, Family::Gemma3);
    assert_eq!((config.n_layers, config.hidden_size, config.intermediate_size), (18, 640, 2048));
    assert_eq!((config.n_heads, config.n_kv_heads, config.head_dim), (4, 1, 256));
    assert_eq!((config.vocab_size, config.context_length), (262_144, 32_768));
    assert_eq!(config.norm.eps, 1e-6);
    assert_eq!((config.query_scale, config.embedding_scale), (1.0 / 16.0, 640f32.sqrt()));
    assert_eq!(config.activation, Activation::GeluTanh);
    assert!(config.tied && config.post_norms && config.qk_norm && config.gated());
    let rope = config.rope.as_ref().unwrap();
    assert_eq!((rope.dim, rope.theta, rope.theta_local), (256, 1e6, Some(1e4)));
    assert_eq!(rope.scaling, RopeScaling::None);
    let global: Vec<usize> = (0..18).filter(|l| config.windows[*l].is_none()).collect();
    assert_eq!(global, [5, 11, 17]);
    assert_eq!(config.windows[0], Some(512));

    assert_eq!(checkpoint.tensors().len(), 236);
    assert!(checkpoint.unknown_tensors().is_empty());
    let gate = checkpoint.tensor(TensorId::layer(Role::FfnGate, 3)).unwrap();
    assert_eq!((gate.name.as_str(), gate.rows, gate.cols), ("blk.3.ffn_gate.weight", 2048, 640));
    let matrix = checkpoint.matrix(gate).unwrap();
    let mut row = vec![0; matrix.row_stride()];
    checkpoint.read_row(gate, 2047, &mut row);
    assert_eq!(row, matrix.row_bytes(2047));

    let json = serde_json::to_string(config).unwrap();
    assert_eq!(&serde_json::from_str::<ModelConfig>(&json).unwrap(), config);
}
