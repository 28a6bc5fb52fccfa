//! safetensors: what Hugging Face directories hold. One file, or shards with an index.
//!
//! Only F32, F16 and BF16 are read. Shapes are row-major, outermost dimension first, the reverse
//! of GGUF's. Tensors begin wherever the header ends: their bytes may have any alignment.

mod fault;
mod header;
mod index;

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use larql_compute::{Dtype, Matrix};

pub use fault::SafetensorsFault;

use crate::{CheckpointError, Map};

/// Name of a model in one file.
const SINGLE: &str = "model.safetensors";
/// Name of the index of a model in shards.
const INDEX: &str = "model.safetensors.index.json";

/// An opened, validated safetensors model.
#[derive(Debug, Clone)]
pub struct Safetensors {
    files: Vec<Map>,
    tensors: Vec<SafetensorsTensor>,
    by_name: HashMap<String, usize>,
}

/// One tensor of a safetensors model. Holding one is the proof that its bytes are there.
#[derive(Clone)]
pub struct SafetensorsTensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    map: Map,
    range: Range<usize>,
}

impl Safetensors {
    /// Opens a `.safetensors` file, an index (`*.index.json`), or a directory with
    /// `model.safetensors` or else `model.safetensors.index.json` in it.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] where a file cannot be mapped, [`CheckpointError::Safetensors`]
    /// for everything that a header or the index says and that cannot be true.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        if path.is_dir() {
            if path.join(SINGLE).is_file() {
                return Self::from_map(Map::open(path.join(SINGLE))?);
            }
            if path.join(INDEX).is_file() {
                return Self::open_shards(&path.join(INDEX));
            }
            return Err(CheckpointError::safetensors(path, SafetensorsFault::NoModel));
        }
        if path.extension().is_some_and(|e| e == "json") {
            return Self::open_shards(path);
        }
        Self::from_map(Map::open(path)?)
    }

    /// A model in one file that is mapped already.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_map(map: Map) -> Result<Self, CheckpointError> {
        let mut model = Self { files: Vec::new(), tensors: Vec::new(), by_name: HashMap::new() };
        model.add(map)?;
        Ok(model)
    }

    fn open_shards(index: &Path) -> Result<Self, CheckpointError> {
        let listed = index::read(index)?;
        let at_index = |fault| CheckpointError::safetensors(index, fault);
        let mut model = Self { files: Vec::new(), tensors: Vec::new(), by_name: HashMap::new() };
        let mut files: HashMap<&str, usize> = HashMap::new();
        for (_, shard) in &listed {
            if files.contains_key(shard.as_str()) {
                continue;
            }
            files.insert(shard, files.len());
            let map = match Map::open(index.with_file_name(shard)) {
                Err(CheckpointError::Io { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound =>
                {
                    let shard = shard.clone();
                    return Err(at_index(SafetensorsFault::MissingShard { shard }));
                }
                opened => opened?,
            };
            // The shards are the truth: a tensor that the index forgot is there all the same.
            model.add(map)?;
        }
        for (tensor, shard) in &listed {
            let file = &model.files[files[shard.as_str()]];
            if model.tensor(tensor).is_none_or(|t| t.map.path() != file.path()) {
                let (tensor, shard) = (tensor.clone(), shard.clone());
                return Err(at_index(SafetensorsFault::NotInShard { tensor, shard }));
            }
        }
        Ok(model)
    }

    /// Adds the tensors of one more file.
    fn add(&mut self, map: Map) -> Result<(), CheckpointError> {
        for tensor in header::parse(&map)? {
            if let Some(&first) = self.by_name.get(&tensor.name) {
                let first = self.tensors[first].file().to_path_buf();
                let fault = SafetensorsFault::InTwoShards { tensor: tensor.name, first };
                return Err(CheckpointError::safetensors(map.path(), fault));
            }
            self.by_name.insert(tensor.name.clone(), self.tensors.len());
            self.tensors.push(tensor);
        }
        self.files.push(map);
        Ok(())
    }

    /// All tensors: file after file, within a file in the order of their data.
    pub fn tensors(&self) -> &[SafetensorsTensor] {
        &self.tensors
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&SafetensorsTensor> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    /// The mapped files.
    pub fn files(&self) -> &[Map] {
        &self.files
    }
}

impl SafetensorsTensor {
    /// Name, as it stands in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How the elements are stored: F32, F16 or BF16.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Dimensions, outermost first; empty for a scalar. None is zero.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Elements of a row (the last dimension; 1 for a scalar).
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// The product of every dimension but the last.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// All its bytes, little-endian, at any alignment.
    pub fn bytes(&self) -> &[u8] {
        &self.map.bytes()[self.range.clone()]
    }

    /// A view as `rows()` x `cols()`.
    pub fn matrix(&self) -> Matrix<'_> {
        Matrix::new(self.dtype, self.rows(), self.cols(), self.bytes())
            .expect("the header parser checked the range against this dtype and shape")
    }

    /// The mapped file that holds the bytes.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// The file that holds the bytes.
    pub fn file(&self) -> &Path {
        self.map.path()
    }

    /// Where in [`file`](Self::file) the bytes lie.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl std::fmt::Debug for SafetensorsTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SafetensorsTensor({} {} {:?})", self.name, self.dtype, self.shape)
    }
}
