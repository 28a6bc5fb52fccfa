//! Vindexes that are not what their manifest says, one test a fault, and what `verify` makes of
//! them.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use larql_vindex::{
    ExtractOptions, FileState, Manifest, ManifestFault, NoProgress, VerifyOptions, Vindex,
    VindexError, verify,
};
use support::{extract, model_dir, text};

/// A private vindex of the tiny model.
fn vindex() -> (tempfile::TempDir, PathBuf) {
    let (dir, model) = model_dir();
    let target = dir.path().join("tiny.vindex");
    let options = ExtractOptions { copy: true, feature_major_down: true, ..Default::default() };
    extract(&model, &target, &options);
    (dir, target)
}

/// Replaces text in the manifest.
fn edit(target: &Path, from: &str, to: &str) {
    let path = target.join("index.json");
    let manifest = fs::read_to_string(&path).unwrap();
    assert!(manifest.contains(from), "{from} is not in {manifest}");
    fs::write(path, manifest.replacen(from, to, 1)).unwrap();
}

fn open_error(target: &Path) -> String {
    text(Vindex::open(target))
}

#[test]
fn sound_vindex_verifies() {
    let (_dir, target) = vindex();
    let report = verify(&target, &VerifyOptions::default(), &NoProgress).unwrap();
    assert!(report.is_sound());
    assert_eq!(report.files.len(), 2);
    assert!(report.extra_files.is_empty());
}

#[test]
fn not_a_vindex() {
    let dir = tempfile::tempdir().unwrap();
    let error = open_error(dir.path());
    assert!(error.contains("is not a vindex: it has no index.json"), "{error}");
    assert!(error.contains("larql extract-index"), "{error}");
    let file = dir.path().join("model.gguf");
    fs::write(&file, b"GGUF").unwrap();
    assert!(open_error(&file).contains("is not a vindex: it is a file"));
    let error = open_error(&dir.path().join("nothing"));
    assert!(error.contains("cannot open") && error.contains("nothing"), "{error}");
    for manifest in ["", "{", "[]", r#"{"format": "other", "version": 1}"#, r#"{"weight_map": {}}"#]
    {
        fs::write(dir.path().join("index.json"), manifest).unwrap();
        assert!(open_error(dir.path()).contains("is not a vindex"), "{manifest}");
    }
}

#[test]
fn newer_manifest_names_both_versions() {
    let (_dir, target) = vindex();
    edit(&target, "\"version\": 1", "\"version\": 7");
    let error = open_error(&target);
    assert!(error.contains("has format version 7"), "{error}");
    assert!(error.contains("reads versions 1 to 1"), "{error}");
    // A newer manifest need not look like ours otherwise.
    fs::write(target.join("index.json"), r#"{"format": "larql-vindex", "version": 9}"#).unwrap();
    assert!(open_error(&target).contains("has format version 9"));
}

#[test]
fn missing_weights() {
    let (_dir, target) = vindex();
    fs::remove_file(target.join("model.gguf")).unwrap();
    let error = open_error(&target);
    assert!(error.contains("model.gguf is missing"), "{error}");
    assert!(error.contains("larql extract-index tiny.gguf"), "{error}");
    let report = verify(&target, &VerifyOptions::default(), &NoProgress).unwrap();
    assert_eq!(report.files[0].state, FileState::Missing);
    assert!(!report.is_sound());
}

#[test]
fn missing_derived_file_is_no_fault() {
    let (_dir, target) = vindex();
    fs::remove_file(target.join("down_features.gguf")).unwrap();
    let vindex = Vindex::open(&target).unwrap();
    assert!(vindex.down_features(0).is_none());
    assert_eq!(vindex.missing_files(), ["down_features.gguf"]);
}

#[test]
fn truncated_weights() {
    let (_dir, target) = vindex();
    let path = target.join("model.gguf");
    let size = fs::metadata(&path).unwrap().len();
    fs::File::options().write(true).open(&path).unwrap().set_len(size - 1).unwrap();
    let error = open_error(&target);
    let expected = format!("has {} bytes where the manifest records {size}", size - 1);
    assert!(error.contains(&expected), "{error}");
    let report = verify(&target, &VerifyOptions::default(), &NoProgress).unwrap();
    assert_eq!(report.files[0].state, FileState::Size);
}

#[test]
fn edited_weights_are_found_by_verify() {
    let (_dir, target) = vindex();
    let path = target.join("model.gguf");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    // Same size and a sound header: opening is quick and does not read the data.
    Vindex::open(&target).unwrap();
    let report = verify(&target, &VerifyOptions::default(), &NoProgress).unwrap();
    assert_eq!(report.files[0].state, FileState::Damaged);
    assert!(report.files[0].detail.as_ref().unwrap().contains("differ"));
    assert!(!report.is_sound());
}

#[test]
fn extra_files_are_named_and_not_read() {
    let (_dir, target) = vindex();
    fs::write(target.join("notes.txt"), b"mine").unwrap();
    assert_eq!(Vindex::open(&target).unwrap().extra_files(), ["notes.txt"]);
    let report = verify(&target, &VerifyOptions::default(), &NoProgress).unwrap();
    assert_eq!(report.extra_files, ["notes.txt"]);
    assert!(report.is_sound());
}

#[test]
fn header_and_manifest_must_agree() {
    for (from, to, what) in [
        ("\"dtype\": \"q8_0\"", "\"dtype\": \"q4_0\"", "dtype is q8_0 in the file but q4_0"),
        ("blk.0.ffn_gate.weight", "blk.0.ffn_gatf.weight", "presence is absent"),
    ] {
        let (_dir, target) = vindex();
        edit(&target, from, to);
        let error = open_error(&target);
        assert!(error.contains(what), "{what}: {error}");
        assert!(error.contains("--force"), "{error}");
    }
}

#[test]
fn contradictions_within_the_manifest() {
    for (from, to, what) in [
        ("\"file\": \"model.gguf\"", "\"file\": \"other.gguf\"", "is no weight file"),
        ("\"name\": \"down_features.gguf\"", "\"name\": \"../../passwd\"", "plain file name"),
        ("\"name\": \"down_features.gguf\"", "\"name\": \"model.gguf\"", "twice"),
        ("\"layer\": 1", "\"layer\": 0", "twice"),
        ("\"layer\": 1", "\"layer\": 2", "outside layers"),
        ("\"layers\": [\n    0,\n    2\n  ]", "\"layers\": [0, 3]", "not a range"),
        ("\"level\": \"all\"", "\"level\": \"some\"", "unknown variant"),
        ("\"dtype\": \"q8_0\"", "\"dtype\": \"q9_9\"", "unknown dtype"),
        ("        40\n", "        41\n", "`token_embd.weight` is [32, 41], the model's [32, 40]"),
        ("\"n_layers\": 2", "\"n_layers\": 9999999999", "model: "),
        ("\"hidden_size\": 32", "\"hidden_size\": 0", "model: "),
    ] {
        let (_dir, target) = vindex();
        edit(&target, from, to);
        let error = open_error(&target);
        assert!(error.contains("index.json") && error.contains(what), "{what}: {error}");
    }
}

/// Files that need not be there may claim any size, which only a sum can show to be a lie.
#[test]
fn sizes_that_overflow() {
    let (_dir, target) = vindex();
    let bytes = fs::read(target.join("index.json")).unwrap();
    let mut manifest = Manifest::from_slice(&bytes).unwrap();
    let derived = manifest.files.iter_mut().find(|file| file.kind.is_derived()).unwrap();
    derived.size = u64::MAX;
    derived.sha256 = None;
    let fault = Manifest::from_slice(&manifest.to_vec().unwrap()).unwrap_err();
    assert!(matches!(&fault, ManifestFault::Invalid(why) if why.contains("overflow")), "{fault}");
}

#[test]
fn manifest_of_any_length_is_an_error_not_a_panic() {
    let (_dir, target) = vindex();
    let bytes = fs::read(target.join("index.json")).unwrap();
    assert!(Manifest::from_slice(&bytes).is_ok());
    for len in 0..bytes.len() - 2 {
        assert!(Manifest::from_slice(&bytes[..len]).is_err(), "{len}");
    }
}

#[test]
fn changed_source_of_a_link_is_refused_and_can_be_accepted() {
    let (dir, model) = model_dir();
    let target = dir.path().join("tiny.vindex");
    extract(&model, &target, &ExtractOptions::default());
    let file = fs::File::options().write(true).open(&model).unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
    file.set_modified(later).unwrap();
    let error = open_error(&target);
    assert!(error.contains("that file has changed"), "{error}");
    assert!(error.contains("--repair"), "{error}");

    let report = verify(&target, &VerifyOptions::default(), &NoProgress).unwrap();
    assert_eq!(report.files[0].state, FileState::Touched);
    assert!(!report.is_sound());
    let repair = VerifyOptions { repair: true, ..Default::default() };
    let report = verify(&target, &repair, &NoProgress).unwrap();
    assert!(report.is_sound() && report.repaired);
    Vindex::open(&target).unwrap();

    // Other bytes are not accepted.
    let mut bytes = fs::read(&model).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&model, bytes).unwrap();
    let report = verify(&target, &repair, &NoProgress).unwrap();
    assert!(!report.is_sound() && !report.repaired);
    assert!(matches!(Vindex::open(&target), Err(VindexError::SourceChanged { .. })));
}

#[test]
fn unfinished_and_interrupted_work_is_recognised() {
    let (dir, target) = vindex();
    let unfinished = dir.path().join(".tiny.vindex.tmp-123-000000001");
    fs::create_dir(&unfinished).unwrap();
    assert!(open_error(&unfinished).contains("unfinished work"));
    let aside = dir.path().join(".tiny.vindex.old-123-000000001");
    fs::rename(&target, &aside).unwrap();
    let error = open_error(&target);
    assert!(error.contains(&format!("mv {} {}", aside.display(), target.display())), "{error}");
}

#[test]
fn faults_of_the_preamble_have_their_own_kind() {
    assert!(matches!(Manifest::from_slice(b"{}"), Err(ManifestFault::NotAVindex(_))));
    let newer = br#"{"format": "larql-vindex", "version": 2}"#;
    assert_eq!(Manifest::from_slice(newer), Err(ManifestFault::Newer(2)));
    let ours = br#"{"format": "larql-vindex", "version": 1}"#;
    assert!(matches!(Manifest::from_slice(ours), Err(ManifestFault::Invalid(_))));
}

#[test]
fn force_deletes_nothing_that_is_not_the_vindexs() {
    let (dir, model) = model_dir();
    let target = dir.path().join("tiny.vindex");
    let options = ExtractOptions { copy: true, force: true, ..Default::default() };
    extract(&model, &target, &options);
    let notes = target.join("NOTES.txt");
    fs::write(&notes, "mine").unwrap();
    let error = text(larql_vindex::extract(&model, &target, &options, &NoProgress));
    assert!(error.contains("NOTES.txt") && error.contains("move them away"), "{error}");
    assert_eq!(fs::read_to_string(&notes).unwrap(), "mine");
    fs::remove_file(&notes).unwrap();
    extract(&model, &target, &options);
}
