//! From a model to a vindex.
//!
//! A GGUF's weights are linked, not copied, unless an option asks for other files than the
//! source's; safetensors become GGUF row by row. The vindex appears at its destination with one
//! rename, complete or not at all.

pub(crate) mod build;
mod link;
mod origin;
pub(crate) mod rows;
pub(crate) mod write;

use std::ops::Range;
use std::path::{Path, PathBuf};

use larql_checkpoint::ModelConfig;
use larql_compute::Dtype;
use serde::Serialize;

use crate::files::{FileKind, Level};
use crate::manifest::{Manifest, WeightsOrigin};
use crate::{Progress, VindexError};
use build::{Build, Head};
pub(crate) use origin::Origin;
pub use rows::Deviation;
pub use write::Fallback;

/// What to extract, and how.
#[derive(Debug, Clone)]
pub struct ExtractOptions {
    /// Which roles to include.
    pub level: Level,
    /// Only these layers; `None` for all.
    pub layers: Option<Range<usize>>,
    /// Never share the source's file: the weights are a private copy.
    pub copy: bool,
    /// Store matrices as this dtype; `None` keeps the source's.
    pub dtype: Option<Dtype>,
    /// One GGUF per role group instead of one for all.
    pub split: bool,
    /// Also write the down projections with one row per feature.
    pub feature_major_down: bool,
    /// Replace an existing vindex.
    pub force: bool,
    /// Worker threads; `None` for one per core.
    pub threads: Option<usize>,
}

impl Default for ExtractOptions {
    fn default() -> Self {
        Self {
            level: Level::All,
            layers: None,
            copy: false,
            dtype: None,
            split: false,
            feature_major_down: false,
            force: false,
            threads: None,
        }
    }
}

/// What an extraction did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExtractReport {
    /// The vindex.
    pub path: PathBuf,
    /// Which roles it holds.
    pub level: Level,
    /// How the weights came there.
    pub weights: WeightsOrigin,
    /// Its files, without the manifest.
    pub files: Vec<FileSize>,
    /// Tensors with a role.
    pub n_tensors: usize,
    /// Tensors that did not get the dtype asked for.
    pub fallbacks: Vec<Fallback>,
    /// Tensors of the source that larql has no role for.
    pub unknown_tensors: Vec<String>,
    /// Leftovers of interrupted extractions of the same name, now removed.
    pub removed_leftovers: Vec<PathBuf>,
    /// Wall-clock time.
    pub seconds: f64,
}

/// A file and its size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileSize {
    /// Name within the vindex.
    pub name: String,
    /// What it holds.
    pub kind: FileKind,
    /// Bytes.
    pub size: u64,
}

/// The files of a manifest, as rows.
pub(crate) fn file_sizes(manifest: &Manifest) -> Vec<FileSize> {
    let row = |f: &crate::FileEntry| FileSize { name: f.name.clone(), kind: f.kind, size: f.size };
    manifest.files.iter().map(row).collect()
}

/// Makes the vindex `destination` from the model `source`: a GGUF file (the first one of a split
/// model) or a directory with safetensors files.
///
/// # Errors
/// A source that larql cannot read; an option that does not fit it; a destination that exists or
/// cannot be written; [`VindexError::Cancelled`]. Nothing is left behind.
pub fn extract(
    source: &Path,
    destination: &Path,
    options: &ExtractOptions,
    progress: &dyn Progress,
) -> Result<ExtractReport, VindexError> {
    let started = std::time::Instant::now();
    check_options(options)?;
    let origin = Origin::open_model(source)?;
    let config = origin.config();
    let layers = check_layers(options.layers.as_ref(), config)?;
    let up_holds_keys = crate::files::up_holds_keys(config);
    let level = options.level;
    let keep = |id: Option<larql_checkpoint::TensorId>| match id {
        None => level == Level::All,
        Some(id) => {
            id.layer.is_none_or(|layer| layers.contains(&layer))
                && write::is_included(id.role, up_holds_keys, level)
        }
    };
    let (planned, mut fallbacks) = origin.plan(options.dtype, &keep);
    let mut build = Build::begin(destination, options.force, options.threads, progress)?;
    let linkable = options.dtype.is_none() && !options.split;
    let weights = match origin.gguf().filter(|_| linkable) {
        Some(gguf) => build.link(gguf, &planned, options.copy)?,
        None => {
            let group = |id: Option<larql_checkpoint::TensorId>| match id {
                None => crate::files::Group::Other,
                Some(id) => crate::files::group_of(id.role, up_holds_keys),
            };
            let groups: Option<&dyn Fn(_) -> _> = if options.split { Some(&group) } else { None };
            build.write(&origin.metadata()?, planned, groups, &|| origin.forget())?;
            WeightsOrigin::Written
        }
    };
    if options.feature_major_down {
        fallbacks.extend(build.write_down_features(config, layers.clone())?);
    }
    build.copy_tokenizer(&origin)?;
    let removed_leftovers = build.removed().to_vec();
    let head = Head {
        level,
        layers,
        source: origin.record(source, weights),
        model: config.clone(),
        unknown_tensors: origin.unknown_tensors().to_vec(),
    };
    let manifest = build.finish(head, &origin.parts()?)?;
    Ok(ExtractReport {
        path: destination.to_path_buf(),
        level,
        weights,
        files: file_sizes(&manifest),
        n_tensors: manifest.tensors.len(),
        fallbacks,
        unknown_tensors: manifest.unknown_tensors,
        removed_leftovers,
        seconds: started.elapsed().as_secs_f64(),
    })
}

fn check_options(options: &ExtractOptions) -> Result<(), VindexError> {
    if let Some(dtype) = options.dtype {
        write::check_dtype(&format!("--dtype {dtype}"), dtype)?;
    }
    if options.feature_major_down && options.level < Level::Inference {
        return Err(VindexError::Option {
            option: "--feature-major-down".to_owned(),
            why: format!("level {} has no down projections; use --level inference", options.level),
        });
    }
    Ok(())
}

/// The layers asked for, or all.
pub(crate) fn check_layers(
    asked: Option<&Range<usize>>,
    config: &ModelConfig,
) -> Result<Range<usize>, VindexError> {
    let all = 0..config.n_layers;
    let Some(layers) = asked.cloned() else { return Ok(all) };
    if layers.is_empty() || layers.end > all.end {
        return Err(VindexError::Option {
            option: format!("--layers {}..{}", layers.start, layers.end),
            why: format!("the model has layers 0..{}", all.end),
        });
    }
    Ok(layers)
}

/// Worker threads where the user does not say.
pub(crate) fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What stands in the manifest's `created_by`.
pub(crate) fn created_by() -> String {
    concat!("larql ", env!("CARGO_PKG_VERSION")).to_owned()
}
