//! The header of one GGUF file: parsed front to back, nothing believed before it is checked.
//!
//! Layout (little-endian): magic "GGUF", u32 version, u64 number of tensors, u64 number of
//! metadata entries; the entries (string key, u32 type, value); the tensors (string name, u32
//! number of dimensions, u64 each, u32 ggml type, u64 offset into the data); padding to the
//! alignment; the data.

use std::path::Path;

use larql_compute::Dtype;

use super::cursor::Cursor;
use super::fault::{GgufFault, ggml_type_name};
use super::metadata::{Entry, Metadata};
use super::tensor::GgufTensor;
use super::value::Kind;
use crate::{CheckpointError, Map};

/// GGUF's specification allows keys of 2^16 - 1 bytes.
pub(super) const MAX_KEY: u64 = 65_535;
/// And tensor names of 64 bytes.
pub(super) const MAX_TENSOR_NAME: u64 = 64;
/// ggml's `GGML_MAX_DIMS`.
pub(super) const MAX_DIMS: u32 = 4;
/// Arrays of arrays occur in no model; the parser recurses, so the depth needs an end.
const MAX_ARRAY_DEPTH: u32 = 4;
/// A key of one byte, its length, a type and a value of one byte.
const MIN_ENTRY: u64 = 8 + 1 + 4 + 1;
/// A name of one byte, its length, a number of dimensions, one of them, a type and an offset.
const MIN_TENSOR: u64 = 8 + 1 + 4 + 8 + 4 + 8;
/// Where no `general.alignment` is given.
pub(super) const DEFAULT_ALIGNMENT: u64 = 32;

/// One parsed file.
pub(super) struct Header {
    pub(super) map: Map,
    pub(super) version: u32,
    pub(super) alignment: u64,
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<GgufTensor>,
}

/// A tensor entry before the start of the data is known.
struct RawTensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    len: u64,
    /// Offset into the data, and where in the header it stands.
    offset: u64,
    stands_at: usize,
}

/// Parses and validates the header of `map`.
pub(super) fn parse(map: &Map) -> Result<Header, CheckpointError> {
    let mut cursor = Cursor::new(map.path(), map.bytes());
    let version = version(&mut cursor)?;

    let at = cursor.at();
    let n_tensors = cursor.u64("the number of tensors")?;
    let n_entries = cursor.u64("the number of metadata entries")?;
    let limit = cursor.left() / MIN_ENTRY;
    if n_entries > limit {
        let fault = GgufFault::TooManyKeys { found: n_entries, limit };
        return Err(cursor.fault_at(at + 8, fault));
    }
    let limit = cursor.left() / MIN_TENSOR;
    if n_tensors > limit {
        return Err(cursor.fault_at(at, GgufFault::TooManyTensors { found: n_tensors, limit }));
    }

    // Both vectors grow as entries are really read: the counts reserve nothing.
    let mut entries = Vec::new();
    for _ in 0..n_entries {
        entries.push(entry(&mut cursor)?);
    }
    let metadata = Metadata::from_entries(map.clone(), entries)?;
    let alignment = alignment(&metadata)?;

    let mut raw = Vec::new();
    for _ in 0..n_tensors {
        raw.push(raw_tensor(&mut cursor)?);
    }
    let header_end = cursor.at() as u64;
    let tensors = place(map, raw, header_end.next_multiple_of(alignment), alignment)?;
    Ok(Header { map: map.clone(), version, alignment, metadata, tensors })
}

/// Magic and version, with a name for everything that is nearly a GGUF.
fn version(cursor: &mut Cursor<'_>) -> Result<u32, CheckpointError> {
    let magic = cursor.magic()?;
    // ggml's older magics were written as little-endian integers, hence the reversed letters.
    let fault = match &magic {
        b"GGUF" => None,
        b"FUGG" => Some(GgufFault::BigEndian),
        b"lmgg" => Some(GgufFault::LegacyFormat { name: "GGML" }),
        b"fmgg" => Some(GgufFault::LegacyFormat { name: "GGMF" }),
        b"tjgg" => Some(GgufFault::LegacyFormat { name: "GGJT" }),
        b"algg" => Some(GgufFault::LegacyFormat { name: "GGLA" }),
        _ => Some(GgufFault::NotGguf { found: magic }),
    };
    if let Some(fault) = fault {
        return Err(cursor.fault_at(0, fault));
    }
    match cursor.u32("the version")? {
        version @ (2 | 3) => Ok(version),
        1 => Err(cursor.fault_at(4, GgufFault::VersionOne)),
        // A small number read with the bytes reversed.
        found if found != 0 && found & 0xffff == 0 => Err(cursor.fault_at(4, GgufFault::BigEndian)),
        found => Err(cursor.fault_at(4, GgufFault::UnknownVersion { found })),
    }
}

/// One metadata entry: validated, its value left where it is.
fn entry(cursor: &mut Cursor<'_>) -> Result<Entry, CheckpointError> {
    let key = cursor.name("a metadata key", MAX_KEY)?.to_owned();
    let kind = kind(cursor, &key)?;
    let start = cursor.at();
    match kind {
        Kind::Str => {
            let text = cursor.string("a metadata string")?;
            if std::str::from_utf8(text).is_err() {
                let what = format!("the value of metadata key {key}");
                return Err(cursor.fault_at(start + 8, GgufFault::NotUtf8 { what }));
            }
        }
        Kind::Array => skip_array(cursor, &key, 1)?,
        scalar => skip_scalars(cursor, &key, scalar, 1)?,
    }
    Ok(Entry { key, kind, in_file: true, range: start..cursor.at() })
}

/// A type number.
fn kind(cursor: &mut Cursor<'_>, key: &str) -> Result<Kind, CheckpointError> {
    let at = cursor.at();
    let found = cursor.u32("the type of a metadata value")?;
    Kind::from_number(found).ok_or_else(|| {
        cursor.fault_at(at, GgufFault::UnknownValueType { key: key.to_owned(), found })
    })
}

/// Steps over an array (element type, count, elements), checking its structure.
fn skip_array(cursor: &mut Cursor<'_>, key: &str, depth: u32) -> Result<(), CheckpointError> {
    let start = cursor.at();
    if depth > MAX_ARRAY_DEPTH {
        let fault = GgufFault::ArrayTooDeep { key: key.to_owned(), limit: MAX_ARRAY_DEPTH };
        return Err(cursor.fault_at(start, fault));
    }
    let kind = kind(cursor, key)?;
    let found = cursor.u64("the length of a metadata array")?;
    let left = cursor.left();
    let limit = left / kind.min_size();
    if found > limit {
        let fault = GgufFault::ArrayTooLong { key: key.to_owned(), found, limit, left };
        return Err(cursor.fault_at(start + 4, fault));
    }
    match kind {
        // Their text is checked when it is read: there may be a vocabulary of it.
        Kind::Str => cursor.skip_strings(found),
        Kind::Array => (0..found).try_for_each(|_| skip_array(cursor, key, depth + 1)),
        scalar => skip_scalars(cursor, key, scalar, found),
    }
}

/// Steps over `count` values of fixed size, which the caller has found to fit where `count` is
/// more than one. Booleans are the only ones that can be wrong.
fn skip_scalars(
    cursor: &mut Cursor<'_>,
    key: &str,
    kind: Kind,
    count: u64,
) -> Result<(), CheckpointError> {
    let start = cursor.at();
    // No overflow: `count` times the size is at most what is left of the file.
    let bytes = cursor.take(count * kind.min_size(), "a metadata value")?;
    if kind == Kind::Bool
        && let Some(i) = bytes.iter().position(|&b| b > 1)
    {
        let fault = GgufFault::BadBool { key: key.to_owned(), found: bytes[i] };
        return Err(cursor.fault_at(start + i, fault));
    }
    Ok(())
}

/// `general.alignment`: a power of two, and at least 8 as GGUF's specification has it. The upper
/// bound is ours: padding is written out, and no file needs more than a few pages of it.
pub(super) fn alignment(metadata: &Metadata) -> Result<u64, CheckpointError> {
    const KEY: &str = "general.alignment";
    let Some(value) = metadata.get(KEY) else { return Ok(DEFAULT_ALIGNMENT) };
    value
        .as_int()
        .and_then(|v| u64::try_from(v).ok())
        .filter(|v| v.is_power_of_two() && (8..=1 << 20).contains(v))
        .ok_or_else(|| metadata.fault(KEY, GgufFault::Alignment { found: value.to_string() }))
}

/// One tensor entry; everything but its place is checked here.
fn raw_tensor(cursor: &mut Cursor<'_>) -> Result<RawTensor, CheckpointError> {
    let name = cursor.name("a tensor name", MAX_TENSOR_NAME)?.to_owned();
    let at = cursor.at();
    let found = cursor.u32("the number of dimensions of a tensor")?;
    if found == 0 || found > MAX_DIMS {
        let fault = GgufFault::DimensionCount { tensor: name, found: found.into() };
        return Err(cursor.fault_at(at, fault));
    }
    let at = cursor.at();
    let mut dims = Vec::with_capacity(found as usize);
    for _ in 0..found {
        dims.push(cursor.u64("a dimension of a tensor")?);
    }
    let type_at = cursor.at();
    let number = cursor.u32("the type of a tensor")?;
    let Some(dtype) = Dtype::from_ggml_type(number) else {
        let fault = GgufFault::UnknownDtype { tensor: name, number, name: ggml_type_name(number) };
        return Err(cursor.fault_at(type_at, fault));
    };
    let len = tensor_bytes(&name, dtype, &dims).map_err(|fault| cursor.fault_at(at, fault))?;
    let stands_at = cursor.at();
    let offset = cursor.u64("the offset of a tensor")?;
    let shape = dims.into_iter().map(|d| d as usize).collect();
    Ok(RawTensor { name, dtype, shape, len, offset, stands_at })
}

/// Bytes of a tensor of `dims`, or what is wrong with them.
pub(super) fn tensor_bytes(tensor: &str, dtype: Dtype, dims: &[u64]) -> Result<u64, GgufFault> {
    let tensor = tensor.to_owned();
    if dims.is_empty() || dims.len() > MAX_DIMS as usize {
        return Err(GgufFault::DimensionCount { tensor, found: dims.len() as u64 });
    }
    if dims.contains(&0) {
        return Err(GgufFault::ZeroDimension { tensor, dims: dims.to_vec() });
    }
    let block = dtype.block_len() as u64;
    if !dims[0].is_multiple_of(block) {
        return Err(GgufFault::ColumnsNotBlocks { tensor, dtype, cols: dims[0], block });
    }
    // isize::MAX elements and bytes: what a slice can span.
    let elements = dims.iter().try_fold(1u64, |product, &d| product.checked_mul(d));
    elements
        .filter(|&n| isize::try_from(n).is_ok())
        .and_then(|n| (n / block).checked_mul(dtype.block_bytes() as u64))
        .filter(|&n| isize::try_from(n).is_ok())
        .ok_or_else(|| GgufFault::DimensionsOverflow { tensor, dims: dims.to_vec() })
}

/// Gives every tensor its range in the file: aligned, inside, and apart from all others.
fn place(
    map: &Map,
    raw: Vec<RawTensor>,
    data_start: u64,
    alignment: u64,
) -> Result<Vec<GgufTensor>, CheckpointError> {
    let path = map.path();
    let file_len = map.bytes().len() as u64;
    let mut stands_at = Vec::with_capacity(raw.len());
    let mut tensors = Vec::with_capacity(raw.len());
    for RawTensor { name, dtype, shape, len, offset, stands_at: at } in raw {
        let fault = |fault| Err(CheckpointError::gguf(path, at as u64, fault));
        if !offset.is_multiple_of(alignment) {
            return fault(GgufFault::Misaligned { tensor: name, found: offset, alignment });
        }
        let start = u128::from(data_start) + u128::from(offset);
        let end = start + u128::from(len);
        if end > u128::from(file_len) {
            return fault(GgufFault::OutOfRange { tensor: name, end, file_len });
        }
        stands_at.push(at);
        let range = start as usize..end as usize;
        tensors.push(GgufTensor { name, dtype, shape, map: map.clone(), range });
    }

    let mut by_start: Vec<usize> = (0..tensors.len()).collect();
    by_start.sort_by_key(|&i| tensors[i].range.start);
    for pair in by_start.windows(2) {
        let (before, after) = (&tensors[pair[0]], &tensors[pair[1]]);
        if after.range.start < before.range.end {
            let fault = GgufFault::Overlap {
                tensor: after.name.clone(),
                other: before.name.clone(),
                other_end: before.range.end as u64,
            };
            return Err(CheckpointError::gguf(path, stands_at[pair[1]] as u64, fault));
        }
    }
    Ok(tensors)
}

/// For messages about a whole file rather than a place in it.
pub(super) fn fault_of_file(path: &Path, fault: GgufFault) -> CheckpointError {
    CheckpointError::gguf(path, 0, fault)
}
