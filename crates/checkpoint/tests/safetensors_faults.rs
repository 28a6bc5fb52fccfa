//! One test per lie that a safetensors file, or the index of a sharded model, can tell.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;

use larql_checkpoint::safetensors::{Safetensors, SafetensorsFault as Fault, SafetensorsTensor};
use larql_checkpoint::{CheckpointError, Map};
use larql_compute::Dtype;
use proptest::prelude::*;

/// A file of that header and `data` bytes of data.
fn file(json: &str, data: usize) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.as_bytes());
    bytes.extend(std::iter::repeat_n(7, data));
    bytes
}

fn open(bytes: Vec<u8>) -> Result<Safetensors, CheckpointError> {
    Safetensors::from_map(Map::from_bytes("test.safetensors", bytes))
}

fn fault(result: Result<Safetensors, CheckpointError>) -> Fault {
    let error = result.expect_err("a fault");
    assert!(error.help().is_some() && error.path().is_some());
    match error {
        CheckpointError::Safetensors { fault, .. } => *fault,
        other => panic!("{other}"),
    }
}

fn refused(json: &str, data: usize) -> Fault {
    fault(open(file(json, data)))
}

const TWO: &str = r#"{"__metadata__":{"format":"pt"},
    "b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},
    "a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;

#[test]
fn a_valid_file_is_read() {
    let model = open(file(TWO, 20)).unwrap();
    let names: Vec<&str> = model.tensors().iter().map(SafetensorsTensor::name).collect();
    assert_eq!(names, ["a", "b"]);
    let b = model.tensor("b").unwrap();
    assert_eq!((b.dtype(), b.shape(), b.rows(), b.cols()), (Dtype::BF16, &[2, 3][..], 2, 3));
    assert_eq!(b.matrix().bytes(), &[7; 12]);
    let scalar = r#"{"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#;
    let model = open(file(scalar, 4)).unwrap();
    assert_eq!((model.tensors()[0].rows(), model.tensors()[0].cols()), (1, 1));
    assert!(open(file("{}", 0)).unwrap().tensors().is_empty());
}

/// Whatever we accept, the safetensors crate accepts and cuts in the same way.
#[test]
fn the_crate_agrees() {
    let bytes = file(TWO, 20);
    let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let ours = open(bytes.clone()).unwrap();
    for tensor in ours.tensors() {
        let view = theirs.tensor(tensor.name()).unwrap();
        assert_eq!((view.data(), view.shape()), (tensor.bytes(), tensor.shape()));
    }
}

#[test]
fn truncated_anywhere_is_refused() {
    let whole = file(TWO, 20);
    for len in 0..whole.len() {
        fault(open(whole[..len].to_vec()));
    }
    assert_eq!(fault(open(vec![0; 7])), Fault::TooSmall { len: 7 });
    assert_eq!(refused(TWO, 19), Fault::DataLength { expected: 20, found: 19 });
    assert_eq!(refused(TWO, 21), Fault::DataLength { expected: 20, found: 21 });
}

#[test]
fn header_length() {
    let mut long = file("{}", 0);
    long[0] = 3;
    assert_eq!(fault(open(long)), Fault::HeaderTruncated { found: 3, left: 2 });
    let mut huge = file("{}", 0);
    huge[..8].fill(0xff);
    assert!(matches!(fault(open(huge)), Fault::HeaderTooLarge { found: u64::MAX, .. }));
}

#[test]
fn json() {
    assert_eq!(refused(" {}", 0), Fault::NotAnObject);
    assert_eq!(refused("", 0), Fault::NotAnObject);
    for bad in [
        "{",
        "{} x",
        r#"{"a":1}"#,
        r#"{"a":{"dtype":"F32","shape":[1]}}"#,
        r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"extra":1}}"#,
        r#"{"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]}}"#,
    ] {
        assert!(matches!(refused(bad, 4), Fault::Json { .. }), "{bad}");
    }
    let deep = format!("{{\"a\":{}", "[".repeat(100_000));
    assert!(matches!(refused(&deep, 0), Fault::Json { .. }));
    let deep = format!("{{\"__metadata__\":{}", "[".repeat(100_000));
    assert!(matches!(refused(&deep, 0), Fault::Json { .. }));
    let mut latin = file(r#"{"a":"X"}"#, 0);
    latin[14] = 0xff;
    assert_eq!(fault(open(latin)), Fault::NotUtf8 { valid: 6 });
}

#[test]
fn duplicate_names() {
    let json = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                   "a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    assert_eq!(refused(json, 4), Fault::DuplicateTensor { tensor: "a".into() });
}

#[test]
fn dtypes_are_refused_by_name() {
    for name in ["I64", "F8_E4M3", "BOOL", "Q9"] {
        let json = format!(r#"{{"a":{{"dtype":"{name}","shape":[1],"data_offsets":[0,8]}}}}"#);
        let expected = Fault::UnknownDtype { tensor: "a".into(), found: name.into() };
        assert_eq!(refused(&json, 8), expected);
    }
}

#[test]
fn shapes_and_offsets() {
    let one = |shape: &str, offsets: &str| {
        let json = format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#);
        refused(&json, 8)
    };
    assert!(matches!(one("[0]", "[0,0]"), Fault::ZeroDimension { .. }));
    assert!(matches!(one("[4611686018427387904,2]", "[0,8]"), Fault::ShapeOverflow { .. }));
    assert!(matches!(one("[4611686018427387904]", "[0,8]"), Fault::ShapeOverflow { .. }));
    assert!(matches!(one("[3]", "[0,8]"), Fault::Length { expected: 12, .. }));
    assert!(matches!(one("[2]", "[0,18446744073709551615]"), Fault::Length { .. }));
    assert!(matches!(one("[2]", "[4,12]"), Fault::NotContiguous { expected: 0, .. }));
    assert!(matches!(one("[2]", "[8,0]"), Fault::NotContiguous { .. }));
    assert!(matches!(one("[3]", "[0,12]"), Fault::DataLength { expected: 12, found: 8 }));
    // Eight tensors whose ends add up to just below 2^64: the crate's own check of the file
    // length wraps on these.
    let eighth = 1u64 << 61;
    let tensors: Vec<String> = (0..8)
        .map(|i: u64| {
            let (begin, end) = (i * (eighth - 4), (i + 1) * (eighth - 4));
            let n = (eighth - 4) / 4;
            format!(r#""t{i}":{{"dtype":"F32","shape":[{n}],"data_offsets":[{begin},{end}]}}"#)
        })
        .collect();
    let json = format!("{{{}}}", tensors.join(","));
    assert!(matches!(refused(&json, 8), Fault::DataLength { .. }));
}

#[test]
fn overlaps_and_holes() {
    let two = |second: &str| {
        let json = format!(
            r#"{{"a":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}},
                 "b":{{"dtype":"F32","shape":[1],"data_offsets":{second}}}}}"#
        );
        refused(&json, 12)
    };
    for second in ["[0,4]", "[2,6]", "[8,12]"] {
        assert!(matches!(two(second), Fault::NotContiguous { .. }), "{second}");
    }
}

/// A model of two shards: `a` in the first, `b` in the second.
fn shards() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, tensor) in [("one.safetensors", "a"), ("two.safetensors", "b")] {
        let json = format!(r#"{{"{tensor}":{{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}}}"#);
        fs::write(dir.path().join(name), file(&json, 4)).unwrap();
    }
    index(&dir, r#"{"a":"one.safetensors","b":"two.safetensors"}"#);
    dir
}

fn index(dir: &tempfile::TempDir, weight_map: &str) {
    let json = format!(r#"{{"metadata":{{"total_size":8}},"weight_map":{weight_map}}}"#);
    fs::write(dir.path().join("model.safetensors.index.json"), json).unwrap();
}

#[test]
fn a_sharded_model_is_read() {
    let dir = shards();
    let model = Safetensors::open(dir.path()).unwrap();
    assert_eq!((model.files().len(), model.tensors().len()), (2, 2));
    assert!(model.tensor("b").unwrap().file().ends_with("two.safetensors"));
    let path = dir.path().join("model.safetensors.index.json");
    assert_eq!(Safetensors::open(path).unwrap().tensors().len(), 2);
    // A tensor that the index forgot is there all the same, where its shard is opened.
    fs::write(dir.path().join("two.safetensors"), file(TWO, 20)).unwrap();
    index(&dir, r#"{"b":"two.safetensors"}"#);
    assert!(Safetensors::open(dir.path()).unwrap().tensor("a").is_some());
}

#[test]
fn index_faults() {
    let dir = shards();
    let refused = |weight_map: &str| {
        index(&dir, weight_map);
        fault(Safetensors::open(dir.path()))
    };
    let missing = refused(r#"{"a":"three.safetensors"}"#);
    assert_eq!(missing, Fault::MissingShard { shard: "three.safetensors".into() });
    let absent = refused(r#"{"a":"two.safetensors"}"#);
    assert!(matches!(absent, Fault::NotInShard { tensor, .. } if tensor == "a"));
    let swapped = refused(r#"{"a":"two.safetensors","b":"one.safetensors"}"#);
    assert!(matches!(swapped, Fault::NotInShard { .. }));
    let twice = refused(r#"{"a":"one.safetensors","a":"two.safetensors"}"#);
    assert_eq!(twice, Fault::DuplicateInIndex { tensor: "a".into() });
    for outside in ["../one.safetensors", "/etc/passwd", "x/../../y", ".", ""] {
        let fault = refused(&format!(r#"{{"a":"{outside}"}}"#));
        assert_eq!(fault, Fault::ShardOutside { shard: outside.into() });
    }
    assert!(matches!(refused(r#"["a"]"#), Fault::Json { .. }));
    fs::copy(dir.path().join("one.safetensors"), dir.path().join("copy.safetensors")).unwrap();
    let both = refused(r#"{"a":"one.safetensors","b":"copy.safetensors"}"#);
    assert!(matches!(both, Fault::InTwoShards { tensor, .. } if tensor == "a"));
}

#[test]
fn a_directory_without_a_model_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(fault(Safetensors::open(dir.path())), Fault::NoModel);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_mutated_file_never_panics(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = file(TWO, 20);
        for (place, byte) in changes {
            let at = place.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(model) = open(bytes) {
            for tensor in model.tensors() {
                prop_assert_eq!(tensor.matrix().bytes().len(), tensor.range().len());
            }
        }
    }
}
