//! `model.safetensors.index.json`: which shard holds which tensor.

use std::path::{Component, Path};

use serde::Deserialize;

use super::fault::SafetensorsFault;
use super::header::{MAX_HEADER, Pairs};
use crate::{CheckpointError, Map};

/// The part of the index that matters; `metadata.total_size` is known to be wrong in many.
#[derive(Deserialize)]
struct Index {
    weight_map: Pairs<String>,
}

/// Every tensor and the shard it is said to be in, in the order of the index.
pub(super) fn read(path: &Path) -> Result<Vec<(String, String)>, CheckpointError> {
    let map = Map::open(path)?;
    parse(map.bytes()).map_err(|fault| CheckpointError::safetensors(path, fault))
}

fn parse(bytes: &[u8]) -> Result<Vec<(String, String)>, SafetensorsFault> {
    if bytes.len() as u64 > MAX_HEADER {
        let found = bytes.len() as u64;
        return Err(SafetensorsFault::HeaderTooLarge { found, limit: MAX_HEADER });
    }
    let index: Index =
        serde_json::from_slice(bytes).map_err(|e| SafetensorsFault::Json { why: e.to_string() })?;
    let Pairs { pairs, duplicate } = index.weight_map;
    if let Some(tensor) = duplicate {
        return Err(SafetensorsFault::DuplicateInIndex { tensor });
    }
    for (_, shard) in &pairs {
        // A downloaded index must not make us open files elsewhere on this machine.
        let inside = Path::new(shard).components().all(|c| matches!(c, Component::Normal(_)));
        if shard.is_empty() || !inside {
            return Err(SafetensorsFault::ShardOutside { shard: shard.clone() });
        }
    }
    Ok(pairs)
}
