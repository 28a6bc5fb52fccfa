//! The manifest (`index.json`): what a vindex holds, from what it was made, which file and tensor
//! holds each role. docs/FORMAT.md describes every field; this is its reader and writer.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::SystemTime;

use larql_checkpoint::{ModelConfig, Role, TensorId};
use larql_compute::Dtype;
use serde::{Deserialize, Serialize};

use crate::VindexError;
use crate::files::{FileKind, Level, MANIFEST};
use crate::hash::{Sha, n_segments};

/// The value of the manifest's `format` field.
pub const FORMAT: &str = "larql-vindex";
/// The version that this build writes, and the newest that it reads.
pub const VERSION: u32 = 1;
/// A manifest is text of some hundred bytes a tensor; more than this is no manifest.
const MAX_BYTES: u64 = 64 << 20;

/// What a vindex holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Always [`FORMAT`].
    pub format: String,
    /// Format version.
    pub version: u32,
    /// Program and version that wrote it.
    pub created_by: String,
    /// Which roles are present.
    pub level: Level,
    /// Layers present: `[first, end)`.
    pub layers: [usize; 2],
    /// What it was made from.
    pub source: Source,
    /// The normalised model configuration.
    pub model: ModelConfig,
    /// Every file beside the manifest.
    pub files: Vec<FileEntry>,
    /// Every tensor with a role.
    pub tensors: Vec<TensorEntry>,
    /// Tensors of the source that larql has no role for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown_tensors: Vec<String>,
}

/// What a vindex was made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// File or directory name, without its path.
    pub name: String,
    /// What kind of checkpoint.
    pub format: String,
    /// How the weights came here.
    pub weights: WeightsOrigin,
    /// The files read, with their hashes.
    pub files: Vec<SourceFile>,
}

/// One file of the source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceFile {
    /// Name within the source's directory.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of the whole file.
    pub sha256: Sha,
}

/// How weight bytes came into the vindex, from most to least shared with the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightsOrigin {
    /// A hard link: the same file as the source's.
    Linked,
    /// A copy-on-write clone: private, sharing blocks until one of the two is written to.
    Reflinked,
    /// A private copy.
    Copied,
    /// Written by larql, in other files or another dtype than the source's.
    Written,
}

impl WeightsOrigin {
    /// The name used in the manifest.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linked => "linked",
            Self::Reflinked => "reflinked",
            Self::Copied => "copied",
            Self::Written => "written",
        }
    }
}

impl std::fmt::Display for WeightsOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// One file of the vindex.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Name within the vindex.
    pub name: String,
    /// What it holds.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Modification time, for linked files only: others belong to the vindex alone, and copying a
    /// vindex changes their times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified: Option<Modified>,
    /// SHA-256 of the whole file; absent while a derived file is still being filled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Sha>,
    /// SHA-256 of every segment of 64 MiB, for files larger than one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<Sha>,
}

/// Seconds and nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Modified(pub u64, pub u32);

impl Modified {
    /// The modification time of a file; times before 1970 are taken as 1970.
    pub fn of(meta: &std::fs::Metadata) -> std::io::Result<Self> {
        let since = meta.modified()?.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(Self(since.as_secs(), since.subsec_nanos()))
    }
}

impl std::fmt::Display for Modified {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:09}", self.0, self.1)
    }
}

/// One tensor with a role.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// Name in the GGUF.
    pub name: String,
    /// Role and layer.
    #[serde(flatten)]
    pub id: TensorId,
    /// The file, one of [`Manifest::files`].
    pub file: String,
    /// Block format.
    #[serde(with = "dtype_name")]
    pub dtype: Dtype,
    /// Shape in GGUF's order, columns first.
    pub shape: Vec<usize>,
}

mod dtype_name {
    use larql_compute::Dtype;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        dtype: &Dtype,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(dtype.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Dtype, D::Error> {
        let name = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Dtype::from_name(&name).ok_or_else(|| D::Error::custom(format!("unknown dtype `{name}`")))
    }
}

/// The two fields that every version has, read before anything else.
#[derive(Deserialize)]
struct Preamble {
    format: String,
    version: u64,
}

impl Manifest {
    /// Reads and checks the manifest of the vindex in `dir`.
    ///
    /// # Errors
    /// [`VindexError::NotAVindex`], [`VindexError::NewerVersion`], [`VindexError::Manifest`], the
    /// system's.
    pub fn read(dir: &Path) -> Result<Self, VindexError> {
        let path = dir.join(MANIFEST);
        let not_a_vindex = |why: String| VindexError::NotAVindex { path: dir.to_path_buf(), why };
        let meta = match std::fs::metadata(&path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(not_a_vindex(format!("it has no {MANIFEST}")));
            }
            Err(error) => return Err(VindexError::io("read", &path)(error)),
        };
        if meta.len() > MAX_BYTES {
            let why = format!("{MANIFEST} has {} bytes, more than any manifest", meta.len());
            return Err(not_a_vindex(why));
        }
        let bytes = std::fs::read(&path).map_err(VindexError::io("read", &path))?;
        Self::from_slice(&bytes).map_err(|fault| match fault {
            ManifestFault::NotAVindex(why) => not_a_vindex(why),
            ManifestFault::Newer(found) => {
                VindexError::NewerVersion { path: path.clone(), found, supported: VERSION }
            }
            ManifestFault::Invalid(why) => VindexError::Manifest { path: path.clone(), why },
        })
    }

    /// Reads and checks a manifest's bytes.
    ///
    /// # Errors
    /// A fault in the text, a version newer than [`VERSION`], fields that contradict each other.
    pub fn from_slice(bytes: &[u8]) -> Result<Self, ManifestFault> {
        let preamble: Preamble = serde_json::from_slice(bytes)
            .map_err(|e| ManifestFault::NotAVindex(format!("{MANIFEST}: {e}")))?;
        if preamble.format != FORMAT {
            let why = format!("{MANIFEST} says format `{}`, not `{FORMAT}`", preamble.format);
            return Err(ManifestFault::NotAVindex(why));
        }
        if preamble.version > u64::from(VERSION) {
            return Err(ManifestFault::Newer(preamble.version));
        }
        let manifest: Self =
            serde_json::from_slice(bytes).map_err(|e| ManifestFault::Invalid(e.to_string()))?;
        manifest.check().map_err(ManifestFault::Invalid)?;
        Ok(manifest)
    }

    /// The manifest as JSON text.
    ///
    /// # Errors
    /// [`VindexError::Manifest`] where a number in the configuration is not finite.
    pub fn to_vec(&self) -> Result<Vec<u8>, VindexError> {
        let fault = |e: serde_json::Error| VindexError::Manifest {
            path: MANIFEST.into(),
            why: e.to_string(),
        };
        let mut bytes = serde_json::to_vec_pretty(self).map_err(fault)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// The entry of a file.
    pub fn file(&self, name: &str) -> Option<&FileEntry> {
        self.files.iter().find(|file| file.name == name)
    }

    /// Bytes of all files with weights.
    pub fn weight_bytes(&self) -> u64 {
        self.files.iter().filter(|f| !f.kind.is_derived()).map(|f| f.size).sum()
    }

    /// What the fields must satisfy together. Order: model, files, layers, tensors, because each
    /// is checked against the ones before it, and the model's caps bound what is allocated for it.
    fn check(&self) -> Result<(), String> {
        self.model.validate().map_err(|fault| format!("model: {fault}"))?;
        self.check_files()?;
        let [first, end] = self.layers;
        if first >= end || end > self.model.n_layers {
            return Err(format!(
                "layers: [{first}, {end}] is not a range of the model's {} layers",
                self.model.n_layers
            ));
        }
        self.check_tensors()
    }

    fn check_files(&self) -> Result<(), String> {
        let mut names = HashSet::new();
        let mut total = 0u64;
        for file in &self.files {
            check_name(&file.name)?;
            total = total
                .checked_add(file.size)
                .ok_or_else(|| format!("files: the sizes overflow at `{}`", file.name))?;
            if !names.insert(file.name.as_str()) {
                return Err(format!("files: `{}` stands there twice", file.name));
            }
            let expected = n_segments(file.size);
            if file.sha256.is_some() && file.segments.len() != expected {
                return Err(format!(
                    "files: `{}` of {} bytes has {} segment hashes, not {expected}",
                    file.name,
                    file.size,
                    file.segments.len()
                ));
            }
            if file.sha256.is_none() && !file.kind.is_derived() {
                return Err(format!("files: `{}` has no sha256", file.name));
            }
        }
        if !self.files.iter().any(|f| matches!(f.kind, FileKind::Model | FileKind::Weights)) {
            return Err("files: there is no weight file".to_owned());
        }
        Ok(())
    }

    fn check_tensors(&self) -> Result<(), String> {
        let [first, end] = self.layers;
        let shapes: HashMap<TensorId, Vec<usize>> =
            self.model.tensors().into_iter().map(|spec| (spec.id, spec.shape)).collect();
        let kinds: HashMap<&str, FileKind> =
            self.files.iter().map(|file| (file.name.as_str(), file.kind)).collect();
        let mut ids = HashSet::new();
        for tensor in &self.tensors {
            let name = &tensor.name;
            if !ids.insert(tensor.id) {
                return Err(format!("tensors: `{name}`: its role and layer stand there twice"));
            }
            if tensor.id.layer.is_some_and(|layer| layer < first || layer >= end) {
                return Err(format!("tensors: `{name}` lies outside layers [{first}, {end}]"));
            }
            if tensor.id.layer.is_some() != tensor.id.role.per_layer() {
                return Err(format!("tensors: `{name}`: its role does not go with its layer"));
            }
            if !matches!(kinds.get(&*tensor.file), Some(FileKind::Model | FileKind::Weights)) {
                return Err(format!("tensors: `{name}`: `{}` is no weight file", tensor.file));
            }
            check_shape(tensor).map_err(|why| format!("tensors: `{name}`: {why}"))?;
            match shapes.get(&tensor.id) {
                Some(shape) if trimmed(shape) == trimmed(&tensor.shape) => {}
                // Older files have it in place of two others.
                None if tensor.id.role == Role::AttnKvB => {}
                Some(shape) => {
                    let found = &tensor.shape;
                    return Err(format!("tensors: `{name}` is {found:?}, the model's {shape:?}"));
                }
                None => return Err(format!("tensors: the model has no `{name}`")),
            }
        }
        Ok(())
    }
}

/// Why bytes are not a manifest; [`VindexError`] without the path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestFault {
    /// Not a manifest at all.
    #[error("{0}")]
    NotAVindex(String),
    /// Written by a later larql: its version.
    #[error("format version {0} is newer than {VERSION}")]
    Newer(u64),
    /// A field is missing, mistyped, or contradicts another.
    #[error("{0}")]
    Invalid(String),
}

/// File names are plain: they cannot lead out of the vindex. Only `ann/` is a directory.
fn check_name(name: &str) -> Result<(), String> {
    let plain = name.strip_prefix("ann/").unwrap_or(name);
    let fine = !plain.is_empty()
        && !plain.starts_with('.')
        && plain.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        && plain != MANIFEST;
    if fine { Ok(()) } else { Err(format!("files: `{name}` is not a plain file name")) }
}

/// A shape without the dimensions of 1 at its end, which some writers drop.
fn trimmed(shape: &[usize]) -> &[usize] {
    let len = shape.iter().rposition(|&n| n != 1).map_or(0, |last| last + 1);
    &shape[..len]
}

fn check_shape(tensor: &TensorEntry) -> Result<(), String> {
    if tensor.shape.is_empty() || tensor.shape.len() > 4 || tensor.shape.contains(&0) {
        return Err(format!("{:?} is no shape", tensor.shape));
    }
    let row = tensor.dtype.row_bytes(tensor.shape[0]).map_err(|e| e.to_string())?;
    let bytes = tensor.shape[1..].iter().try_fold(row, |bytes, &n| bytes.checked_mul(n));
    bytes.map(|_| ()).ok_or_else(|| format!("{:?} overflows", tensor.shape))
}
