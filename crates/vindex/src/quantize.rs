//! `convert quantize`: the same model in another dtype, and how far its values moved.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use larql_checkpoint::{Role, TensorId};
use larql_compute::Dtype;
use serde::Serialize;

use crate::extract::build::{Build, Head};
use crate::extract::{Deviation, Fallback, FileSize, Origin, file_sizes, write};
use crate::files::Level;
use crate::manifest::WeightsOrigin;
use crate::{Progress, VindexError};

/// What to make.
#[derive(Debug, Clone)]
pub struct QuantizeOptions {
    /// The dtype of matrices; vectors, norms and routers stay f32.
    pub dtype: Dtype,
    /// Also write the down projections with one row per feature.
    pub feature_major_down: bool,
    /// Replace an existing vindex.
    pub force: bool,
    /// Worker threads; `None` for one per core.
    pub threads: Option<usize>,
}

/// Size and error of a quantisation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QuantizeReport {
    /// The new vindex.
    pub path: PathBuf,
    /// Its files, without the manifest.
    pub files: Vec<FileSize>,
    /// One row a role that has matrices.
    pub roles: Vec<RoleError>,
    /// Tensors that did not get the dtype asked for.
    pub fallbacks: Vec<Fallback>,
    /// Wall-clock time.
    pub seconds: f64,
}

/// The matrices of one role before and after.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RoleError {
    /// The role's name.
    pub role: String,
    /// Number of tensors.
    pub tensors: usize,
    /// Bytes in the source.
    pub source_bytes: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Root mean squared difference of the elements.
    pub rmse: f64,
    /// Norm of the difference over the norm of the source's values.
    pub relative: f64,
}

/// Writes the weights of `source` (a model's files, or a vindex) as `options.dtype` to the new
/// vindex `destination`. Labels are not taken along: they describe the source's values.
///
/// # Errors
/// A source that larql cannot read, or that holds a value that is not finite; a dtype without a
/// quantiser; a destination that exists or cannot be written; [`VindexError::Cancelled`]. Nothing
/// is left behind.
pub fn quantize(
    source: &Path,
    destination: &Path,
    options: &QuantizeOptions,
    progress: &dyn Progress,
) -> Result<QuantizeReport, VindexError> {
    let started = std::time::Instant::now();
    write::check_dtype(options.dtype.name(), options.dtype)?;
    let origin = Origin::open(source)?;
    let config = origin.config();
    let (level, layers) = match &origin {
        Origin::Vindex(vindex) => (vindex.level(), vindex.layers()),
        Origin::Model { .. } => (Level::All, 0..config.n_layers),
    };
    let (planned, mut fallbacks) = origin.plan(Some(options.dtype), &|id| id.is_some());
    let sizes: Vec<(TensorId, u64, u64)> = planned
        .iter()
        .filter_map(|t| Some((t.id?, t.bytes_as(t.from), t.bytes_as(t.to), t.shape.len())))
        .filter(|&(.., dims)| dims > 1)
        .map(|(id, before, after, _)| (id, before, after))
        .collect();
    let mut build = Build::begin(destination, options.force, options.threads, progress)?;
    let moved = build.write(&origin.metadata()?, planned, None, &|| origin.forget())?;
    let moved: BTreeMap<TensorId, Deviation> = moved.into_iter().collect();
    if options.feature_major_down {
        fallbacks.extend(build.write_down_features(config, layers.clone())?);
    }
    build.copy_tokenizer(&origin)?;
    let head = Head {
        level,
        layers,
        source: origin.record(source, WeightsOrigin::Written),
        model: config.clone(),
        unknown_tensors: origin.unknown_tensors().to_vec(),
    };
    let manifest = build.finish(head, &origin.parts()?)?;
    Ok(QuantizeReport {
        path: destination.to_path_buf(),
        files: file_sizes(&manifest),
        roles: by_role(&sizes, &moved),
        fallbacks,
        seconds: started.elapsed().as_secs_f64(),
    })
}

fn by_role(
    sizes: &[(TensorId, u64, u64)],
    moved: &BTreeMap<TensorId, Deviation>,
) -> Vec<RoleError> {
    let mut roles: BTreeMap<Role, (RoleError, Deviation)> = BTreeMap::new();
    for &(id, before, after) in sizes {
        let (row, sum) = roles.entry(id.role).or_insert_with(|| {
            let role = id.role.to_string();
            let empty =
                RoleError { role, tensors: 0, source_bytes: 0, bytes: 0, rmse: 0.0, relative: 0.0 };
            (empty, Deviation::default())
        });
        row.tensors += 1;
        row.source_bytes += before;
        row.bytes += after;
        if let Some(deviation) = moved.get(&id) {
            sum.add(deviation);
        }
    }
    let rows = roles.into_values().map(|(row, sum)| RoleError {
        rmse: sum.rmse(),
        relative: sum.relative(),
        ..row
    });
    rows.collect()
}
