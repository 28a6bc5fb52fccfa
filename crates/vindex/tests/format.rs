//! Vindexes that earlier versions wrote, committed under `tests/format`, open and hold what they
//! held. A format version without a fixture fails here.

mod support;

use std::path::PathBuf;

use larql_checkpoint::{Role, TensorId};
use larql_vindex::labels::Labels;
use larql_vindex::{FileState, NoProgress, Vindex, manifest, verify};

fn fixture(version: u32, name: &str) -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/format");
    PathBuf::from(format!("{root}/v{version}/{name}"))
}

#[test]
fn every_version_opens() {
    for version in 1..=manifest::VERSION {
        for name in ["tiny.vindex", "tiny-split.vindex"] {
            let path = fixture(version, name);
            assert!(
                path.is_dir(),
                "no fixture of format version {version}: run the example `format_fixture`"
            );
            let vindex = Vindex::open(&path).unwrap();
            assert_eq!(vindex.config(), &support::config());
            assert_eq!(vindex.tokenizer().unwrap().vocab_size(), support::VOCAB);
            let report = verify(&path, &Default::default(), &NoProgress).unwrap();
            assert!(report.files.iter().all(|file| file.state == FileState::Sound));
        }
        let vindex = Vindex::open(fixture(version, "tiny.vindex")).unwrap();
        assert!(vindex.down_features(1).is_some());
        let labels = Labels::open(&vindex).unwrap().unwrap();
        assert_eq!(labels.get(1, 63).unwrap().unwrap().promoted().count(), 3);
        assert_eq!(labels.coverage().features, 2 * support::FEATURES);
        // The values are those that the tiny model is made with.
        let gate = vindex.require(TensorId::layer(Role::FfnGate, 0)).unwrap();
        let mut row = [0.0; support::HIDDEN];
        larql_compute::dequantize_row(gate.dtype(), gate.row_bytes(3), &mut row);
        let expected = support::row(TensorId::layer(Role::FfnGate, 0), 3);
        let furthest = row.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(furthest < 0.003, "{furthest}");
    }
}
