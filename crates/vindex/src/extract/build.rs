//! `Build`: a vindex in the making, shared by everything that makes one. Files are put into the
//! staging directory one by one; [`Build::finish`] hashes them, writes the manifest and commits.

use std::ops::Range;
use std::path::{Path, PathBuf};

use larql_checkpoint::gguf::{Gguf, GgufTensor, Metadata};
use larql_checkpoint::{Map, ModelConfig, TensorId};
use larql_compute::Dtype;

use super::Origin;
use super::link;
use super::rows::{Deviation, Rows};
use super::write::{self, Fallback, Forget, Planned};
use crate::atomic::Staged;
use crate::files::{self, FileKind, Group, Level};
use crate::hash::{self, FileHash};
use crate::manifest::{
    FORMAT, FileEntry, Manifest, Modified, Source, TensorEntry, VERSION, WeightsOrigin,
};
use crate::open::down_features_name;
use crate::{Progress, VindexError};

/// A vindex in the making.
pub(crate) struct Build<'p> {
    staged: Staged,
    files: Vec<(String, FileKind)>,
    tensors: Vec<TensorEntry>,
    linked: bool,
    threads: usize,
    progress: &'p dyn Progress,
}

/// What the manifest says beyond files and tensors.
pub(crate) struct Head {
    pub(crate) level: Level,
    pub(crate) layers: Range<usize>,
    pub(crate) source: Source,
    pub(crate) model: ModelConfig,
    pub(crate) unknown_tensors: Vec<String>,
}

impl<'p> Build<'p> {
    pub(crate) fn begin(
        destination: &Path,
        replace: bool,
        threads: Option<usize>,
        progress: &'p dyn Progress,
    ) -> Result<Self, VindexError> {
        Ok(Self {
            staged: Staged::begin(destination, replace)?,
            files: Vec::new(),
            tensors: Vec::new(),
            linked: false,
            threads: threads.unwrap_or_else(super::default_threads),
            progress,
        })
    }

    /// Leftovers of dead builds that were removed.
    pub(crate) fn removed(&self) -> &[PathBuf] {
        self.staged.removed()
    }

    /// Brings every part of a GGUF in, without moving its bytes where the file system can. The
    /// tensors of `planned` get their entries; what else the file holds is simply there.
    pub(crate) fn link(
        &mut self,
        gguf: &Gguf,
        planned: &[Planned<'_>],
        private: bool,
    ) -> Result<WeightsOrigin, VindexError> {
        let parts = gguf.files();
        let mut origin = WeightsOrigin::Linked;
        for (i, part) in parts.iter().enumerate() {
            let name = files::model_part(i + 1, parts.len());
            let path = self.staged.path().join(&name);
            let way = link::bring(part.path(), &path, private, self.progress)?;
            // Parts on several file systems: the least shared one describes all.
            origin = origin.max(way);
            self.files.push((name, FileKind::Model));
        }
        self.linked = origin == WeightsOrigin::Linked;
        for tensor in planned {
            let (Some(id), Some(there)) = (tensor.id, gguf.tensor(&tensor.name)) else { continue };
            let part = parts.iter().position(|part| part.path() == there.file());
            let file = files::model_part(part.unwrap_or_default() + 1, parts.len());
            self.record(id, tensor, there.dtype(), file);
        }
        Ok(origin)
    }

    /// Writes `planned` into one GGUF, or into one for each role group.
    pub(crate) fn write(
        &mut self,
        metadata: &Metadata,
        planned: Vec<Planned<'_>>,
        groups: Option<&dyn Fn(Option<TensorId>) -> Group>,
        forget: Forget<'_>,
    ) -> Result<Vec<(TensorId, Deviation)>, VindexError> {
        let mut outputs: Vec<(String, FileKind, Vec<Planned<'_>>)> = Vec::new();
        match groups {
            None => outputs.push((files::MODEL.to_owned(), FileKind::Model, planned)),
            Some(group_of) => {
                for group in Group::ALL {
                    let members: Vec<_> =
                        planned.iter().filter(|t| group_of(t.id) == group).cloned().collect();
                    if !members.is_empty() {
                        outputs.push((group.file_name().to_owned(), FileKind::Weights, members));
                    }
                }
            }
        }
        let mut total = 0;
        for (_, _, members) in &outputs {
            total += write::planned_bytes(members);
        }
        self.progress.start("writing", total, "bytes");
        let mut deviations = Vec::new();
        for (i, (name, kind, members)) in outputs.into_iter().enumerate() {
            let mut metadata = metadata.clone();
            write::adapt_metadata(&mut metadata, &members);
            if i > 0 {
                remove_tokenizer(&mut metadata);
            }
            let path = self.staged.path().join(&name);
            let (threads, progress) = (self.threads, self.progress);
            let moved = write::write_gguf(&path, &metadata, &members, forget, threads, progress)?;
            for (tensor, moved) in members.iter().zip(moved) {
                if let Some(id) = tensor.id {
                    self.record(id, tensor, tensor.to, name.clone());
                    deviations.push((id, moved));
                }
            }
            self.files.push((name, kind));
        }
        self.progress.finish();
        Ok(deviations)
    }

    /// Writes the down projections of `layers` with one row per feature, from the weights put in
    /// so far. Dtype: that of the down projection where its rows can be stored and written so,
    /// else f16.
    pub(crate) fn write_down_features(
        &mut self,
        config: &ModelConfig,
        layers: Range<usize>,
    ) -> Result<Vec<Fallback>, VindexError> {
        let weights = self.open_weights()?;
        let find = |id: TensorId| {
            let name = id.to_string();
            weights.iter().find_map(|gguf| gguf.tensor(&name)).map(GgufTensor::matrix).ok_or_else(
                || VindexError::Option {
                    option: "--feature-major-down".to_owned(),
                    why: format!("{name} is not among the weights taken"),
                },
            )
        };
        let mut planned = Vec::new();
        let mut fallbacks = Vec::new();
        for layer in layers {
            let mut matrices = Vec::new();
            for part in config.ffn_downs(layer) {
                let matrix = find(TensorId::layer(part.role, layer))?;
                matrices.push(matrix.row_range(part.rows));
            }
            let name = down_features_name(layer);
            let from = matrices[0].dtype();
            let (to, fallback) = features_dtype(&name, from, config.hidden_size);
            fallbacks.extend(fallback);
            planned.push(Planned {
                id: None,
                name,
                shape: vec![config.hidden_size, config.n_features(layer)],
                from,
                to,
                rows: Rows::Columns(matrices),
            });
        }
        self.progress.start("transposing", write::planned_bytes(&planned), "bytes");
        let path = self.staged.path().join(files::DOWN_FEATURES);
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", config.family.name());
        metadata.set("general.type", "down_features");
        let forget = || forget_all(weights.iter().flat_map(Gguf::files));
        write::write_gguf(&path, &metadata, &planned, &forget, self.threads, self.progress)?;
        self.progress.finish();
        self.files.push((files::DOWN_FEATURES.to_owned(), FileKind::DownFeatures));
        Ok(fallbacks)
    }

    /// The weight files put in so far, opened.
    fn open_weights(&self) -> Result<Vec<Gguf>, VindexError> {
        let mut opened: Vec<Gguf> = Vec::new();
        for (name, kind) in &self.files {
            // The first part of a split model opens the others.
            if *kind == FileKind::Weights || (*kind == FileKind::Model && opened.is_empty()) {
                opened.push(Gguf::open(self.staged.path().join(name))?);
            }
        }
        Ok(opened)
    }

    /// Copies (or clones) a file in.
    pub(crate) fn copy(
        &mut self,
        source: &Path,
        name: &str,
        kind: FileKind,
    ) -> Result<(), VindexError> {
        link::bring(source, &self.staged.path().join(name), true, self.progress)?;
        self.files.push((name.to_owned(), kind));
        Ok(())
    }

    /// Copies the files of the source's tokenizer in.
    pub(crate) fn copy_tokenizer(&mut self, origin: &Origin) -> Result<(), VindexError> {
        for path in origin.tokenizer_files() {
            self.copy(&path, &base_name(&path), FileKind::Tokenizer)?;
        }
        Ok(())
    }

    /// Hashes every file, writes the manifest and puts the vindex in place. With `source_parts`,
    /// the source's files are these and are hashed, too, unless they are the linked ones.
    pub(crate) fn finish(
        self,
        mut head: Head,
        source_parts: &[PathBuf],
    ) -> Result<Manifest, VindexError> {
        let mut paths: Vec<PathBuf> =
            self.files.iter().map(|(name, _)| self.staged.path().join(name)).collect();
        let own = paths.len();
        let same = head.source.weights != WeightsOrigin::Written;
        if !same {
            paths.extend_from_slice(source_parts);
        }
        let hashes = hash_all(&paths, self.threads, self.progress)?;
        let source_hashes = if same { &hashes[..] } else { &hashes[own..] };
        for (part, hash) in source_parts.iter().zip(source_hashes) {
            head.source.files.push(crate::manifest::SourceFile {
                name: base_name(part),
                size: std::fs::metadata(part).map_err(VindexError::io("read", part))?.len(),
                sha256: hash.whole,
            });
        }
        let mut entries = Vec::with_capacity(own);
        for (((name, kind), path), hash) in self.files.iter().zip(&paths).zip(&hashes) {
            let linked = self.linked && *kind == FileKind::Model;
            entries.push(file_entry(name, *kind, path, hash, linked)?);
        }
        let manifest = Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            created_by: super::created_by(),
            level: head.level,
            layers: [head.layers.start, head.layers.end],
            source: head.source,
            model: head.model,
            files: entries,
            tensors: self.tensors,
            unknown_tensors: head.unknown_tensors,
        };
        if self.progress.cancelled() {
            return Err(VindexError::Cancelled { left: "nothing was written".to_owned() });
        }
        self.staged.commit(&manifest.to_vec()?)?;
        Ok(manifest)
    }

    fn record(&mut self, id: TensorId, tensor: &Planned<'_>, dtype: Dtype, file: String) {
        self.tensors.push(TensorEntry {
            name: tensor.name.clone(),
            id,
            file,
            dtype,
            shape: tensor.shape.clone(),
        });
    }
}

/// The dtype of a feature-major down projection.
fn features_dtype(name: &str, from: Dtype, hidden: usize) -> (Dtype, Option<Fallback>) {
    let why = if from.row_bytes(hidden).is_err() {
        format!("{hidden} columns are no multiple of {}", from.block_len())
    } else if write::check_dtype("", from).is_err() {
        format!("larql does not quantise to {from}")
    } else {
        return (from, None);
    };
    let fallback = Fallback {
        tensor: name.to_owned(),
        asked: from.name().to_owned(),
        got: Dtype::F16.name().to_owned(),
        why,
    };
    (Dtype::F16, Some(fallback))
}

/// Takes the pages of files out of this process's memory.
pub(super) fn forget_all<'m>(files: impl IntoIterator<Item = &'m Map>) -> Result<(), VindexError> {
    for map in files {
        map.forget()?;
    }
    Ok(())
}

/// A vocabulary in every file of a split would be megabytes of the same; the first file has it.
fn remove_tokenizer(metadata: &mut Metadata) {
    let keys: Vec<String> = metadata
        .iter()
        .map(|(key, _)| key.to_owned())
        .filter(|key| key.starts_with("tokenizer."))
        .collect();
    for key in keys {
        metadata.remove(&key);
    }
}

pub(crate) fn base_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Hashes files with a progress phase of its own.
fn hash_all(
    paths: &[PathBuf],
    threads: usize,
    progress: &dyn Progress,
) -> Result<Vec<FileHash>, VindexError> {
    let mut sizes = Vec::with_capacity(paths.len());
    for path in paths {
        sizes.push(std::fs::metadata(path).map_err(VindexError::io("read", path))?.len());
    }
    progress.start("hashing", hash::work(sizes), "bytes");
    let hashes = hash::hash_files(paths, threads, progress)?;
    progress.finish();
    Ok(hashes)
}

/// The entry of a finished file.
fn file_entry(
    name: &str,
    kind: FileKind,
    path: &Path,
    hash: &FileHash,
    linked: bool,
) -> Result<FileEntry, VindexError> {
    let meta = std::fs::metadata(path).map_err(VindexError::io("read", path))?;
    let modified = if linked {
        Some(Modified::of(&meta).map_err(VindexError::io("read", path))?)
    } else {
        None
    };
    Ok(FileEntry {
        name: name.to_owned(),
        kind,
        size: meta.len(),
        modified,
        sha256: Some(hash.whole),
        segments: hash.segments.clone(),
    })
}
