//! Any bytes as a vindex's manifest: never a panic; and what is accepted is written again and found
//! equal.
#![no_main]

use larql_fuzz::within;
use larql_vindex::Manifest;
use libfuzzer_sys::fuzz_target;

/// A layer costs two bytes of text (its window) and implies some thirty tensors, whose shapes are
/// listed once while it is checked.
const FACTOR: usize = 2048;

fuzz_target!(|bytes: &[u8]| {
    let Ok(manifest) = within(bytes.len(), FACTOR, || Manifest::from_slice(bytes)) else { return };
    // Overflow would panic here.
    let total: u64 = manifest.files.iter().map(|file| file.size).sum();
    assert!(manifest.weight_bytes() <= total);
    let again = manifest.to_vec().expect("its numbers were read from text, so they are finite");
    assert_eq!(Manifest::from_slice(&again).expect("our own text"), manifest);
});
