//! The features' mean activations: kept, checked, refused where they are of something else.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use larql_compute::Dtype;
use larql_vindex::{ExtractOptions, FeatureMeans, NoProgress, Vindex, verify};

const TEXT: &str = "One text.\n%%\nAnd another.";

#[test]
fn means_are_kept_checked_and_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (source, path) = (dir.path().join("tiny.gguf"), dir.path().join("tiny.vindex"));
    support::write_model(&source, Dtype::F32);
    support::extract(&source, &path, &ExtractOptions::default());
    let vindex = Vindex::open(&path).unwrap();
    assert!(FeatureMeans::open(&vindex, TEXT).unwrap().is_none());
    let config = vindex.config();
    let layers: Vec<Vec<f32>> = (0..config.n_layers)
        .map(|layer| {
            (0..config.n_features(layer)).map(|f| (layer * 100 + f) as f32 - 3.5).collect()
        })
        .collect();
    FeatureMeans::write(&vindex, TEXT, 7, &layers).unwrap();
    let file = path.join("feature_means.bin");
    let sound = std::fs::read(&file).unwrap();

    let means = FeatureMeans::open(&vindex, TEXT).unwrap().unwrap();
    assert_eq!(means.positions(), 7);
    for (layer, values) in layers.iter().enumerate() {
        assert_eq!(&means.layer(layer), values);
    }
    assert!(means.layer(config.n_layers).is_empty());
    let other = FeatureMeans::open(&vindex, "Another text.").unwrap_err().to_string();
    assert!(other.contains("another text") && other.contains("larql why"), "{other}");

    // The bytes of docs/FORMAT.md.
    let u32_at = |at: usize| u32::from_le_bytes(sound[at..at + 4].try_into().unwrap());
    let (n_layers, n_features) = (config.n_layers, config.n_features(0));
    assert_eq!((&sound[..8], u32_at(8), u32_at(12)), (&b"LARQLFM1"[..], 1, n_layers as u32));
    assert_eq!(u32_at(16) as usize, layers.iter().map(Vec::len).sum::<usize>());
    assert_eq!((u32_at(24), u32_at(128)), (7, n_features as u32));
    let start = (128 + 4 * n_layers).next_multiple_of(64);
    assert_eq!(sound[start..start + 4], (-3.5_f32).to_le_bytes());

    let vindex = Vindex::open(&path).unwrap();
    assert!(vindex.extra_files().is_empty());
    assert_eq!(vindex.stats().unwrap().feature_means, Some(sound.len() as u64));
    assert!(vindex.residency().unwrap().roles.iter().any(|row| row.role == "feature_means"));
    assert!(verify(&path, &Default::default(), &NoProgress).unwrap().is_sound());

    let cases: [(usize, &[u8], &str); 8] = [
        (0, b"X", "LARQLFM1"),
        (8, &[2], "version is 2"),
        (12, &[0, 0, 0, 0], "no number of layers"),
        (12, &[255, 255, 0, 0], "layer table"),
        (16, &[99], "means"),
        (33, &[sound[33] ^ 1], "another model"),
        (100, &[1], "reserved"),
        (start, &f32::NAN.to_le_bytes(), "not finite"),
    ];
    for (at, bytes, wanted) in cases {
        let mut broken = sound.clone();
        broken[at..at + bytes.len()].copy_from_slice(bytes);
        std::fs::write(&file, &broken).unwrap();
        let error = FeatureMeans::open(&vindex, TEXT).unwrap_err().to_string();
        assert!(error.contains(wanted) && error.contains("feature_means.bin"), "{wanted}: {error}");
        assert!(!verify(&path, &Default::default(), &NoProgress).unwrap().is_sound() || at == 33);
    }
    for len in (0..sound.len()).step_by(7) {
        std::fs::write(&file, &sound[..len]).unwrap();
        assert!(FeatureMeans::open(&vindex, TEXT).is_err(), "{len} bytes");
    }
    let mut broken = sound.clone();
    *broken.last_mut().unwrap() ^= 1;
    std::fs::write(&file, &broken).unwrap();
    assert!(FeatureMeans::open(&vindex, TEXT).is_err());
    assert!(!verify(&path, &Default::default(), &NoProgress).unwrap().is_sound());

    // Written again over what is broken.
    FeatureMeans::write(&vindex, TEXT, 7, &layers).unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), sound);
    let few = &layers[1..];
    assert!(FeatureMeans::write(&vindex, TEXT, 7, few).unwrap_err().to_string().contains("every"));
    let mut odd = layers.clone();
    odd[0][0] = f32::INFINITY;
    assert!(FeatureMeans::write(&vindex, TEXT, 7, &odd).is_err());
    assert_eq!(std::fs::read(&file).unwrap(), sound, "what is there stays");
}
