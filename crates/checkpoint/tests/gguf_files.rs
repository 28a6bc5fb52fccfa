//! The GGUF reader and writer against files of the Python `gguf` package and the demo model.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use larql_checkpoint::CheckpointError;
use larql_checkpoint::gguf::{Gguf, GgufFault, GgufWriter, Metadata, Value};
use larql_compute::Dtype;

const SMALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/gguf/small.gguf");

/// The metadata that scripts/fixtures/gguf_small.py writes.
fn small_metadata() -> Metadata {
    let mut meta = Metadata::new();
    meta.set("general.architecture", "llama");
    meta.set("t.u8", 200u8);
    meta.set("t.i8", -100i8);
    meta.set("t.u16", 60_000u16);
    meta.set("t.i16", -30_000i16);
    meta.set("t.u32", 4_000_000_000u32);
    meta.set("t.i32", -2_000_000_000i32);
    meta.set("t.f32", 1.5f32);
    meta.set("t.bool", true);
    meta.set("t.str", "naïve 漢字 🦀");
    meta.set("t.u64", (1u64 << 63) + 7);
    meta.set("t.i64", -(1i64 << 62));
    meta.set("t.f64", 0.1f64);
    meta.set_strings("t.strings", ["a", "", "▁the", "<0xE2>"].into_iter());
    meta.set_array("t.ints", &[1i32, -2, 3]);
    meta.set_array("t.floats", &[0.5f32, -1.0]);
    meta.set_array("t.bools", &[true, false, true]);
    meta
}

/// The bytes of its quantised tensors: a linear congruential generator.
fn small_tensors() -> Vec<(String, Dtype, Vec<usize>, Vec<u8>)> {
    let mut state = 1u32;
    let mut tensors = Vec::new();
    for dtype in Dtype::ALL {
        let mut bytes = vec![0; 3 * dtype.row_bytes(256).unwrap()];
        for byte in &mut bytes {
            state = state.wrapping_mul(1_103_515_245).wrapping_add(12345) % (1 << 31);
            *byte = (state >> 16) as u8;
        }
        tensors.push((format!("blk.0.{dtype}.weight"), dtype, vec![256, 3], bytes));
    }
    let count = |n: usize| (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect::<Vec<u8>>();
    tensors.push(("stack".into(), Dtype::F32, vec![4, 3, 2], count(24)));
    tensors.push(("vector".into(), Dtype::F32, vec![5], count(5)));
    tensors
}

#[test]
fn a_file_of_the_gguf_package_is_read() {
    let gguf = Gguf::open(SMALL).unwrap();
    assert_eq!(*gguf.metadata(), small_metadata());
    let expected = small_tensors();
    assert_eq!(gguf.tensors().len(), expected.len());
    for (name, dtype, shape, bytes) in expected {
        let tensor = gguf.tensor(&name).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (dtype, &shape[..]), "{name}");
        assert_eq!(tensor.matrix().bytes(), &bytes[..], "{name}");
        assert_eq!(tensor.offset() % 32, 0);
    }
    let stack = gguf.tensor("stack").unwrap();
    assert_eq!((stack.rows(), stack.cols()), (6, 4));
}

#[test]
fn the_writer_makes_the_same_bytes_as_the_gguf_package() {
    let mut writer = GgufWriter::new(small_metadata());
    for (name, dtype, shape, _) in small_tensors() {
        writer.declare(&name, dtype, &shape).unwrap();
    }
    let mut data = writer.begin(Vec::new(), "small.gguf").unwrap();
    for (name, _, _, bytes) in small_tensors() {
        data.tensor(&name).unwrap();
        for piece in bytes.chunks(100) {
            data.write(piece).unwrap();
        }
    }
    let ours = data.finish().unwrap();
    assert!(ours == std::fs::read(SMALL).unwrap(), "the bytes differ");
}

#[test]
fn typed_look_ups_take_any_width_and_name_what_does_not_fit() {
    let meta = small_metadata();
    assert_eq!(meta.get_u32("t.u8").unwrap(), Some(200));
    assert_eq!(meta.get_i64("t.i8").unwrap(), Some(-100));
    assert_eq!(meta.get_u64("t.u64").unwrap(), Some((1 << 63) + 7));
    assert_eq!(meta.get_f32("t.f64").unwrap(), Some(0.1));
    assert_eq!(meta.get_f32("t.u16").unwrap(), Some(60_000.0));
    assert_eq!(meta.get_i32_array("t.ints").unwrap(), Some(vec![1, -2, 3]));
    assert_eq!(meta.get_bool_array("t.bools").unwrap(), Some(vec![true, false, true]));
    assert_eq!(meta.get_f32_array("t.floats").unwrap(), Some(vec![0.5, -1.0]));
    for (wrong, expected) in [
        (meta.get_u32("t.i8").map(drop), "t.i8 holds -100 (i8), but an integer from 0"),
        (meta.get_u32("t.u64").map(drop), "t.u64 holds 9223372036854775815 (u64)"),
        (meta.get_u32("t.str").map(drop), "t.str holds naïve 漢字 🦀 (str)"),
        (meta.get_str("t.u8").map(drop), "but a string is needed"),
        (meta.get_u32_array("t.ints").map(drop), "holds -2 (i32) at position 1"),
        (meta.get_u32_array("t.strings").map(drop), "holds 4 x str (array)"),
        (meta.get_string_array("t.ints").map(drop), "an array of strings is needed"),
        (meta.require("t.none", Metadata::get_u32).map(drop), "key t.none is missing"),
    ] {
        let error = wrong.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.help().is_some());
    }
}

#[test]
fn non_finite_numbers_pass_only_where_they_are_harmless() {
    let mut meta = Metadata::new();
    meta.set("eps", f32::NAN);
    meta.set("big", 1e300f64);
    meta.set_array("scores", &[0.0, f32::NEG_INFINITY]);
    meta.set_array("nan", &[0.0, f32::NAN]);
    let refused = |r: Result<(), CheckpointError>| {
        assert!(matches!(r, Err(CheckpointError::Gguf { fault, .. })
            if matches!(*fault, GgufFault::NotFinite { .. })));
    };
    refused(meta.get_f32("eps").map(drop));
    refused(meta.get_f32("big").map(drop));
    refused(meta.get_f32_array("nan").map(drop));
    assert_eq!(meta.get_f32_array("scores").unwrap(), Some(vec![0.0, f32::NEG_INFINITY]));
}

#[test]
fn keys_are_replaced_in_place_and_removed() {
    let mut meta = Gguf::open(SMALL).unwrap().metadata().clone();
    meta.set("t.u8", "now text");
    assert!(meta.remove("general.architecture") && !meta.remove("general.architecture"));
    meta.set("new", 1u32);
    let keys: Vec<&str> = meta.iter().map(|(key, _)| key).collect();
    assert_eq!((keys[0], keys[1], keys[16]), ("t.u8", "t.i8", "new"));
    assert_eq!(meta.get("t.u8"), Some(Value::Str("now text")));
    assert_eq!(meta.get("t.i16"), Some(Value::I16(-30_000)));
    assert!(!meta.contains("general.architecture") && meta.contains("new"));
    // An array goes from one file's metadata into another's as it is.
    let mut other = Metadata::new();
    other.set("copy", meta.get("t.strings").unwrap());
    assert_eq!(other.get("copy"), meta.get("t.strings"));
}

#[test]
fn the_writer_refuses_what_was_not_declared() {
    let fault = |error: CheckpointError| match error {
        CheckpointError::Gguf { fault, .. } => *fault,
        other => panic!("{other}"),
    };
    let mut writer = GgufWriter::new(Metadata::new());
    writer.declare("a", Dtype::F32, &[2]).unwrap();
    writer.declare("b", Dtype::F32, &[2]).unwrap();
    for (name, dtype, shape, expected) in [
        ("a", Dtype::F32, &[2][..], "defined twice"),
        ("", Dtype::F32, &[2], "a tensor name of 0 bytes"),
        ("c", Dtype::Q4K, &[640, 2], "not a whole number of q4_k blocks"),
        ("c", Dtype::F32, &[2, 0], "one of which is zero"),
        ("c", Dtype::F32, &[], "0 dimensions"),
        ("c", Dtype::F32, &[usize::MAX, 2], "larger than the address space"),
    ] {
        let error = writer.declare(name, dtype, shape).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let mut data = writer.begin(Vec::new(), "out.gguf").unwrap();
    assert!(matches!(fault(data.write(&[0]).unwrap_err()), GgufFault::TensorBytes { .. }));
    assert!(matches!(fault(data.tensor("b").unwrap_err()), GgufFault::TensorOrder { .. }));
    data.tensor("a").unwrap();
    data.write(&[0; 5]).unwrap();
    let short = fault(data.tensor("b").unwrap_err());
    assert_eq!(short, GgufFault::TensorBytes { tensor: "a".into(), expected: 8, found: 5 });
    let long = fault(data.write(&[0; 4]).unwrap_err());
    assert_eq!(long, GgufFault::TensorBytes { tensor: "a".into(), expected: 8, found: 9 });
    data.write(&[0; 3]).unwrap();
    let missing = fault(data.finish().unwrap_err());
    assert!(matches!(missing, GgufFault::TensorOrder { expected, .. } if expected == "b"));
}

#[test]
fn the_writer_honours_the_alignment_and_refuses_a_bad_one() {
    let mut meta = Metadata::new();
    meta.set("general.alignment", 64u32);
    let mut writer = GgufWriter::new(meta.clone());
    writer.declare("a", Dtype::F32, &[1]).unwrap();
    writer.declare("b", Dtype::F32, &[1]).unwrap();
    let mut data = writer.begin(Vec::new(), "out.gguf").unwrap();
    for name in ["a", "b"] {
        data.tensor(name).unwrap();
        data.write(&1f32.to_le_bytes()).unwrap();
    }
    let map = larql_checkpoint::Map::from_bytes("out.gguf", data.finish().unwrap());
    let gguf = Gguf::from_map(map).unwrap();
    assert!(gguf.tensors().iter().all(|t| t.offset() % 64 == 0));
    meta.set("general.alignment", 48u32);
    assert!(GgufWriter::new(meta).begin(Vec::new(), "out.gguf").is_err());
}

/// llama.cpp wrote the demo model; copied by us tensor by tensor, it is the same file.
#[test]
fn model_copied_is_the_same_file() {
    let Some(path) = support::demo_model() else { return };
    let gguf = Gguf::open(&path).unwrap();
    let mut writer = GgufWriter::new(gguf.metadata().clone());
    for tensor in gguf.tensors() {
        writer.declare(tensor.name(), tensor.dtype(), tensor.shape()).unwrap();
    }
    let original = gguf.files()[0].bytes();
    let mut data = writer.begin(Compare { expected: original, at: 0 }, "copy.gguf").unwrap();
    for tensor in gguf.tensors() {
        data.tensor(tensor.name()).unwrap();
        data.write(tensor.bytes()).unwrap();
    }
    assert_eq!(data.finish().unwrap().at, original.len());
}

/// An output that only compares.
struct Compare<'a> {
    expected: &'a [u8],
    at: usize,
}

impl std::io::Write for Compare<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        assert!(self.expected[self.at..].starts_with(bytes), "differs from byte {} on", self.at);
        self.at += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
