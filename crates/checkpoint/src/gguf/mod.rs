//! GGUF: the one file format that larql reads in place and writes.
//!
//! Opening walks the whole header once, with checked arithmetic, and refuses every contradiction
//! with an error of its own ([`GgufFault`]); what it returns cannot fail later. Nothing is copied:
//! metadata and tensors are ranges of the mapped file.
//!
//! ```no_run
//! let gguf = larql_checkpoint::gguf::Gguf::open("gemma-3-270m.gguf")?;
//! let family = gguf.metadata().get_str("general.architecture")?;
//! for tensor in gguf.tensors() {
//!     println!("{:40} {:5} {:?}", tensor.name(), tensor.dtype(), tensor.shape());
//! }
//! # Ok::<(), larql_checkpoint::CheckpointError>(())
//! ```

mod cursor;
mod fault;
mod getters;
mod header;
mod metadata;
mod split;
mod tensor;
mod value;
mod writer;

use std::path::Path;

pub use fault::GgufFault;
pub use metadata::Metadata;
pub use tensor::GgufTensor;
pub use value::{Array, ByteStrings, Kind, Value};
pub use writer::{GgufData, GgufWriter};

use crate::{CheckpointError, Map};

/// An opened, validated GGUF model: one file, or all parts of a split one.
#[derive(Debug, Clone)]
pub struct Gguf {
    version: u32,
    alignment: u64,
    metadata: Metadata,
    files: Vec<Map>,
    tensors: Vec<GgufTensor>,
    /// Indices of `tensors`, sorted by name.
    by_name: Vec<u32>,
}

impl Gguf {
    /// Opens a GGUF file; given the first part of a split model, all parts of it.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] where a file cannot be mapped, [`CheckpointError::Gguf`] for
    /// everything that its header says and that cannot be true.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        Self::from_map(Map::open(path)?)
    }

    /// The same over bytes that are mapped already.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_map(map: Map) -> Result<Self, CheckpointError> {
        let first = header::parse(&map)?;
        let others = split::open_others(&map, &first)?;
        let mut files = vec![map];
        let mut tensors = first.tensors;
        for part in others {
            files.push(part.map);
            tensors.extend(part.tensors);
        }

        let mut by_name: Vec<u32> = (0..tensors.len() as u32).collect();
        by_name.sort_by(|&a, &b| tensors[a as usize].name.cmp(&tensors[b as usize].name));
        for pair in by_name.windows(2) {
            let (first, second) = (&tensors[pair[0] as usize], &tensors[pair[1] as usize]);
            if first.name == second.name {
                let fault = GgufFault::DuplicateTensor {
                    tensor: second.name.clone(),
                    first: first.file().to_path_buf(),
                };
                return Err(CheckpointError::gguf(second.file(), second.offset(), fault));
            }
        }
        Ok(Self {
            version: first.version,
            alignment: first.alignment,
            metadata: first.metadata,
            files,
            tensors,
            by_name,
        })
    }

    /// Version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// What tensor offsets are multiples of, in bytes (of the first file).
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Keys and values (of the first file, where there are several).
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> &[GgufTensor] {
        &self.tensors
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&GgufTensor> {
        let by_name = |&i: &u32| self.tensors[i as usize].name.as_str().cmp(name);
        let index = self.by_name.binary_search_by(by_name).ok()?;
        Some(&self.tensors[self.by_name[index] as usize])
    }

    /// The mapped files, in the order of their part numbers.
    pub fn files(&self) -> &[Map] {
        &self.files
    }
}
