//! GGUF files written tensor by tensor: which dtype each gets, and the streaming itself.

use std::fs::File;
use std::path::Path;

use larql_checkpoint::gguf::{GgufWriter, Metadata};
use larql_checkpoint::{Role, TensorId};
use larql_compute::Dtype;
use serde::Serialize;

use super::rows::{Deviation, Rows};
use crate::{Progress, VindexError};

/// Takes the source's pages out of this process's memory.
pub(crate) type Forget<'f> = &'f dyn Fn() -> Result<(), VindexError>;

/// A tensor that is going to be written.
#[derive(Clone)]
pub(crate) struct Planned<'a> {
    /// Role and layer; `None` for a tensor that larql has no role for.
    pub(crate) id: Option<TensorId>,
    /// Name in the file.
    pub(crate) name: String,
    /// Shape, columns first.
    pub(crate) shape: Vec<usize>,
    /// Dtype in the source.
    pub(crate) from: Dtype,
    /// Dtype in the file.
    pub(crate) to: Dtype,
    /// Where the rows come from.
    pub(crate) rows: Rows<'a>,
}

impl Planned<'_> {
    /// Bytes of the tensor stored as `dtype`; its columns are known to fit.
    pub(crate) fn bytes_as(&self, dtype: Dtype) -> u64 {
        let rows: usize = self.shape[1..].iter().product();
        dtype.row_bytes(self.shape[0]).map_or(0, |row| (row * rows) as u64)
    }
}

/// A tensor that did not get the dtype asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fallback {
    /// The tensor.
    pub tensor: String,
    /// The dtype asked for.
    pub asked: String,
    /// The dtype it got.
    pub got: String,
    /// Why.
    pub why: String,
}

/// The dtype of a tensor in a file, and why it is not the one asked for. Vectors, norms, routers
/// and the like stay f32, as every GGUF has them; that is not worth a report.
pub(crate) fn choose_dtype(
    id: Option<TensorId>,
    name: &str,
    shape: &[usize],
    from: Dtype,
    asked: Option<Dtype>,
) -> (Dtype, Option<Fallback>) {
    let Some(id) = id else { return (from, None) };
    if shape.len() == 1 || id.role.always_f32() {
        return (Dtype::F32, None);
    }
    let Some(asked) = asked else { return (from, None) };
    if asked.row_bytes(shape[0]).is_ok() {
        return (asked, None);
    }
    let got = if Dtype::Q8_0.row_bytes(shape[0]).is_ok() { Dtype::Q8_0 } else { Dtype::F16 };
    let fallback = Fallback {
        tensor: name.to_owned(),
        asked: asked.name().to_owned(),
        got: got.name().to_owned(),
        why: format!("{} columns are no multiple of {}", shape[0], asked.block_len()),
    };
    (got, Some(fallback))
}

/// Refuses a dtype that there is no quantiser for.
pub(crate) fn check_dtype(option: &str, dtype: Dtype) -> Result<(), VindexError> {
    use Dtype::{BF16, F16, F32, Q4_0, Q4K, Q6K, Q8_0};
    if matches!(dtype, F32 | F16 | BF16 | Q4_0 | Q8_0 | Q4K | Q6K) {
        return Ok(());
    }
    Err(VindexError::Option {
        option: option.to_owned(),
        why: "larql writes f32, f16, bf16, q4_0, q8_0, q4_k and q6_k".to_owned(),
    })
}

/// llama.cpp's number for a file whose matrices are mostly of this dtype.
fn file_type(dtype: Dtype) -> Option<u32> {
    Some(match dtype {
        Dtype::F32 => 0,
        Dtype::F16 => 1,
        Dtype::Q4_0 => 2,
        Dtype::Q8_0 => 7,
        Dtype::Q4K => 14,
        Dtype::Q6K => 18,
        Dtype::BF16 => 32,
        Dtype::Q4_1 | Dtype::Q5_0 | Dtype::Q5_1 | Dtype::Q2K | Dtype::Q3K | Dtype::Q5K => {
            return None;
        }
    })
}

/// Adapts metadata to a file of these tensors: no trace of a split, the right file type.
pub(crate) fn adapt_metadata(metadata: &mut Metadata, tensors: &[Planned<'_>]) {
    for key in ["split.no", "split.count", "split.tensors.count"] {
        metadata.remove(key);
    }
    // Nothing was converted: the source's own description stays true.
    if metadata.contains("general.file_type") && tensors.iter().all(|t| t.from == t.to) {
        return;
    }
    let matrices = tensors.iter().filter(|t| t.shape.len() > 1 && t.to != Dtype::F32);
    let mut bytes = std::collections::BTreeMap::<Dtype, usize>::new();
    for tensor in matrices {
        *bytes.entry(tensor.to).or_default() += tensor.shape.iter().product::<usize>();
    }
    let most = bytes.into_iter().max_by_key(|&(_, n)| n).map_or(Dtype::F32, |(dtype, _)| dtype);
    match file_type(most) {
        Some(number) => metadata.set("general.file_type", number),
        None => {
            metadata.remove("general.file_type");
        }
    }
    metadata.set("general.quantization_version", 2u32);
}

/// Bytes written between two calls to forget the pages of the source.
const FORGET: usize = 8 << 20;

/// Writes one GGUF. Returns how far each tensor's values moved, in order. The caller has started
/// a progress phase in bytes written; `forget` is called now and then to let go of what was read.
///
/// # Errors
/// The source's, the quantiser's (naming the tensor), the system's, [`VindexError::Cancelled`].
pub(crate) fn write_gguf(
    path: &Path,
    metadata: &Metadata,
    tensors: &[Planned<'_>],
    forget: Forget<'_>,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Vec<Deviation>, VindexError> {
    let file = File::create_new(path).map_err(VindexError::io("create", path))?;
    let mut writer = GgufWriter::new(metadata.clone());
    for tensor in tensors {
        writer.declare(&tensor.name, tensor.to, &tensor.shape)?;
    }
    let mut data = writer.begin(file, path)?;
    let mut deviations = Vec::with_capacity(tensors.len());
    let mut remembered = 0;
    for tensor in tensors {
        data.tensor(&tensor.name)?;
        let deviation = tensor.rows.convert(tensor.to, threads, |bytes| {
            if progress.cancelled() {
                return Err(VindexError::Cancelled { left: "nothing was written".to_owned() });
            }
            data.write(bytes)?;
            progress.advance(bytes.len() as u64);
            remembered += bytes.len();
            if remembered >= FORGET {
                remembered = 0;
                forget()?;
            }
            Ok(())
        });
        deviations.push(deviation.map_err(|error| in_tensor(error, path, &tensor.name))?);
    }
    data.finish()?;
    forget()?;
    Ok(deviations)
}

/// Bytes that [`write_gguf`] will write for these tensors, headers aside.
pub(crate) fn planned_bytes(tensors: &[Planned<'_>]) -> u64 {
    tensors.iter().map(|tensor| tensor.bytes_as(tensor.to)).sum()
}

/// Adds the tensor to an error that names only an element.
fn in_tensor(error: VindexError, path: &Path, tensor: &str) -> VindexError {
    match error {
        VindexError::Compute(error) => VindexError::Corrupt {
            path: path.to_path_buf(),
            section: tensor.to_owned(),
            why: error.to_string(),
        },
        other => other,
    }
}

/// Whether a role is written at a level that leaves out the groups above it.
pub(crate) fn is_included(role: Role, up_holds_keys: bool, level: crate::Level) -> bool {
    crate::files::group_of(role, up_holds_keys).level() <= level
}
