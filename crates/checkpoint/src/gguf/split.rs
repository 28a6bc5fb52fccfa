//! Models in several files: `NAME-00001-of-0000N.gguf`, as llama.cpp's gguf-split writes them.
//! The first file has the metadata; each says which part it is, of how many, and how many tensors
//! all of them hold.

use std::path::{Path, PathBuf};

use super::fault::GgufFault;
use super::header::{self, Header, fault_of_file};
use super::metadata::Metadata;
use crate::{CheckpointError, Map};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";
/// The file names have room for five digits, the metadata for a u16.
const MAX_PARTS: u64 = 65_535;

/// Opens the other parts of the model whose first part is `first`; empty for a model in one file.
pub(super) fn open_others(map: &Map, first: &Header) -> Result<Vec<Header>, CheckpointError> {
    let path = map.path();
    let count = part_count(&first.metadata)?;
    if count <= 1 {
        return Ok(Vec::new());
    }
    let number = first.metadata.get_u64(NUMBER)?.unwrap_or(0);
    if number != 0 {
        let first = part_path(path, number, 0, count);
        return Err(fault_of_file(path, GgufFault::NotFirstPart { number, count, first }));
    }

    let mut others = Vec::new();
    for number in 1..count {
        let Some(other) = part_path(path, 0, number, count) else {
            let fault = GgufFault::PartName { count, expected: suffix(0, count) };
            return Err(fault_of_file(path, fault));
        };
        let map = match Map::open(&other) {
            Err(CheckpointError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                let fault = GgufFault::MissingPart { number, count };
                return Err(fault_of_file(&other, fault));
            }
            opened => opened?,
        };
        let part = header::parse(&map)?;
        check(&part.metadata, NUMBER, number)?;
        check(&part.metadata, COUNT, count)?;
        others.push(part);
    }

    if let Some(expected) = first.metadata.get_u64(TENSORS)? {
        let found = first.tensors.len() + others.iter().map(|p| p.tensors.len()).sum::<usize>();
        if found as u64 != expected {
            let parts = others.len() + 1;
            let fault = GgufFault::PartTensors { parts, found, expected };
            return Err(first.metadata.fault(TENSORS, fault));
        }
    }
    Ok(others)
}

/// How many parts the metadata speaks of; 1 where it does not.
fn part_count(metadata: &Metadata) -> Result<u64, CheckpointError> {
    match metadata.get_u64(COUNT)? {
        None => Ok(1),
        Some(count) if (1..=MAX_PARTS).contains(&count) => Ok(count),
        // llama.cpp writes zero into files that were merged again.
        Some(0) => Ok(1),
        Some(found) => Err(metadata.fault(COUNT, GgufFault::PartCount { found, limit: MAX_PARTS })),
    }
}

/// Checks that `key` is there and says `expected`.
fn check(metadata: &Metadata, key: &'static str, expected: u64) -> Result<(), CheckpointError> {
    match metadata.get_u64(key)? {
        Some(found) if found == expected => Ok(()),
        found => {
            let found = found.map_or("missing".to_owned(), |f| f.to_string());
            Err(metadata.fault(key, GgufFault::PartMismatch { key, found, expected }))
        }
    }
}

/// What the name of part `number` (from 0) ends in.
fn suffix(number: u64, count: u64) -> String {
    format!("-{:05}-of-{count:05}.gguf", number + 1)
}

/// The path of part `wanted`, given the path of part `number`; `None` where that one's name does
/// not follow the pattern.
fn part_path(path: &Path, number: u64, wanted: u64, count: u64) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_suffix(&suffix(number, count))?;
    Some(path.with_file_name(format!("{stem}{}", suffix(wanted, count))))
}
