//! `Recorder`: hooks that keep what flows at the points of the forward pass, and write it to a
//! safetensors file.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use larql_checkpoint::config::ModelConfig;
use larql_vindex::VindexError;

use crate::InferenceError;
use crate::hooks::{Hooks, Point};

/// Keeps every point of the forward pass, for every position in the order in which they were run,
/// in a temporary file beside the one that is to be written. How many positions there will be is
/// known only at the end, and a tensor of the file is whole only then; memory holds one tensor at
/// a time, while it is written.
#[derive(Debug)]
pub struct Recorder<'a> {
    config: &'a ModelConfig,
    path: PathBuf,
    /// Without a name: it is gone with the process, however that ends.
    spool: File,
    len: u64,
    recorded: BTreeMap<Point, Recorded>,
    bytes: Vec<u8>,
}

/// Where the values of a point stand in the temporary file.
#[derive(Debug, Clone)]
struct Recorded {
    /// Rows and width.
    shape: [usize; 2],
    /// Offset and bytes.
    pieces: Vec<(u64, usize)>,
}

impl<'a> Recorder<'a> {
    /// An empty recorder of a model, whose file will be `path`.
    ///
    /// # Errors
    /// A directory that cannot be written to.
    pub fn create(path: &Path, config: &'a ModelConfig) -> Result<Self, InferenceError> {
        let spool = tempfile::tempfile_in(parent(path)).map_err(VindexError::io("create", path))?;
        let (recorded, bytes) = (BTreeMap::new(), Vec::new());
        Ok(Self { config, path: path.to_path_buf(), spool, len: 0, recorded, bytes })
    }

    /// Positions that were recorded.
    pub fn positions(&self) -> usize {
        self.recorded.get(&Point::Embed).map_or(0, |recorded| recorded.shape[0])
    }

    /// What was kept of a point, `[n, width]`; nothing of a point that was not passed.
    ///
    /// # Errors
    /// The system's.
    pub fn values(&self, point: Point) -> Result<Vec<f32>, InferenceError> {
        let Some(recorded) = self.recorded.get(&point) else { return Ok(Vec::new()) };
        let bytes = recorded.read(&self.spool).map_err(VindexError::io("read", &self.path))?;
        Ok(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    /// Writes the safetensors file: for every point an F32 tensor `[n, width]` of its name, and
    /// `metadata` beside them. An older file of that name is replaced when the new one is whole.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, metadata: HashMap<String, String>) -> Result<(), InferenceError> {
        let told = |error: io::Error| VindexError::io("write", &self.path)(error);
        let failed = RefCell::new(None);
        let tensors = self.recorded.iter().map(|(point, recorded)| {
            (point.to_string(), Tensor { recorded, spool: &self.spool, failed: &failed })
        });
        larql_vindex::replace_file_with(&self.path, |temporary| {
            safetensors::serialize_to_file(tensors, Some(metadata), temporary)
                .map_err(|error| told(io::Error::other(error)))?;
            failed.take().map_or(Ok(()), |error| Err(told(error)))
        })?;
        Ok(())
    }

    fn append(&mut self, point: Point, width: usize, values: &[f32]) -> io::Result<()> {
        self.bytes.clear();
        self.bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self.spool.write_all(&self.bytes)?;
        let empty = Recorded { shape: [0, width], pieces: Vec::new() };
        let recorded = self.recorded.entry(point).or_insert(empty);
        recorded.shape[0] += values.len() / width.max(1);
        recorded.pieces.push((self.len, self.bytes.len()));
        self.len += self.bytes.len() as u64;
        Ok(())
    }
}

/// The directory of a file.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}

impl Hooks for Recorder<'_> {
    fn wants(&self, _: Point) -> bool {
        true
    }

    fn at(&mut self, point: Point, _: usize, values: &mut [f32]) -> Result<(), InferenceError> {
        let width = match point {
            Point::MlpPost(layer) => self.config.n_features(layer),
            _ => self.config.hidden_size,
        };
        let path = self.path.clone();
        Ok(self.append(point, width, values).map_err(VindexError::io("write to", &path))?)
    }
}

impl Recorded {
    fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.1).sum()
    }

    /// The bytes of all positions.
    fn read(&self, mut spool: &File) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.len()];
        let mut rest = bytes.as_mut_slice();
        for &(offset, len) in &self.pieces {
            let (piece, others) = rest.split_at_mut(len);
            spool.seek(SeekFrom::Start(offset))?;
            spool.read_exact(piece)?;
            rest = others;
        }
        Ok(bytes)
    }
}

/// A tensor to write, read from the temporary file when its turn comes.
struct Tensor<'a> {
    recorded: &'a Recorded,
    spool: &'a File,
    /// `data` has no way to fail: what went wrong is left here, and the file is given up.
    failed: &'a RefCell<Option<io::Error>>,
}

impl safetensors::View for Tensor<'_> {
    fn dtype(&self) -> safetensors::Dtype {
        safetensors::Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.recorded.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let read = self.recorded.read(self.spool);
        Cow::Owned(read.unwrap_or_else(|error| {
            self.failed.replace(Some(error));
            vec![0; self.recorded.len()]
        }))
    }

    fn data_len(&self) -> usize {
        self.recorded.len()
    }
}
