//! One test per lie that a GGUF file can tell, and the promise that no other one panics.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::PathBuf;

use larql_checkpoint::gguf::{Gguf, GgufFault as Fault, Value};
use larql_checkpoint::{CheckpointError, Map};
use proptest::prelude::*;

const SMALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/gguf/small.gguf");

/// A header written field by field, so that each can lie.
#[derive(Clone)]
struct Forge {
    magic: [u8; 4],
    version: u32,
    tensors: Vec<Vec<u8>>,
    entries: Vec<Vec<u8>>,
    n_tensors: Option<u64>,
    n_entries: Option<u64>,
    data: usize,
}

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

fn entry(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&string(key.as_bytes())[..], &kind.to_le_bytes(), value].concat()
}

fn tensor(name: &str, dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut out = string(name.as_bytes());
    out.extend((dims.len() as u32).to_le_bytes());
    dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
    out.extend(kind.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out
}

/// What stands before the elements of an array.
fn array(kind: u32, len: u64) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &len.to_le_bytes()].concat()
}

impl Forge {
    fn new() -> Self {
        let (tensors, entries) = (Vec::new(), Vec::new());
        let (n_tensors, n_entries) = (None, None);
        Self { magic: *b"GGUF", version: 3, tensors, entries, n_tensors, n_entries, data: 256 }
    }

    fn entry(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.entries.push(entry(key, kind, value));
        self
    }

    fn tensor(mut self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        self.tensors.push(tensor(name, dims, kind, offset));
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.n_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_entries.unwrap_or(self.entries.len() as u64).to_le_bytes());
        out.extend(self.entries.concat());
        out.extend(self.tensors.concat());
        out.resize(out.len().next_multiple_of(32) + self.data, 0);
        out
    }

    fn open(&self) -> Result<Gguf, CheckpointError> {
        open(self.bytes())
    }

    fn fault(&self) -> Fault {
        fault(self.open())
    }
}

fn open(bytes: Vec<u8>) -> Result<Gguf, CheckpointError> {
    Gguf::from_map(Map::from_bytes("forged.gguf", bytes))
}

fn fault<T>(result: Result<T, CheckpointError>) -> Fault {
    let error = result.err().expect("a fault");
    assert!(error.to_string().contains(".gguf, byte "), "{error}");
    assert!(error.help().is_some(), "{error}");
    match error {
        CheckpointError::Gguf { fault, .. } => *fault,
        other => panic!("{other}"),
    }
}

const F32: u32 = 0;

#[test]
fn an_honest_forgery_is_read() {
    let forge = Forge::new().tensor("a", &[4, 2], F32, 0).tensor("b", &[8], F32, 32);
    assert_eq!(forge.open().unwrap().tensors().len(), 2);
    let older = Forge { version: 2, ..forge };
    assert_eq!(older.open().unwrap().version(), 2);
    assert!(Forge::new().open().unwrap().tensors().is_empty());
}

#[test]
fn truncated_at_24_points_of_the_header() {
    let whole = fs::read(SMALL).unwrap();
    let header = Gguf::open(SMALL).unwrap().tensors()[0].offset() as usize;
    // Points spread over all of it, and the ends of the first fields.
    let points = (0..24).map(|i| i * (header - 1) / 23);
    for len in points.chain([3, 4, 7, 8, 15, 16, 23, 24, 31, 32]) {
        let fault = fault(open(whole[..len].to_vec()));
        assert!(
            matches!(
                fault,
                Fault::Truncated { .. }
                    | Fault::StringTooLong { .. }
                    | Fault::ArrayTooLong { .. }
                    | Fault::TooManyKeys { .. }
                    | Fault::TooManyTensors { .. }
                    | Fault::OutOfRange { .. }
            ),
            "cut to {len}: {fault}"
        );
    }
    for len in 0..header {
        open(whole[..len].to_vec()).expect_err("a header that is cut short");
    }
}

#[test]
fn truncated_data() {
    let whole = fs::read(SMALL).unwrap();
    let gguf = Gguf::open(SMALL).unwrap();
    for tensor in gguf.tensors() {
        // The last byte of this tensor is not there; all tensors before it are.
        let end = tensor.range().end;
        let found = fault(open(whole[..end - 1].to_vec()));
        let (name, file_len) = (tensor.name().to_owned(), end as u64 - 1);
        assert_eq!(found, Fault::OutOfRange { tensor: name, end: end as u128, file_len });
    }
    let end = gguf.tensors().last().unwrap().range().end;
    assert!(open(whole[..end].to_vec()).is_ok(), "the padding at the end carries nothing");
}

#[test]
fn magic_and_version() {
    let magic = |magic: &[u8; 4]| Forge { magic: *magic, ..Forge::new() }.fault();
    assert_eq!(magic(b"PK\x03\x04"), Fault::NotGguf { found: *b"PK\x03\x04" });
    assert_eq!(magic(b"vers"), Fault::NotGguf { found: *b"vers" });
    assert_eq!(magic(b"tjgg"), Fault::LegacyFormat { name: "GGJT" });
    assert_eq!(magic(b"lmgg"), Fault::LegacyFormat { name: "GGML" });
    assert_eq!(magic(b"FUGG"), Fault::BigEndian);
    let version = |version| Forge { version, ..Forge::new() }.fault();
    assert_eq!(version(1), Fault::VersionOne);
    assert_eq!(version(3u32.swap_bytes()), Fault::BigEndian);
    assert_eq!(version(4), Fault::UnknownVersion { found: 4 });
    assert_eq!(version(0), Fault::UnknownVersion { found: 0 });
    assert_eq!(
        fault(open(Vec::new())),
        Fault::Truncated { what: "the magic number", needed: 4, left: 0 }
    );
}

#[test]
fn counts_that_the_file_has_no_room_for() {
    for found in [20, 1 << 40, u64::MAX] {
        let keys = Forge { n_entries: Some(found), ..Forge::new() }.fault();
        assert!(matches!(keys, Fault::TooManyKeys { found: f, .. } if f == found));
        let tensors = Forge { n_tensors: Some(found), ..Forge::new() }.fault();
        assert!(matches!(tensors, Fault::TooManyTensors { found: f, .. } if f == found));
    }
}

#[test]
fn strings() {
    let huge = |len: u64| Forge::new().entry("k", 8, &len.to_le_bytes()).fault();
    for len in [1000, u64::MAX, u64::MAX - 7, 1 << 63] {
        assert!(matches!(huge(len), Fault::StringTooLong { found, .. } if found == len));
    }
    let invalid = Forge::new().entry("k", 8, &string(&[0xff, 0xfe])).fault();
    assert_eq!(invalid, Fault::NotUtf8 { what: "the value of metadata key k".into() });
}

#[test]
fn keys() {
    let empty = Forge::new().entry("", 0, &[1]).fault();
    assert!(matches!(empty, Fault::NameLength { found: 0, limit: 65_535, .. }));
    let long = Forge::new().entry(&"k".repeat(65_536), 0, &[1]).fault();
    assert!(matches!(long, Fault::NameLength { found: 65_536, .. }));
    let mut latin = Forge::new().entry("ab", 0, &[1]);
    latin.entries[0][9] = 0xff;
    assert_eq!(latin.fault(), Fault::NotUtf8 { what: "a metadata key".into() });
    let twice = Forge::new().entry("k", 0, &[1]).entry("j", 0, &[1]).entry("k", 0, &[2]);
    assert_eq!(twice.fault(), Fault::DuplicateKey { key: "k".into() });
}

#[test]
fn value_types() {
    for found in [13, 99, u32::MAX] {
        let fault = Forge::new().entry("k", found, &[0; 8]).fault();
        assert_eq!(fault, Fault::UnknownValueType { key: "k".into(), found });
        let fault = Forge::new().entry("k", 9, &array(found, 1)).fault();
        assert_eq!(fault, Fault::UnknownValueType { key: "k".into(), found });
    }
    let fault = Forge::new().entry("k", 7, &[2]).fault();
    assert_eq!(fault, Fault::BadBool { key: "k".into(), found: 2 });
    let bools = [&array(7, 3)[..], &[0, 1, 9]].concat();
    let fault = Forge::new().entry("k", 9, &bools).fault();
    assert_eq!(fault, Fault::BadBool { key: "k".into(), found: 9 });
}

#[test]
fn arrays_that_the_file_has_no_room_for() {
    for kind in 0..13 {
        for found in [1000, 1 << 61, 1 << 62, u64::MAX / 4 + 2, u64::MAX] {
            let fault = Forge::new().entry("k", 9, &array(kind, found)).fault();
            assert!(matches!(fault, Fault::ArrayTooLong { found: f, .. } if f == found), "{fault}");
        }
    }
    let lying = [array(8, 2), string(b"a"), u64::MAX.to_le_bytes().to_vec()].concat();
    let fault = Forge::new().entry("k", 9, &lying).fault();
    assert!(matches!(fault, Fault::StringTooLong { found: u64::MAX, .. }));
}

#[test]
fn nested_arrays() {
    let nest = |depth: usize| {
        let mut value = array(9, 1).repeat(depth - 1);
        value.extend([&array(0, 2)[..], &[5, 6]].concat());
        Forge::new().entry("k", 9, &value)
    };
    let gguf = nest(4).open().unwrap();
    let mut inner = gguf.metadata().get_array("k").unwrap().unwrap();
    for _ in 0..3 {
        inner = inner.arrays().unwrap()[0];
    }
    let values: Vec<_> = inner.scalars().unwrap().collect();
    assert_eq!(values, [Value::U8(5), Value::U8(6)]);
    for depth in [5, 1000, 100_000] {
        assert_eq!(nest(depth).fault(), Fault::ArrayTooDeep { key: "k".into(), limit: 4 });
    }
}

#[test]
fn text_of_arrays_is_checked_when_it_is_read() {
    let value = [array(8, 2), string(b"good"), string(&[0xff])].concat();
    let gguf = Forge::new().entry("k", 9, &value).open().unwrap();
    let array = gguf.metadata().get_string_array("k").unwrap().unwrap();
    let raw: Vec<&[u8]> = array.byte_strings().unwrap().collect();
    assert_eq!(raw, [&b"good"[..], &[0xff]]);
    let texts: Vec<_> = array.strings().unwrap().collect();
    assert_eq!(*texts[0].as_ref().unwrap(), "good");
    let error = texts[1].as_ref().unwrap_err().to_string();
    assert!(error.contains("string 1 of k is not valid UTF-8"), "{error}");
    // magic, version, two counts, key, type, array head, "good", and the length before 0xff
    let at = 4 + 4 + 16 + 9 + 4 + 12 + 12 + 8;
    assert!(error.contains(&format!("byte {at}:")), "{error}");
}

#[test]
fn alignment() {
    for found in [0u32, 1, 4, 12, 33, 1 << 21, 1 << 31] {
        let fault = Forge::new().entry("general.alignment", 4, &found.to_le_bytes()).fault();
        assert_eq!(fault, Fault::Alignment { found: found.to_string() });
    }
    let text = Forge::new().entry("general.alignment", 8, &string(b"32")).fault();
    assert!(matches!(text, Fault::Alignment { .. }));
    let negative = Forge::new().entry("general.alignment", 5, &(-32i32).to_le_bytes()).fault();
    assert!(matches!(negative, Fault::Alignment { .. }));
    // The largest one allowed puts the data far behind the end of this file.
    let far = Forge::new().entry("general.alignment", 4, &(1u32 << 20).to_le_bytes()).tensor(
        "a",
        &[1],
        F32,
        0,
    );
    assert!(matches!(far.fault(), Fault::OutOfRange { .. }));
}

#[test]
fn tensor_names() {
    let empty = Forge::new().tensor("", &[1], F32, 0).fault();
    assert!(matches!(empty, Fault::NameLength { found: 0, limit: 64, .. }));
    let long = Forge::new().tensor(&"n".repeat(65), &[1], F32, 0).fault();
    assert!(matches!(long, Fault::NameLength { found: 65, .. }));
    let mut latin = Forge::new().tensor("ab", &[1], F32, 0);
    latin.tensors[0][9] = 0xff;
    assert_eq!(latin.fault(), Fault::NotUtf8 { what: "a tensor name".into() });
    let twice = Forge::new().tensor("a", &[1], F32, 0).tensor("a", &[1], F32, 32).fault();
    assert!(matches!(twice, Fault::DuplicateTensor { tensor, .. } if tensor == "a"));
}

#[test]
fn dimensions() {
    let dims = |dims: &[u64]| Forge::new().tensor("a", dims, F32, 0).fault();
    assert!(matches!(dims(&[]), Fault::DimensionCount { found: 0, .. }));
    assert!(matches!(dims(&[1; 5]), Fault::DimensionCount { found: 5, .. }));
    assert!(matches!(dims(&[0]), Fault::ZeroDimension { .. }));
    assert!(matches!(dims(&[4, 0]), Fault::ZeroDimension { .. }));
    for huge in [
        &[u64::MAX][..],
        &[1 << 63],
        &[1 << 62, 4],          // wraps to zero
        &[1 << 32, 1 << 32],    // wraps to zero
        &[1 << 62],             // fits as elements, not as bytes
        &[(1 << 62) + 1, 4, 1], // wraps to four
        &[1 << 31, 1 << 31, 1 << 31, 1 << 31],
    ] {
        assert!(matches!(dims(huge), Fault::DimensionsOverflow { .. }), "{huge:?}");
    }
    assert!(matches!(dims(&[1 << 60]), Fault::OutOfRange { .. }));
    let mut count = Forge::new().tensor("a", &[1], F32, 0);
    count.tensors[0][9..13].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(count.fault(), Fault::DimensionCount { found: 0xffff_ffff, .. }));
}

#[test]
fn dtypes_are_refused_by_name_and_number() {
    let kind = |number| Forge::new().tensor("a", &[256], number, 0);
    let error = kind(23).open().unwrap_err().to_string();
    let supported = "it reads f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k";
    assert!(error.contains("ggml type 23 (iq4_xs), which larql does not read"), "{error}");
    assert!(error.contains(supported), "{error}");
    let removed = kind(4).fault();
    assert!(matches!(removed, Fault::UnknownDtype { number: 4, name: Some(_), .. }));
    let unknown = kind(u32::MAX).fault();
    assert!(matches!(unknown, Fault::UnknownDtype { number: u32::MAX, name: None, .. }));
}

#[test]
fn columns_that_are_not_whole_blocks() {
    // Q4_K (12) has blocks of 256, Q8_0 (8) of 32.
    let fault = Forge::new().tensor("a", &[640, 1], 12, 0).fault();
    assert!(matches!(fault, Fault::ColumnsNotBlocks { cols: 640, block: 256, .. }));
    let fault = Forge::new().tensor("a", &[31], 8, 0).fault();
    assert!(matches!(fault, Fault::ColumnsNotBlocks { cols: 31, block: 32, .. }));
}

#[test]
fn offsets() {
    let at = |offset| Forge::new().tensor("a", &[8], F32, offset).fault();
    assert!(matches!(at(16), Fault::Misaligned { found: 16, alignment: 32, .. }));
    for offset in [256, 1 << 40, 1 << 63, u64::MAX - 31] {
        assert!(matches!(at(offset), Fault::OutOfRange { .. }), "{offset}");
    }
    assert!(Forge::new().tensor("a", &[8], F32, 224).open().is_ok());
}

#[test]
fn overlaps() {
    let two = |first: u64, second: u64| {
        Forge::new().tensor("a", &[16], F32, first).tensor("b", &[8], F32, second).fault()
    };
    for (first, second) in [(0, 0), (0, 32), (32, 64)] {
        assert!(matches!(two(first, second), Fault::Overlap { .. }), "{first} {second}");
    }
    let reversed = two(64, 96);
    assert!(
        matches!(reversed, Fault::Overlap { tensor, other, .. } if tensor == "b" && other == "a")
    );
}

/// A model of three parts in a directory of its own, each changed by `change(number, forge)`.
fn parts(change: impl Fn(u16, &mut Forge)) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = |n: u16| dir.path().join(format!("m-{:05}-of-00003.gguf", n + 1));
    for n in 0..3u16 {
        let mut forge = Forge::new().tensor(&format!("t{n}"), &[8], F32, 0);
        forge.entries = vec![
            entry("split.no", 2, &n.to_le_bytes()),
            entry("split.count", 2, &3u16.to_le_bytes()),
            entry("split.tensors.count", 5, &3i32.to_le_bytes()),
        ];
        change(n, &mut forge);
        fs::write(path(n), forge.bytes()).unwrap();
    }
    let first = path(0);
    (dir, first)
}

#[test]
fn split_models() {
    let (_dir, first) = parts(|_, _| ());
    let gguf = Gguf::open(&first).unwrap();
    assert_eq!((gguf.files().len(), gguf.tensors().len()), (3, 3));
    assert!(gguf.tensor("t2").unwrap().file().ends_with("m-00003-of-00003.gguf"));

    let second = first.with_file_name("m-00002-of-00003.gguf");
    let refused = fault(Gguf::open(&second));
    assert_eq!(refused, Fault::NotFirstPart { number: 1, count: 3, first: Some(first.clone()) });

    let renamed = first.with_file_name("renamed.gguf");
    fs::copy(&first, &renamed).unwrap();
    assert!(matches!(fault(Gguf::open(&renamed)), Fault::PartName { count: 3, .. }));

    fs::remove_file(&second).unwrap();
    assert_eq!(fault(Gguf::open(&first)), Fault::MissingPart { number: 1, count: 3 });
}

#[test]
fn split_models_whose_parts_disagree() {
    let with = |part: u16, entry_at: usize, value: Vec<u8>| {
        let (_dir, first) = parts(|n, forge| {
            if n == part {
                forge.entries[entry_at].clone_from(&value);
            }
        });
        fault(Gguf::open(first))
    };
    let number = with(1, 0, entry("split.no", 2, &2u16.to_le_bytes()));
    assert!(matches!(number, Fault::PartMismatch { key: "split.no", expected: 1, .. }));
    let count = with(2, 1, entry("split.count", 2, &4u16.to_le_bytes()));
    assert!(matches!(count, Fault::PartMismatch { key: "split.count", expected: 3, .. }));
    let missing = with(1, 0, entry("something", 2, &2u16.to_le_bytes()));
    assert!(matches!(missing, Fault::PartMismatch { found, .. } if found == "missing"));
    let total = with(0, 2, entry("split.tensors.count", 5, &4i32.to_le_bytes()));
    assert_eq!(total, Fault::PartTensors { parts: 3, found: 3, expected: 4 });
    let huge = with(0, 1, entry("split.count", 10, &u64::MAX.to_le_bytes()));
    assert!(matches!(huge, Fault::PartCount { found: u64::MAX, .. }));
    let (_dir, first) = parts(|n, forge| {
        if n == 2 {
            forge.tensors = vec![tensor("t0", &[8], F32, 0)];
        }
    });
    assert!(
        matches!(fault(Gguf::open(first)), Fault::DuplicateTensor { tensor, .. } if tensor == "t0")
    );
}

/// Reads everything that an accepted file offers.
fn read_all(gguf: &Gguf) {
    for (key, value) in gguf.metadata().iter() {
        assert!(gguf.metadata().contains(key));
        let Some(array) = value.as_array() else { continue };
        if let Some(scalars) = array.scalars() {
            assert_eq!(scalars.count(), array.len());
        } else if let Some(strings) = array.byte_strings() {
            assert_eq!(strings.count(), array.len());
            array.strings().unwrap().for_each(drop);
        } else {
            assert_eq!(array.arrays().unwrap().len(), array.len());
        }
    }
    for tensor in gguf.tensors() {
        assert_eq!(tensor.matrix().rows(), tensor.rows());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Mutated at random: bytes replaced, and u64 fields by the values that break arithmetic.
    #[test]
    fn a_mutated_real_header_never_panics(
        bytes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        words in prop::collection::vec(
            (any::<prop::sample::Index>(), prop::sample::select(vec![
                0, 1, 8, 255, 1 << 31, 1 << 32, 1 << 61, 1 << 62, 1 << 63, u64::MAX - 7, u64::MAX,
            ])), 0..3),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut file = fs::read(SMALL).unwrap();
        let header = Gguf::open(SMALL).unwrap().tensors()[0].offset() as usize;
        for (place, byte) in bytes {
            file[place.index(header)] = byte;
        }
        for (place, word) in words {
            let at = place.index(header - 8);
            file[at..at + 8].copy_from_slice(&u64::to_le_bytes(word));
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        if let Ok(gguf) = open(file) {
            read_all(&gguf);
        }
    }
}
