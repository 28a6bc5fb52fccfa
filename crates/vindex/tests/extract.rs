//! What an extraction makes, and that it makes all of it or nothing.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use larql_checkpoint::{Role, TensorId};
use larql_compute::{Dtype, dequantize_row};
use larql_vindex::{
    ExtractOptions, Level, NoProgress, SliceOptions, Vindex, VindexError, WeightsOrigin,
};
use support::{FEATURES, HIDDEN, LAYERS, StopAt, extract, model_dir, names, text};

fn values(matrix: larql_compute::Matrix<'_>) -> Vec<f32> {
    let mut out = vec![0.0; matrix.rows() * matrix.cols()];
    dequantize_row(matrix.dtype(), matrix.bytes(), &mut out);
    out
}

#[test]
fn a_gguf_is_linked_and_its_bytes_are_the_vindex() {
    let (dir, model) = model_dir();
    let target = dir.path().join("tiny.vindex");
    let report =
        larql_vindex::extract(&model, &target, &ExtractOptions::default(), &NoProgress).unwrap();
    assert_eq!(report.weights, WeightsOrigin::Linked);
    assert_eq!(names(&target), ["index.json", "model.gguf"]);
    assert_eq!(names(dir.path()), ["tiny.gguf", "tiny.vindex"]);

    let vindex = Vindex::open(&target).unwrap();
    assert_eq!(vindex.config(), &support::config());
    assert_eq!(vindex.n_features(1).unwrap(), FEATURES);
    let gate = vindex.require(TensorId::layer(Role::FfnGate, 1)).unwrap();
    assert_eq!((gate.rows(), gate.cols(), gate.dtype()), (FEATURES, HIDDEN, Dtype::Q8_0));
    let source = larql_checkpoint::gguf::Gguf::open(&model).unwrap();
    assert_eq!(gate.bytes(), source.tensor("blk.1.ffn_gate.weight").unwrap().bytes());
    assert_eq!(vindex.vector(TensorId::global(Role::OutputNorm)).unwrap().len(), HIDDEN);
    assert_eq!(vindex.unembedding().unwrap().rows(), support::VOCAB);
    assert!(vindex.extra_files().is_empty());
}

#[test]
fn a_private_copy_does_not_follow_its_source() {
    let (dir, model) = model_dir();
    let target = dir.path().join("tiny.vindex");
    extract(&model, &target, &ExtractOptions { copy: true, ..Default::default() });
    std::fs::write(&model, b"overwritten").unwrap();
    let vindex = Vindex::open(&target).unwrap();
    assert_ne!(vindex.manifest().source.weights, WeightsOrigin::Linked);
}

#[test]
fn what_is_absent_is_an_error_with_a_remedy() {
    let (dir, model) = model_dir();
    let target = dir.path().join("browse.vindex");
    extract(&model, &target, &ExtractOptions { level: Level::Browse, ..Default::default() });
    let vindex = Vindex::open(&target).unwrap();
    assert!(vindex.matrix(TensorId::layer(Role::FfnGate, 0)).is_some());
    let error = text(vindex.require(TensorId::layer(Role::FfnDown, 0)));
    assert!(error.contains("blk.0.ffn_down.weight is not in"), "{error}");
    assert!(error.contains("level browse"), "{error}");
    assert!(error.contains("--level inference --force"), "{error}");
    let error = text(vindex.require(TensorId::layer(Role::FfnGate, LAYERS)));
    assert!(error.contains("layer 2 does not exist: the model has layers 0 to 1"), "{error}");
}

#[test]
fn a_split_has_the_same_matrices_in_a_file_for_each_group() {
    let (dir, model) = model_dir();
    let (whole, split) = (dir.path().join("whole.vindex"), dir.path().join("split.vindex"));
    extract(&model, &whole, &ExtractOptions::default());
    extract(&model, &split, &ExtractOptions { split: true, ..Default::default() });
    assert_eq!(
        names(&split),
        [
            "attn_weights.gguf",
            "embeddings.gguf",
            "ffn_weights.gguf",
            "gate_vectors.gguf",
            "index.json"
        ]
    );
    let (whole, split) = (Vindex::open(&whole).unwrap(), Vindex::open(&split).unwrap());
    assert_eq!(whole.manifest().tensors.len(), split.manifest().tensors.len());
    for entry in &whole.manifest().tensors {
        let (a, b) = (whole.require(entry.id).unwrap(), split.require(entry.id).unwrap());
        assert_eq!((a.dtype(), a.bytes()), (b.dtype(), b.bytes()), "{}", entry.name);
    }
    assert_eq!(split.tokenizer().unwrap().vocab_size(), support::VOCAB);
}

#[test]
fn layers_limit_what_is_there() {
    let (dir, model) = model_dir();
    for split in [false, true] {
        let target = dir.path().join(format!("{split}.vindex"));
        extract(
            &model,
            &target,
            &ExtractOptions { layers: Some(1..2), split, ..Default::default() },
        );
        let vindex = Vindex::open(&target).unwrap();
        assert!(vindex.matrix(TensorId::layer(Role::FfnGate, 1)).is_some());
        let error = text(vindex.require(TensorId::layer(Role::FfnGate, 0)));
        assert!(error.contains("layers 1..2"), "{error}");
    }
    let options = ExtractOptions { layers: Some(1..3), ..Default::default() };
    let error = text(larql_vindex::extract(&model, &dir.path().join("x"), &options, &NoProgress));
    assert!(error.contains("--layers 1..3: the model has layers 0..2"), "{error}");
}

#[test]
fn feature_major_down_is_the_transpose() {
    let (dir, model) = model_dir();
    let target = dir.path().join("tiny.vindex");
    extract(&model, &target, &ExtractOptions { feature_major_down: true, ..Default::default() });
    let vindex = Vindex::open(&target).unwrap();
    for layer in 0..LAYERS {
        let down = values(vindex.require(TensorId::layer(Role::FfnDown, layer)).unwrap());
        let features = vindex.down_features(layer).unwrap();
        assert_eq!((features.rows(), features.cols()), (FEATURES, HIDDEN));
        let features = values(features);
        for f in 0..FEATURES {
            for h in 0..HIDDEN {
                let (a, b) = (down[h * FEATURES + f], features[f * HIDDEN + h]);
                assert!((a - b).abs() < 0.005, "layer {layer}, feature {f}, element {h}: {a} {b}");
            }
        }
    }
}

#[test]
fn another_dtype_is_written_and_reported() {
    let (dir, model) = model_dir();
    let target = dir.path().join("q4k.vindex");
    let options = ExtractOptions { dtype: Some(Dtype::Q4K), ..Default::default() };
    let report = larql_vindex::extract(&model, &target, &options, &NoProgress).unwrap();
    assert_eq!(report.weights, WeightsOrigin::Written);
    // No matrix of the tiny model has 256 columns.
    assert!(report.fallbacks.iter().all(|f| f.got == "q8_0" && f.asked == "q4_k"));
    assert!(report.fallbacks.iter().any(|f| f.tensor == "blk.0.ffn_down.weight"));
    let options = ExtractOptions { dtype: Some(Dtype::Q5K), ..Default::default() };
    let error = text(larql_vindex::extract(&model, &dir.path().join("x"), &options, &NoProgress));
    assert!(error.contains("--dtype q5_k"), "{error}");
}

#[test]
fn threads_do_not_change_a_byte() {
    let (dir, model) = model_dir();
    let mut hashes = Vec::new();
    for threads in [1, 3] {
        let target = dir.path().join(format!("{threads}.vindex"));
        let options = ExtractOptions {
            dtype: Some(Dtype::Q4_0),
            feature_major_down: true,
            threads: Some(threads),
            ..Default::default()
        };
        extract(&model, &target, &options);
        let vindex = Vindex::open(&target).unwrap();
        let files = &vindex.manifest().files;
        hashes.push(files.iter().map(|f| f.sha256.unwrap()).collect::<Vec<_>>());
    }
    assert_eq!(hashes[0], hashes[1]);
}

#[test]
fn stopping_anywhere_leaves_nothing() {
    let (dir, model) = model_dir();
    let target = dir.path().join("tiny.vindex");
    let options =
        ExtractOptions { split: true, copy: true, feature_major_down: true, ..Default::default() };
    let mut stops = 0;
    for n in 0.. {
        match larql_vindex::extract(&model, &target, &options, &StopAt::new(n)) {
            Ok(_) => break,
            Err(VindexError::Cancelled { .. }) => stops += 1,
            Err(other) => panic!("{other}"),
        }
        assert_eq!(names(dir.path()), ["tiny.gguf"], "stopped at look {n}");
    }
    assert!(stops > 20, "{stops}");
    Vindex::open(&target).unwrap();
}

#[test]
fn an_existing_vindex_is_replaced_only_by_force() {
    let (dir, model) = model_dir();
    let target = dir.path().join("tiny.vindex");
    extract(&model, &target, &ExtractOptions::default());
    let again = larql_vindex::extract(&model, &target, &ExtractOptions::default(), &NoProgress);
    assert!(text(again).contains("--force"));
    let force = ExtractOptions { force: true, level: Level::Browse, ..Default::default() };
    extract(&model, &target, &force);
    assert_eq!(Vindex::open(&target).unwrap().level(), Level::Browse);
    assert_eq!(names(dir.path()), ["tiny.gguf", "tiny.vindex"]);
}

#[test]
fn a_slice_has_what_it_names() {
    let (dir, model) = model_dir();
    let (whole, browse) = (dir.path().join("whole.vindex"), dir.path().join("browse.vindex"));
    extract(&model, &whole, &ExtractOptions { feature_major_down: true, ..Default::default() });
    let options = SliceOptions { level: Some(Level::Browse), ..Default::default() };
    let report = larql_vindex::slice(&whole, &browse, &options, &NoProgress).unwrap();
    assert_eq!(report.left_out, ["down_features.gguf"]);
    assert_eq!(names(&browse), ["embeddings.gguf", "gate_vectors.gguf", "index.json"]);
    let (a, b) = (Vindex::open(&whole).unwrap(), Vindex::open(&browse).unwrap());
    let gate = TensorId::layer(Role::FfnGate, 1);
    assert_eq!(a.require(gate).unwrap().bytes(), b.require(gate).unwrap().bytes());
    assert_eq!(b.manifest().source.files, a.manifest().source.files);

    let more = SliceOptions { level: Some(Level::All), ..Default::default() };
    let error = text(larql_vindex::slice(&browse, &dir.path().join("x"), &more, &NoProgress));
    assert!(error.contains("is of level browse"), "{error}");
    let one = SliceOptions {
        groups: vec![larql_vindex::Group::Gate],
        layers: Some(0..1),
        ..Default::default()
    };
    let gates = dir.path().join("gates.vindex");
    larql_vindex::slice(&whole, &gates, &one, &NoProgress).unwrap();
    let vindex = Vindex::open(&gates).unwrap();
    assert_eq!(names(&gates), ["gate_vectors.gguf", "index.json"]);
    assert!(vindex.matrix(TensorId::layer(Role::FfnGate, 0)).is_some());
    assert!(vindex.matrix(gate).is_none());
    assert_eq!(vindex.tokenizer().unwrap().vocab_size(), support::VOCAB);
}

#[test]
fn narrowing_lets_go_of_what_is_above_the_level() {
    let (dir, model) = model_dir();
    for (split, files) in [
        (false, &["index.json", "model.gguf"][..]),
        (true, &["embeddings.gguf", "gate_vectors.gguf", "index.json"]),
    ] {
        let target = dir.path().join(format!("{split}.vindex"));
        extract(&model, &target, &ExtractOptions { split, ..Default::default() });
        larql_vindex::narrow(&target, Level::Browse, None, &NoProgress).unwrap();
        assert_eq!(names(&target), files);
        let vindex = Vindex::open(&target).unwrap();
        assert_eq!(vindex.level(), Level::Browse);
        assert!(vindex.matrix(TensorId::layer(Role::FfnGate, 0)).is_some());
        assert!(vindex.matrix(TensorId::layer(Role::FfnDown, 0)).is_none());
        let error = text(larql_vindex::narrow(&target, Level::All, None, &NoProgress));
        assert!(error.contains("is of level browse"), "{error}");
    }
    assert_eq!(names(dir.path()), ["false.vindex", "tiny.gguf", "true.vindex"]);
}

#[test]
fn quantising_reports_size_and_error() {
    let (dir, model) = model_dir();
    let target = dir.path().join("q4.vindex");
    let options = larql_vindex::QuantizeOptions {
        dtype: Dtype::Q4_0,
        feature_major_down: true,
        force: false,
        threads: None,
    };
    let report = larql_vindex::quantize(&model, &target, &options, &NoProgress).unwrap();
    let down = report.roles.iter().find(|r| r.role == "ffn_down.weight").unwrap();
    assert_eq!(
        (down.tensors, down.source_bytes),
        (LAYERS, (LAYERS * HIDDEN * FEATURES / 32 * 34) as u64)
    );
    assert_eq!(down.bytes, (LAYERS * HIDDEN * FEATURES / 32 * 18) as u64);
    assert!(down.relative > 0.01 && down.relative < 0.15, "{}", down.relative);
    let vindex = Vindex::open(&target).unwrap();
    assert!(vindex.down_features(0).is_some());
    // A vindex is as good a source as a model.
    let again = dir.path().join("f16.vindex");
    let options = larql_vindex::QuantizeOptions { dtype: Dtype::F16, ..options };
    let report = larql_vindex::quantize(&target, &again, &options, &NoProgress).unwrap();
    assert!(report.roles.iter().all(|role| role.relative < 1e-3));
}

#[test]
fn stats_and_residency_count_everything() {
    let (dir, model) = model_dir();
    let target = dir.path().join("tiny.vindex");
    extract(&model, &target, &ExtractOptions::default());
    let vindex = Vindex::open(&target).unwrap();
    let stats = vindex.stats().unwrap();
    assert_eq!(stats.n_features, (LAYERS * FEATURES) as u64);
    assert_eq!(stats.layers.len(), LAYERS);
    assert_eq!(stats.layers[0].down.as_deref(), Some("q8_0"));
    let bytes: u64 = stats.groups.iter().map(|group| group.bytes).sum();
    let residency = vindex.residency().unwrap();
    assert_eq!(residency.roles.iter().map(|role| role.mapped).sum::<u64>(), bytes);
    assert!(residency.roles.iter().all(|role| role.resident <= role.mapped));
    assert!(residency.heap.iter().all(|heap| heap.bytes > 0));
}
