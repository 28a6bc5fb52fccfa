//! `residency`: what of a vindex is mapped, what of that is in memory, and what the heap holds.

use std::collections::BTreeMap;

use larql_checkpoint::gguf::Gguf;
use larql_checkpoint::{Advice, Map, Role};
use serde::Serialize;

use crate::open::advice;
use crate::{Vindex, VindexError, files};

/// Memory of an opened vindex.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Residency {
    /// One row a role, largest first.
    pub roles: Vec<RoleResidency>,
    /// Bytes on the heap by owner. Estimated from lengths; the allocator's overhead is not in it.
    pub heap: Vec<HeapUse>,
}

/// Memory of one role's tensors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RoleResidency {
    /// The role's name.
    pub role: String,
    /// Number of tensors.
    pub tensors: usize,
    /// Bytes mapped.
    pub mapped: u64,
    /// Bytes of these in physical memory now, by mincore; they may have been read by any process.
    pub resident: u64,
    /// What the kernel was told about how they are read.
    pub advice: &'static str,
}

/// Heap bytes of one owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeapUse {
    /// Whose.
    pub owner: &'static str,
    /// Bytes.
    pub bytes: u64,
}

impl Vindex {
    /// Mapped and resident bytes of every role, and heap bytes of every owner.
    ///
    /// # Errors
    /// A system that cannot tell.
    pub fn residency(&self) -> Result<Residency, VindexError> {
        let mut roles: BTreeMap<Role, RoleResidency> = BTreeMap::new();
        for entry in &self.manifest().tensors {
            let Some(tensor) = self.tensor(entry.id) else { continue };
            let role = entry.id.role;
            let row = roles.entry(role).or_insert_with(|| RoleResidency {
                role: role.to_string(),
                tensors: 0,
                mapped: 0,
                resident: 0,
                advice: advice_name(advice(role, self.config().tied)),
            });
            row.tensors += 1;
            row.mapped += tensor.range().len() as u64;
            row.resident += tensor.map().resident(tensor.range())? as u64;
        }
        let mut roles: Vec<_> = roles.into_values().collect();
        if let Some(gguf) = self.down_features_file() {
            let mut row = RoleResidency {
                role: "down_features".to_owned(),
                tensors: gguf.tensors().len(),
                mapped: 0,
                resident: 0,
                advice: advice_name(Advice::Normal),
            };
            for tensor in gguf.tensors() {
                row.mapped += tensor.range().len() as u64;
                row.resident += tensor.map().resident(tensor.range())? as u64;
            }
            roles.push(row);
        }
        let labels = self.file_path(files::DOWN_META);
        if self.manifest().file(files::DOWN_META).is_some() && labels.exists() {
            let map = Map::open(&labels)?;
            roles.push(RoleResidency {
                role: "down_meta".to_owned(),
                tensors: 1,
                mapped: map.bytes().len() as u64,
                resident: map.resident(0..map.bytes().len())? as u64,
                advice: advice_name(Advice::Normal),
            });
        }
        let sealed =
            [("lm_head_planes", files::LM_HEAD_PLANES), ("feature_means", files::FEATURE_MEANS)];
        for (role, name) in sealed {
            let path = self.file_path(name);
            if !path.exists() {
                continue;
            }
            let map = Map::open(&path)?;
            roles.push(RoleResidency {
                role: role.to_owned(),
                tensors: 1,
                mapped: map.bytes().len() as u64,
                resident: map.resident(0..map.bytes().len())? as u64,
                advice: advice_name(Advice::Normal),
            });
        }
        roles.sort_by_key(|row| std::cmp::Reverse(row.mapped));
        Ok(Residency { roles, heap: self.heap() })
    }

    fn heap(&self) -> Vec<HeapUse> {
        let manifest = self.manifest();
        let strings = |names: &[String]| -> usize { names.iter().map(String::len).sum() };
        let tensors: usize = manifest
            .tensors
            .iter()
            .map(|t| size_of_val(t) + t.name.len() + t.file.len() + size_of_val(&t.shape[..]))
            .sum();
        let files: usize = manifest
            .files
            .iter()
            .map(|f| size_of_val(f) + f.name.len() + size_of_val(&f.segments[..]))
            .sum();
        let windows = size_of_val(&manifest.model.windows[..]);
        let headers: usize = self
            .weights()
            .iter()
            .chain(self.down_features_file())
            .flat_map(Gguf::tensors)
            .map(|t| size_of_val(t) + t.name().len() + size_of_val(t.shape()))
            .sum();
        let use_of = |owner, bytes: usize| HeapUse { owner, bytes: bytes as u64 };
        vec![
            use_of("manifest", tensors + files + windows + strings(&manifest.unknown_tensors)),
            use_of("tensor tables", 2 * headers),
        ]
    }
}

fn advice_name(advice: Advice) -> &'static str {
    match advice {
        Advice::Normal => "normal",
        Advice::Random => "random",
        Advice::Sequential => "sequential",
        Advice::WillNeed => "willneed",
    }
}
