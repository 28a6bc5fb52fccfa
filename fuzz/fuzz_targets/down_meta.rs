//! Any bytes as a `down_meta.bin`: never a panic; and of what is accepted every record can be read
//! or is refused by name, and the three ways to count them agree.
#![no_main]

use larql_fuzz::within;
use larql_vindex::labels::Labels;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(labels) = within(bytes.len(), 8, || Labels::from_bytes(bytes.to_vec())) else { return };
    let coverage = labels.coverage();
    let (mut found, mut broken) = (0, 0);
    for layer in &coverage.layers {
        // The last one does not exist.
        for feature in 0..=layer.of_features {
            match labels.get(layer.layer, feature) {
                Ok(None) => {}
                Ok(Some(record)) => {
                    found += 1;
                    assert!(record.promoted().count() <= labels.top_tokens());
                    assert!(record.suppressed().count() <= labels.top_tokens());
                }
                Err(_) => broken += 1,
            }
        }
    }
    assert_eq!(found + broken, coverage.features);
    assert_eq!(labels.check().is_err(), broken > 0);
    for layer in [labels.layers().start.wrapping_sub(1), labels.layers().end] {
        assert!(labels.get(layer, 0).expect("no such layer").is_none());
    }
});
