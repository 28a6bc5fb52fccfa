//! Any bytes as a safetensors file: never a panic; and what is accepted, the safetensors crate
//! accepts too and cuts in the same way.
#![no_main]

use larql_checkpoint::Map;
use larql_checkpoint::safetensors::Safetensors;
use larql_fuzz::within;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let read = || Safetensors::from_map(Map::from_bytes("fuzz", bytes.to_vec()));
    let Ok(ours) = within(bytes.len(), 64, read) else { return };
    let tensors = ours.tensors();
    tensors.iter().for_each(|t| assert_eq!(t.matrix().bytes().len(), t.range().len()));
    // The crate reads `__metadata__`, which we pass over, and may refuse it.
    let Ok(theirs) = safetensors::SafeTensors::deserialize(bytes) else { return };
    assert_eq!(theirs.len(), tensors.len());
    for tensor in tensors {
        let view = theirs.tensor(tensor.name()).expect("the same names");
        assert_eq!((view.data(), view.shape()), (tensor.bytes(), tensor.shape()));
    }
});
