//! Any bytes as a GGUF file: never a panic; and what is accepted is read whole, written again and
//! found equal.
#![no_main]

use larql_checkpoint::Map;
use larql_checkpoint::gguf::{Array, Gguf, GgufWriter};
use larql_fuzz::within;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // The name fits no part of a split model, so no other file is ever looked for.
    let read = || Gguf::from_map(Map::from_bytes("fuzz", bytes.to_vec()));
    let Ok(gguf) = within(bytes.len(), 64, read) else { return };
    for (_, value) in gguf.metadata().iter() {
        if let Some(array) = value.as_array() {
            read_all(&array);
        }
    }
    // A file may say that its tensors lie a megabyte apart: too slow to write here.
    if gguf.alignment() > 4096 {
        return;
    }
    let mut writer = GgufWriter::new(gguf.metadata().clone());
    for tensor in gguf.tensors() {
        assert_eq!(tensor.matrix().bytes().len(), tensor.range().len());
        writer.declare(tensor.name(), tensor.dtype(), tensor.shape()).expect("was read");
    }
    let mut data = writer.begin(Vec::new(), "fuzz").expect("was read");
    for tensor in gguf.tensors() {
        data.tensor(tensor.name()).expect("declared in this order");
        data.write(tensor.bytes()).expect("the bytes of this tensor");
    }
    let copy = Map::from_bytes("copy", data.finish().expect("all tensors are written"));
    let copy = Gguf::from_map(copy).expect("our own file");
    assert!(copy.metadata() == gguf.metadata());
    for (a, b) in gguf.tensors().iter().zip(copy.tensors()) {
        assert_eq!((a.name(), a.dtype(), a.shape()), (b.name(), b.dtype(), b.shape()));
        assert_eq!(a.bytes(), b.bytes());
    }
});

/// Reads every element of an array.
fn read_all(array: &Array<'_>) {
    if let Some(scalars) = array.scalars() {
        assert_eq!(scalars.count(), array.len());
    } else if let (Some(raw), Some(texts)) = (array.byte_strings(), array.strings()) {
        assert_eq!(raw.count(), array.len());
        texts.for_each(|text| drop(text));
    } else {
        let inner = array.arrays().expect("neither numbers nor strings");
        assert_eq!(inner.len(), array.len());
        inner.iter().for_each(read_all);
    }
}
