//! Labels of a whole vindex: computed, resumed, kept, refused.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::path::{Path, PathBuf};

use larql_compute::{Cpu, Dtype};
use larql_vindex::labels::{LabelOptions, LabelScore, Labels, LazyLabels, compute};
use larql_vindex::{ExtractOptions, FileState, NoProgress, Vindex, VindexError, verify};
use support::{FEATURES, LAYERS, StopAt, VOCAB, demo_model, text};

fn tiny() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (source, vindex) = (dir.path().join("tiny.gguf"), dir.path().join("tiny.vindex"));
    support::write_model(&source, Dtype::F32);
    support::extract(&source, &vindex, &ExtractOptions::default());
    (dir, vindex)
}

fn cpu() -> Cpu {
    Cpu::new(None, Some(2)).unwrap()
}

type Lists = (Vec<(u32, f32)>, Vec<(u32, f32)>);

fn lists(labels: &Labels, layer: usize, feature: usize) -> Option<Lists> {
    let found = labels.get(layer, feature).unwrap()?;
    Some((found.promoted().collect(), found.suppressed().collect()))
}

fn open(path: &Path) -> Labels {
    Labels::open(&Vindex::open(path).unwrap()).unwrap().unwrap()
}

fn state(path: &Path) -> FileState {
    let report = verify(path, &Default::default(), &NoProgress).unwrap();
    report.files.iter().find(|file| file.name == "down_meta.bin").unwrap().state
}

#[test]
fn all_at_once_equals_one_by_one() {
    let (_dir, path) = tiny();
    let (_other, lazy_path) = tiny();
    let cpu = cpu();
    let options = LabelOptions { top_tokens: 5, ..LabelOptions::default() };
    let report = compute(&Vindex::open(&path).unwrap(), &cpu, &options, &NoProgress).unwrap();
    assert_eq!((report.features, report.kept, report.tokens), (LAYERS * FEATURES, 0, VOCAB));
    assert_eq!(state(&path), FileState::Sound);

    let vindex = Vindex::open(&lazy_path).unwrap();
    let lazy = LazyLabels::open(&vindex, &cpu, &options).unwrap();
    let wanted: Vec<_> = (0..LAYERS * FEATURES).map(|i| (i % LAYERS, i / LAYERS)).collect();
    // Few enough to be scored directly, then the rest through the coarse scan, then all again.
    let first = lazy.get(&wanted[..3]).unwrap();
    assert_eq!(lazy.not_kept(), None);
    assert_eq!(state(&lazy_path), FileState::Growing);
    let all = lazy.get(&wanted).unwrap();
    assert_eq!(all[..3], first[..]);
    assert_eq!(lazy.get(&wanted).unwrap(), all);

    let (eager, kept) = (open(&path), open(&lazy_path));
    assert_eq!(eager.coverage().features, LAYERS * FEATURES);
    assert_eq!(kept.coverage().features, LAYERS * FEATURES);
    for (&(layer, feature), labels) in wanted.iter().zip(&all) {
        let expected = lists(&eager, layer, feature).unwrap();
        assert_eq!(expected.0.len(), 5);
        assert_eq!((labels.promoted().collect(), labels.suppressed().collect()), expected);
        assert_eq!(lists(&kept, layer, feature).unwrap(), expected);
    }
}

#[test]
fn a_stopped_run_goes_on_where_it_stopped() {
    let (_dir, path) = tiny();
    let vindex = Vindex::open(&path).unwrap();
    let cpu = cpu();
    let one = LabelOptions { layers: Some(1..2), ..LabelOptions::default() };
    assert_eq!(compute(&vindex, &cpu, &one, &NoProgress).unwrap().features, FEATURES);
    assert_eq!(state(&path), FileState::Growing);
    assert!(lists(&open(&path), 0, 0).is_none());
    let before = lists(&open(&path), 1, 3);
    assert!(before.is_some());

    let all = LabelOptions::default();
    let stopped = compute(&vindex, &cpu, &all, &StopAt::new(0));
    assert!(matches!(stopped, Err(VindexError::Cancelled { .. })));
    assert!(lists(&open(&path), 0, 0).is_none());
    let report = compute(&vindex, &cpu, &all, &NoProgress).unwrap();
    assert_eq!((report.features, report.kept), (FEATURES, FEATURES));
    assert_eq!(lists(&open(&path), 1, 3), before);
    assert_eq!(state(&path), FileState::Sound);
    // Complete: nothing is left to do.
    assert_eq!(compute(&vindex, &cpu, &all, &NoProgress).unwrap().features, 0);
}

#[test]
fn another_kind_of_labels_needs_a_fresh_start() {
    let (_dir, path) = tiny();
    let vindex = Vindex::open(&path).unwrap();
    let cpu = cpu();
    let cosine = LabelOptions::default();
    compute(&vindex, &cpu, &cosine, &NoProgress).unwrap();
    let mut dot = LabelOptions { score: LabelScore::Dot, ..cosine };
    let message = text(compute(&vindex, &cpu, &dot, &NoProgress));
    assert!(message.contains("10 tokens by cosine") && message.contains("--compute"), "{message}");
    dot.anew = true;
    compute(&vindex, &cpu, &dot, &NoProgress).unwrap();
    assert_eq!(open(&path).score(), LabelScore::Dot);
    for k in [0, 1025] {
        let options = LabelOptions { top_tokens: k, ..LabelOptions::default() };
        assert!(text(compute(&vindex, &cpu, &options, &NoProgress)).contains("1 to 1024"));
    }
}

#[test]
fn a_vindex_that_cannot_keep_labels_still_shows_them() {
    let (_dir, path) = tiny();
    let vindex = Vindex::open(&path).unwrap();
    let cpu = cpu();
    // A directory in the file's place: nothing can be created under that name.
    std::fs::create_dir(path.join("down_meta.bin.new")).unwrap();
    let lazy = LazyLabels::open(&vindex, &cpu, &LabelOptions::default()).unwrap();
    assert_eq!(lazy.get(&[(0, 1), (1, 2), (0, 1)]).unwrap().len(), 3);
    assert!(lazy.not_kept().unwrap().contains("down_meta.bin"));
    assert!(matches!(lazy.get(&[(0, FEATURES)]), Err(VindexError::NoSuchFeature { .. })));
    assert!(matches!(lazy.get(&[(LAYERS, 0)]), Err(VindexError::NoSuchLayer { .. })));
}

#[test]
fn labels_of_another_model_are_refused() {
    let (_dir, path) = tiny();
    let vindex = Vindex::open(&path).unwrap();
    compute(&vindex, &cpu(), &LabelOptions::default(), &NoProgress).unwrap();
    let file = path.join("down_meta.bin");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[28] += 1; // vocab_size
    std::fs::write(&file, bytes).unwrap();
    let message = text(Labels::open(&Vindex::open(&path).unwrap()));
    assert!(message.contains("down_meta.bin") && message.contains("vocabulary"), "{message}");
    std::fs::remove_file(&file).unwrap();
    assert!(Labels::open(&Vindex::open(&path).unwrap()).unwrap().is_none());
}

/// The strongest tokens of ten features, against numpy in float64 (scripts/fixtures/labels.py).
#[test]
fn model_labels_equal_the_reference() {
    let Some(model) = demo_model() else { return };
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/labels/gemma-3-270m.json");
    let golden: serde_json::Value =
        serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    let features: Vec<(usize, usize)> = golden["features"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| (f[0].as_u64().unwrap() as usize, f[1].as_u64().unwrap() as usize))
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let cpu = cpu();
    for score in LabelScore::ALL {
        let path = dir.path().join(format!("{score}.vindex"));
        support::extract(&model, &path, &ExtractOptions::default());
        let vindex = Vindex::open(&path).unwrap();
        let options = LabelOptions { score, ..LabelOptions::default() };
        let lazy = LazyLabels::open(&vindex, &cpu, &options).unwrap();
        let found = lazy.get(&features).unwrap();
        for (i, labels) in found.iter().enumerate() {
            let expected = &golden[score.name()][i];
            agree(&expected["promoted"], labels.promoted());
            agree(&expected["suppressed"], labels.suppressed());
        }
    }
}

fn agree(expected: &serde_json::Value, found: impl Iterator<Item = (u32, f32)>) {
    let expected = expected.as_array().unwrap();
    let found: Vec<_> = found.collect();
    assert_eq!(found.len(), expected.len());
    for (&(token, score), expected) in found.iter().zip(expected) {
        let value = expected[1].as_f64().unwrap();
        assert!((f64::from(score) - value).abs() <= 2e-6 * value.abs().max(1.0));
        assert_eq!(u64::from(token), expected[0].as_u64().unwrap());
    }
}
