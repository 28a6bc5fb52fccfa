//! `Vindex`: an opened vindex. Opening checks everything that the accessors rely on, once: the
//! manifest, that every file is there with its recorded size (and, for linked files, modification
//! time), and that every GGUF header says what the manifest says. Afterwards a matrix is a lookup
//! and a slice of a mapping; no weight is copied to the heap.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use larql_checkpoint::gguf::{Gguf, GgufTensor};
use larql_checkpoint::tokenizer::Tokenizer;
use larql_checkpoint::{Advice, ModelConfig, Role, TensorId};
use larql_compute::Matrix;

use crate::error::TensorMismatch;
use crate::files::{self, FileKind, Level};
use crate::manifest::{FileEntry, Manifest, Modified, TensorEntry};
use crate::{VindexError, atomic};

/// An opened vindex. Cheap to share by reference between threads; all bytes are read-only maps.
#[derive(Debug)]
pub struct Vindex {
    dir: PathBuf,
    manifest: Manifest,
    weights: Vec<Gguf>,
    tensors: HashMap<TensorId, GgufTensor>,
    down_features: Option<Gguf>,
    extra_files: Vec<String>,
    missing_files: Vec<String>,
    tokenizer: OnceLock<Tokenizer>,
}

impl Vindex {
    /// Opens the vindex in directory `path`.
    ///
    /// # Errors
    /// Not a vindex; a newer format; a file that is missing, has another size or (linked) another
    /// modification time than recorded; a GGUF header that contradicts the manifest. The message
    /// names the command that repairs it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, VindexError> {
        let dir = path.as_ref();
        check_directory(dir)?;
        let manifest = Manifest::read(dir)?;
        let mut missing_files = Vec::new();
        for entry in &manifest.files {
            if !check_file(dir, &manifest, entry)? {
                missing_files.push(entry.name.clone());
            }
        }
        let (weights, by_name) = open_weights(dir, &manifest)?;
        let mut tensors = HashMap::with_capacity(manifest.tensors.len());
        for entry in &manifest.tensors {
            let file = by_name[entry.file.as_str()];
            tensors.insert(entry.id, proven(&weights[file], dir, &manifest, entry)?);
        }
        let down_features = open_down_features(dir, &manifest, &missing_files)?;
        let extra_files = extra_files(dir, &manifest)?;
        let vindex = Self {
            dir: dir.to_path_buf(),
            manifest,
            weights,
            tensors,
            down_features,
            extra_files,
            missing_files,
            tokenizer: OnceLock::new(),
        };
        vindex.advise()?;
        Ok(vindex)
    }

    /// The directory that it was opened from.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.manifest.model
    }

    /// Which roles are present.
    pub fn level(&self) -> Level {
        self.manifest.level
    }

    /// The layers present; all of the model's unless it was extracted or sliced with a range.
    pub fn layers(&self) -> Range<usize> {
        self.manifest.layers[0]..self.manifest.layers[1]
    }

    /// The weight files, in the manifest's order.
    pub fn weights(&self) -> &[Gguf] {
        &self.weights
    }

    /// Files in the directory that the manifest does not name. They are never read.
    pub fn extra_files(&self) -> &[String] {
        &self.extra_files
    }

    /// Derived files that the manifest names and that are gone (they can be built again).
    pub fn missing_files(&self) -> &[String] {
        &self.missing_files
    }

    /// The path of a derived file of this vindex, whether it exists or not.
    pub fn file_path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A tensor as rows of blocks; `None` where this vindex does not hold it. Stacked experts are
    /// one matrix of `n_experts * rows` rows; a vector is a matrix of one row.
    pub fn matrix(&self, id: TensorId) -> Option<Matrix<'_>> {
        self.tensor(id).map(GgufTensor::matrix)
    }

    /// A tensor with its name, shape and place; `None` where this vindex does not hold it.
    pub fn tensor(&self, id: TensorId) -> Option<&GgufTensor> {
        self.tensors.get(&id)
    }

    /// As [`Vindex::matrix`], but absence is an error that names level and remedy.
    ///
    /// # Errors
    /// [`VindexError::Absent`], [`VindexError::NoSuchLayer`].
    pub fn require(&self, id: TensorId) -> Result<Matrix<'_>, VindexError> {
        self.matrix(id).ok_or_else(|| self.absent(id))
    }

    /// All elements of a tensor as f32: norm weights, biases, routers. Not for large matrices.
    ///
    /// # Errors
    /// As [`Vindex::require`].
    pub fn vector(&self, id: TensorId) -> Result<Vec<f32>, VindexError> {
        let matrix = self.require(id)?;
        let mut out = vec![0.0; matrix.rows() * matrix.cols()];
        larql_compute::dequantize_row(matrix.dtype(), matrix.bytes(), &mut out);
        Ok(out)
    }

    /// The unembedding: the LM head, or the input embedding where the two are tied.
    ///
    /// # Errors
    /// As [`Vindex::require`].
    pub fn unembedding(&self) -> Result<Matrix<'_>, VindexError> {
        let role = if self.config().tied { Role::TokenEmbd } else { Role::Output };
        self.require(TensorId::global(role))
    }

    /// The down projections of `layer` with one row per feature, `[n_features, hidden]`; `None`
    /// unless made with `--feature-major-down`.
    pub fn down_features(&self, layer: usize) -> Option<Matrix<'_>> {
        let file = self.down_features.as_ref()?;
        file.tensor(&down_features_name(layer)).map(GgufTensor::matrix)
    }

    /// The file with the down projections, one row per feature.
    pub(crate) fn down_features_file(&self) -> Option<&Gguf> {
        self.down_features.as_ref()
    }

    /// Number of features of `layer`, shared experts included.
    ///
    /// # Errors
    /// [`VindexError::NoSuchLayer`].
    pub fn n_features(&self, layer: usize) -> Result<usize, VindexError> {
        self.check_layer(layer)?;
        Ok(self.config().n_features(layer))
    }

    /// Refuses a layer that the model does not have.
    ///
    /// # Errors
    /// [`VindexError::NoSuchLayer`].
    pub fn check_layer(&self, layer: usize) -> Result<(), VindexError> {
        let n_layers = self.config().n_layers;
        if layer < n_layers { Ok(()) } else { Err(VindexError::NoSuchLayer { layer, n_layers }) }
    }

    /// The tokenizer, built on first use: from `tokenizer.json` where the source had one, else
    /// from the metadata of the first weight file.
    ///
    /// # Errors
    /// A tokenizer that larql cannot build.
    pub fn tokenizer(&self) -> Result<&Tokenizer, VindexError> {
        if let Some(tokenizer) = self.tokenizer.get() {
            return Ok(tokenizer);
        }
        let built = if self.manifest.file(files::TOKENIZER).is_some() {
            Tokenizer::from_checkpoint_dir(&self.dir)?
        } else {
            Tokenizer::from_gguf(self.weights[0].metadata())?
        };
        // Another thread may have been faster; its tokenizer is as good.
        Ok(self.tokenizer.get_or_init(|| built))
    }

    fn absent(&self, id: TensorId) -> VindexError {
        if let Some(layer) = id.layer
            && let Err(error) = self.check_layer(layer)
        {
            return error;
        }
        let layers = self.layers();
        let all = layers.len() == self.config().n_layers;
        let needed = files::group_of(id.role, false).level();
        VindexError::Absent {
            path: self.dir.clone(),
            tensor: id.to_string(),
            level: self.level(),
            layers: if all {
                String::new()
            } else {
                format!(", layers {}..{}", layers.start, layers.end)
            },
            add: if needed > self.level() || !all {
                let level = needed.max(self.level());
                format!(
                    "`{} --level {level} --force` adds it",
                    extract_command(&self.dir, &self.manifest)
                )
            } else {
                format!("the model ({}) has no such tensor", self.config().family.name())
            },
        }
    }

    /// Tells the kernel how each role is going to be read.
    fn advise(&self) -> Result<(), VindexError> {
        for entry in &self.manifest.tensors {
            let advice = advice(entry.id.role, self.config().tied);
            if advice == Advice::Normal {
                continue;
            }
            if let Some(tensor) = self.tensor(entry.id) {
                tensor.map().advise(tensor.range(), advice)?;
            }
        }
        Ok(())
    }
}

/// How the rows of a role are read; the one table of it. Matrices are scanned whole (gate KNN,
/// labels, a forward pass), and switching read-ahead off makes a cold scan twenty times slower
/// (31 MB/s instead of 714 on a virtual disk). Only lookups of single rows gain from it: embeddings
/// that are not the unembedding at the same time (`tied`), and learned positions.
pub fn advice(role: Role, tied: bool) -> Advice {
    match role {
        Role::TokenEmbd if !tied => Advice::Random,
        Role::PositionEmbd => Advice::Random,
        _ => Advice::Normal,
    }
}

/// The name of a layer's tensor in `down_features.gguf`.
pub(crate) fn down_features_name(layer: usize) -> String {
    format!("blk.{layer}.down_features.weight")
}

/// The command that makes this vindex again.
pub(crate) fn extract_command(dir: &Path, manifest: &Manifest) -> String {
    format!("larql extract-index {} -o {}", manifest.source.name, dir.display())
}

fn repair(dir: &Path, manifest: &Manifest) -> String {
    format!("extract again with `{} --force`", extract_command(dir, manifest))
}

fn check_directory(dir: &Path) -> Result<(), VindexError> {
    let path = dir.to_path_buf();
    match std::fs::metadata(dir) {
        Ok(_) if atomic::is_temporary(dir) => Err(VindexError::Unfinished { path }),
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(VindexError::NotAVindex { path, why: "it is a file".to_owned() }),
        Err(source) => Err(match atomic::aside_of(dir) {
            Some(aside) => VindexError::Interrupted { path, aside },
            None => VindexError::Io { action: "open", path, source },
        }),
    }
}

/// Checks a file against its entry; `false` for a derived file that is gone.
fn check_file(dir: &Path, manifest: &Manifest, entry: &FileEntry) -> Result<bool, VindexError> {
    let path = dir.join(&entry.name);
    let meta = match std::fs::metadata(&path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if entry.kind.is_derived() {
                return Ok(false);
            }
            return Err(VindexError::MissingFile { path, repair: repair(dir, manifest) });
        }
        Err(error) => return Err(VindexError::io("read", &path)(error)),
    };
    if meta.len() != entry.size {
        return Err(VindexError::FileSize {
            path,
            expected: entry.size,
            found: meta.len(),
            repair: repair(dir, manifest),
        });
    }
    let Some(expected) = entry.modified else { return Ok(true) };
    let found = Modified::of(&meta).map_err(VindexError::io("read", &path))?;
    if found != expected {
        return Err(VindexError::SourceChanged {
            path,
            vindex: dir.to_path_buf(),
            expected,
            found,
            repair: repair(dir, manifest),
        });
    }
    Ok(true)
}

/// Opens every weight file. Parts of a split GGUF are opened by their first part. The map says
/// which of the returned files holds the tensors of a file name.
fn open_weights<'a>(
    dir: &Path,
    manifest: &'a Manifest,
) -> Result<(Vec<Gguf>, HashMap<&'a str, usize>), VindexError> {
    let mut weights: Vec<Gguf> = Vec::new();
    let mut by_name = HashMap::new();
    let mut model = None;
    for entry in &manifest.files {
        let open = |weights: &mut Vec<Gguf>| -> Result<usize, VindexError> {
            weights.push(Gguf::open(dir.join(&entry.name))?);
            Ok(weights.len() - 1)
        };
        let index = match entry.kind {
            FileKind::Weights => open(&mut weights)?,
            FileKind::Model => match model {
                Some(index) => index,
                None => *model.insert(open(&mut weights)?),
            },
            _ => continue,
        };
        by_name.insert(entry.name.as_str(), index);
    }
    Ok((weights, by_name))
}

/// A manifest's tensor in its file, which must agree about dtype, shape and, among the parts of a
/// split model, the place.
fn proven(
    gguf: &Gguf,
    dir: &Path,
    manifest: &Manifest,
    entry: &TensorEntry,
) -> Result<GgufTensor, VindexError> {
    let mismatch = |what, expected: String, found: String| {
        VindexError::TensorMismatch(Box::new(TensorMismatch {
            path: dir.join(&entry.file),
            tensor: entry.name.clone(),
            what,
            expected,
            found,
            repair: repair(dir, manifest),
        }))
    };
    let Some(tensor) = gguf.tensor(&entry.name) else {
        return Err(mismatch("presence", "present".to_owned(), "absent".to_owned()));
    };
    if tensor.file().file_name() != Some(entry.file.as_ref()) {
        let found = tensor.file().display().to_string();
        return Err(mismatch("file", entry.file.clone(), found));
    }
    if tensor.dtype() != entry.dtype {
        return Err(mismatch("dtype", entry.dtype.to_string(), tensor.dtype().to_string()));
    }
    if tensor.shape() != entry.shape {
        let (expected, found) = (&entry.shape, tensor.shape());
        return Err(mismatch("shape", format!("{expected:?}"), format!("{found:?}")));
    }
    Ok(tensor.clone())
}

fn open_down_features(
    dir: &Path,
    manifest: &Manifest,
    missing: &[String],
) -> Result<Option<Gguf>, VindexError> {
    let kind = FileKind::DownFeatures;
    let Some(entry) = manifest.files.iter().find(|file| file.kind == kind) else {
        return Ok(None);
    };
    if missing.contains(&entry.name) {
        return Ok(None);
    }
    let path = dir.join(&entry.name);
    let gguf = Gguf::open(&path)?;
    for layer in manifest.layers[0]..manifest.layers[1] {
        let name = down_features_name(layer);
        let expected = [manifest.model.hidden_size, manifest.model.n_features(layer)];
        let found = gguf.tensor(&name).map(|tensor| tensor.shape().to_vec());
        if found.as_deref() != Some(&expected) {
            let mismatch = TensorMismatch {
                path,
                tensor: name,
                what: "shape",
                expected: format!("{expected:?}"),
                found: found.map_or_else(|| "absent".to_owned(), |shape| format!("{shape:?}")),
                repair: "delete it and build it again with `larql extract-index \
                         --feature-major-down --force`"
                    .to_owned(),
            };
            return Err(VindexError::TensorMismatch(Box::new(mismatch)));
        }
    }
    Ok(Some(gguf))
}

/// Names in the directory that the manifest does not explain.
pub(crate) fn extra_files(dir: &Path, manifest: &Manifest) -> Result<Vec<String>, VindexError> {
    let mut extra = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(VindexError::io("list", dir))? {
        let entry = entry.map_err(VindexError::io("list", dir))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let known = name == files::MANIFEST
            || name == atomic::LOCK
            || name == files::LM_HEAD_PLANES
            || name == files::FEATURE_MEANS
            || manifest.file(&name).is_some()
            || (name == "ann" && manifest.files.iter().any(|f| f.kind == FileKind::Ann));
        if !known {
            extra.push(name);
        }
    }
    extra.sort();
    Ok(extra)
}
