//! `Origin`: what weights are taken from. A model's files or a vindex; both are a list of tensors
//! with canonical names, a configuration, and the metadata of a GGUF that describes them.

use std::path::{Path, PathBuf};

use larql_checkpoint::gguf::{Gguf, Metadata};
use larql_checkpoint::tokenizer::Tokenizer;
use larql_checkpoint::{Checkpoint, Format, ModelConfig, TensorId};
use larql_compute::Dtype;

use super::build::{base_name, forget_all};
use super::rows::Rows;
use super::write::{Fallback, Planned, choose_dtype};
use crate::files::{TOKENIZER, TOKENIZER_EXTRAS};
use crate::manifest::{Source, WeightsOrigin};
use crate::{Vindex, VindexError};

/// What weights are taken from.
pub(crate) enum Origin {
    /// A model's files; of a GGUF, also the opened file.
    Model { checkpoint: Box<Checkpoint>, path: PathBuf },
    /// A vindex.
    Vindex(Box<Vindex>),
}

impl Origin {
    /// Opens a model's files.
    pub(crate) fn open_model(path: &Path) -> Result<Self, VindexError> {
        let checkpoint = Box::new(Checkpoint::open(path)?);
        Ok(Self::Model { checkpoint, path: path.to_path_buf() })
    }

    /// Opens a model's files or, where the directory has a manifest, a vindex.
    pub(crate) fn open(path: &Path) -> Result<Self, VindexError> {
        if path.join(crate::files::MANIFEST).is_file() {
            return Ok(Self::Vindex(Box::new(Vindex::open(path)?)));
        }
        Self::open_model(path)
    }

    pub(crate) fn config(&self) -> &ModelConfig {
        match self {
            Self::Model { checkpoint, .. } => checkpoint.config(),
            Self::Vindex(vindex) => vindex.config(),
        }
    }

    /// The GGUF that a model is, where it is one.
    pub(crate) fn gguf(&self) -> Option<&Gguf> {
        match self {
            Self::Model { checkpoint, .. } => checkpoint.gguf(),
            Self::Vindex(_) => None,
        }
    }

    pub(crate) fn unknown_tensors(&self) -> &[String] {
        match self {
            Self::Model { checkpoint, .. } => checkpoint.unknown_tensors(),
            Self::Vindex(vindex) => &vindex.manifest().unknown_tensors,
        }
    }

    /// Metadata of a GGUF with these tensors: what llama.cpp needs to load it.
    pub(crate) fn metadata(&self) -> Result<Metadata, VindexError> {
        match self {
            Self::Model { checkpoint, path } => match checkpoint.gguf() {
                Some(gguf) => Ok(gguf.metadata().clone()),
                None => model_metadata(checkpoint, path),
            },
            Self::Vindex(vindex) => Ok(vindex.weights()[0].metadata().clone()),
        }
    }

    /// The files of the source's tokenizer, where it has a `tokenizer.json`.
    pub(crate) fn tokenizer_files(&self) -> Vec<PathBuf> {
        let dir = match self {
            Self::Model { checkpoint, path } => match checkpoint.format() {
                Format::Safetensors => directory(path),
                Format::Gguf => return Vec::new(),
            },
            Self::Vindex(vindex) => vindex.path(),
        };
        if !dir.join(TOKENIZER).is_file() {
            return Vec::new();
        }
        let names = std::iter::once(TOKENIZER).chain(TOKENIZER_EXTRAS);
        names.map(|name| dir.join(name)).filter(|path| path.is_file()).collect()
    }

    /// The source's files, as they are to stand in the manifest with their hashes. A vindex's
    /// source is the one that it was made from, whose files need not exist any more.
    pub(crate) fn parts(&self) -> Result<Vec<PathBuf>, VindexError> {
        match self {
            Self::Model { checkpoint, path } => match checkpoint.gguf() {
                Some(gguf) => Ok(gguf.files().iter().map(|map| map.path().to_path_buf()).collect()),
                None => directory_parts(directory(path)),
            },
            Self::Vindex(_) => Ok(Vec::new()),
        }
    }

    /// Takes the pages that were read out of this process's memory.
    pub(crate) fn forget(&self) -> Result<(), VindexError> {
        match self {
            Self::Model { checkpoint, .. } => forget_all(checkpoint.files()),
            Self::Vindex(vindex) => forget_all(vindex.weights().iter().flat_map(Gguf::files)),
        }
    }

    /// The manifest's `source`.
    pub(crate) fn record(&self, path: &Path, weights: WeightsOrigin) -> Source {
        match self {
            Self::Model { checkpoint, .. } => Source {
                name: base_name(path),
                format: match checkpoint.format() {
                    Format::Gguf => "gguf".to_owned(),
                    Format::Safetensors => "safetensors".to_owned(),
                },
                weights,
                files: Vec::new(),
            },
            Self::Vindex(vindex) => Source { weights, ..vindex.manifest().source.clone() },
        }
    }

    /// The tensors that `keep` wants, with the dtype that each will have.
    pub(crate) fn plan(
        &self,
        dtype: Option<Dtype>,
        keep: &dyn Fn(Option<TensorId>) -> bool,
    ) -> (Vec<Planned<'_>>, Vec<Fallback>) {
        let mut planned = Vec::new();
        let mut fallbacks = Vec::new();
        let mut add = |id: Option<TensorId>, name: &str, shape: &[usize], from, rows| {
            let (to, fallback) = choose_dtype(id, name, shape, from, dtype);
            fallbacks.extend(fallback);
            planned.push(Planned {
                id,
                name: name.to_owned(),
                shape: shape.to_vec(),
                from,
                to,
                rows,
            });
        };
        match self {
            Self::Model { checkpoint, .. } => {
                for entry in checkpoint.tensors().filter(|entry| keep(Some(entry.id))) {
                    let rows = match checkpoint.matrix(entry) {
                        Some(matrix) => Rows::Matrix(matrix),
                        None => Rows::Checkpoint(checkpoint, entry),
                    };
                    add(Some(entry.id), &entry.name, &entry.shape, entry.dtype, rows);
                }
                // Tensors without a role have no canonical form, except in a GGUF.
                let unknown = checkpoint.gguf().filter(|_| keep(None));
                for name in unknown.iter().flat_map(|_| checkpoint.unknown_tensors()) {
                    if let Some(tensor) = unknown.and_then(|gguf| gguf.tensor(name)) {
                        let rows = Rows::Matrix(tensor.matrix());
                        add(None, name, tensor.shape(), tensor.dtype(), rows);
                    }
                }
            }
            Self::Vindex(vindex) => {
                for entry in &vindex.manifest().tensors {
                    if let (true, Some(matrix)) = (keep(Some(entry.id)), vindex.matrix(entry.id)) {
                        let rows = Rows::Matrix(matrix);
                        add(Some(entry.id), &entry.name, &entry.shape, entry.dtype, rows);
                    }
                }
            }
        }
        (planned, fallbacks)
    }
}

/// The directory of a safetensors model, of which one file may have been named.
fn directory(path: &Path) -> &Path {
    if path.is_dir() { path } else { path.parent().unwrap_or(path) }
}

/// The files of a directory that a model is read from.
fn directory_parts(dir: &Path) -> Result<Vec<PathBuf>, VindexError> {
    let mut parts = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(VindexError::io("list", dir))? {
        let path = entry.map_err(VindexError::io("list", dir))?.path();
        let name = base_name(&path);
        let read = name.ends_with(".safetensors")
            || name.ends_with(".safetensors.index.json")
            || ["config.json", TOKENIZER].contains(&name.as_str())
            || TOKENIZER_EXTRAS.contains(&name.as_str());
        if read && path.is_file() {
            parts.push(path);
        }
    }
    parts.sort();
    Ok(parts)
}

/// The metadata of a GGUF made from safetensors: configuration, name, and the tokenizer, where the
/// directory has one and GGUF can say it.
fn model_metadata(checkpoint: &Checkpoint, path: &Path) -> Result<Metadata, VindexError> {
    let dir = directory(path);
    let mut metadata = checkpoint.config().to_gguf_metadata();
    metadata.set("general.name", base_name(dir).as_str());
    if dir.join(TOKENIZER).is_file() {
        let tokenizer = Tokenizer::from_checkpoint_dir(dir)?;
        let keys = tokenizer.to_gguf_metadata(checkpoint.config().vocab_size)?;
        for (key, value) in keys.iter() {
            metadata.set(key, value);
        }
    }
    Ok(metadata)
}
