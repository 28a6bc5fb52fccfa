//! Any bytes as a `down_meta.bin`: never a panic, and every record of what is accepted can be read.
#![no_main]

use larql_vindex::labels::Labels;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(labels) = Labels::from_bytes(bytes.to_vec()) else { return };
    let coverage = labels.coverage();
    assert!(coverage.features <= coverage.of_features);
    for layer in &coverage.layers {
        for feature in 0..=layer.of_features {
            let Ok(Some(found)) = labels.get(layer.layer, feature) else { continue };
            assert!(feature < layer.of_features);
            assert!(found.promoted().count() <= labels.top_tokens());
            assert!(found.suppressed().count() <= labels.top_tokens());
        }
    }
});
