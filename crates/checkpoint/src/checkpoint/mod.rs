//! `Checkpoint`: a model as it is on disk, whichever format, seen through canonical names, shapes
//! and conventions.
//!
//! A GGUF file is already canonical and is read in place. A Hugging Face directory is presented as
//! if it had been converted: query and key rows in the order that the family's rotation wants,
//! Gemma's norms with their +1, experts stacked, and so on (`hf.rs`). Nothing is converted until a
//! row is read, and never more than that row.

mod gguf;
mod hf;
mod plan;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use larql_compute::{Dtype, Matrix};

use crate::config::{ConfigError, ModelConfig};
use crate::gguf::Gguf;
use crate::names::TensorId;
use crate::safetensors::Safetensors;
use crate::{CheckpointError, Map};

use plan::Plan;

/// The file format of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One GGUF file, or the parts of a split one.
    Gguf,
    /// A directory with `config.json` and safetensors.
    Safetensors,
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Gguf => "GGUF",
            Self::Safetensors => "safetensors",
        })
    }
}

/// An opened, validated model: every tensor that its configuration implies is there and has the
/// right shape.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    config: ModelConfig,
    source: Source,
    entries: Vec<TensorEntry>,
    by_id: HashMap<TensorId, usize>,
    unknown: Vec<String>,
}

#[derive(Debug)]
enum Source {
    Gguf(Gguf),
    /// One plan for each entry.
    Hf(Safetensors, Vec<Plan>),
}

/// One tensor of a checkpoint, in canonical form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// What the tensor is for.
    pub id: TensorId,
    /// Its canonical name.
    pub name: String,
    /// How its elements are stored, or come out of [`Checkpoint::read_row`].
    pub dtype: Dtype,
    /// Rows of all its matrices together.
    pub rows: usize,
    /// Elements of a row.
    pub cols: usize,
    /// Its shape in GGUF's order: columns, rows, matrices.
    pub shape: Vec<usize>,
    /// Index into the source's own list: GGUF tensors, or plans.
    place: usize,
}

impl TensorEntry {
    fn new(id: TensorId, dtype: Dtype, shape: Vec<usize>, place: usize) -> Self {
        let cols = shape.first().copied().unwrap_or(0);
        let rows = shape.iter().skip(1).product();
        Self { id, name: id.to_string(), dtype, rows, cols, shape, place }
    }
}

/// What a source contributes: configuration, tensors in order, and what was left over.
struct Opened {
    config: ModelConfig,
    source: Source,
    entries: Vec<TensorEntry>,
    unknown: Vec<String>,
}

impl Checkpoint {
    /// Opens a GGUF file (the first one, where it is split), a Hugging Face directory, or a
    /// safetensors file inside one.
    ///
    /// # Errors
    /// Whatever is wrong with the files; an unknown family; a configuration with senseless numbers;
    /// a tensor that is missing or has another shape than the configuration implies.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        let opened = if path.is_dir() {
            hf::open(path)?
        } else {
            let map = Map::open(path)?;
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            let in_directory = name.ends_with(".safetensors") || name.ends_with(".json");
            if in_directory && !map.bytes().starts_with(b"GGUF") {
                // A bare file name has the empty path for a parent.
                let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
                hf::open(parent.unwrap_or(Path::new(".")))?
            } else {
                gguf::open(map)?
            }
        };
        let by_id = opened.entries.iter().enumerate().map(|(i, e)| (e.id, i)).collect();
        Ok(Self {
            path: path.to_path_buf(),
            config: opened.config,
            source: opened.source,
            entries: opened.entries,
            by_id,
            unknown: opened.unknown,
        })
    }

    /// What was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The format of the source.
    pub fn format(&self) -> Format {
        match self.source {
            Source::Gguf(_) => Format::Gguf,
            Source::Hf(..) => Format::Safetensors,
        }
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The GGUF file, where the source is one.
    pub fn gguf(&self) -> Option<&Gguf> {
        match &self.source {
            Source::Gguf(gguf) => Some(gguf),
            Source::Hf(..) => None,
        }
    }

    /// The mapped files that the tensors are in.
    pub fn files(&self) -> &[Map] {
        match &self.source {
            Source::Gguf(gguf) => gguf.files(),
            Source::Hf(files, _) => files.files(),
        }
    }

    /// Every tensor, in the order in which a writer puts them: embeddings, layers, head.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorEntry> {
        self.entries.iter()
    }

    /// One tensor.
    pub fn tensor(&self, id: TensorId) -> Option<&TensorEntry> {
        self.by_id.get(&id).map(|i| &self.entries[*i])
    }

    /// Tensors of the source that the configuration has no use for, by the source's own names:
    /// a vision tower, layers for predicting several tokens, a duplicate of a tied head. They are
    /// not part of the model that larql sees.
    pub fn unknown_tensors(&self) -> &[String] {
        &self.unknown
    }

    /// The whole tensor in place; `None` where it must be converted row by row, see
    /// [`Checkpoint::read_row`]. Never `None` for GGUF.
    pub fn matrix(&self, entry: &TensorEntry) -> Option<Matrix<'_>> {
        match &self.source {
            Source::Gguf(gguf) => gguf.tensors().get(entry.place).map(|t| t.matrix()),
            Source::Hf(files, plans) => plans.get(entry.place)?.matrix(files, entry),
        }
    }

    /// Writes row `row` of a tensor, in the entry's dtype, to `out`. Reads no more of the source
    /// than that row is made of. Panics where `entry` is of another checkpoint, `row` is outside
    /// the tensor or `out` is not one row long, as slices do.
    pub fn read_row(&self, entry: &TensorEntry, row: usize, out: &mut [u8]) {
        match &self.source {
            Source::Gguf(gguf) => {
                out.copy_from_slice(gguf.tensors()[entry.place].matrix().row_bytes(row));
            }
            Source::Hf(files, plans) => plans[entry.place].read_row(files, entry, row, out),
        }
    }
}

/// Whether two shapes are equal but for dimensions of 1 at the end, which some writers drop.
fn same_shape(a: &[usize], b: &[usize]) -> bool {
    let trim = |shape: &[usize]| {
        let len = shape.iter().rposition(|n| *n != 1).map_or(0, |i| i + 1);
        shape[..len].to_vec()
    };
    trim(a) == trim(b)
}

fn model_error(path: &Path, source: ConfigError) -> CheckpointError {
    CheckpointError::Model { path: path.to_path_buf(), source: Box::new(source) }
}
