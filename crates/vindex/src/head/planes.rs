//! `lm_head.planes`: its layout, reading it from a map, making it, and deleting it.
//!
//! docs/FORMAT.md has the byte table. The file is derived from the LM head alone and the manifest
//! does not name it: it carries the identity of its head and the SHA-256 of its content itself.

use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use larql_checkpoint::{Map, Role, TensorId};
use larql_compute::{ColumnOrder, Cpu, HeadPlanes, Matrix, PlanesLayout, build_planes, mean_row};

use crate::files::LM_HEAD_PLANES;
use crate::hash::Sha;
use crate::{Progress, Vindex, VindexError, atomic};

/// The first eight bytes.
const MAGIC: [u8; 8] = *b"LARQLHP1";
/// The version that this build writes, and the only one that it reads.
const VERSION: u32 = 1;
/// Bytes of the header.
const HEADER: usize = 128;
const IDENTITY: Range<usize> = 32..64;
const CONTENT: Range<usize> = 64..96;
/// Caps that no model comes near; they keep every product below within 64 bits.
const MAX_ROWS: u32 = 1 << 28;
const MAX_COLS: u32 = 1 << 20;
/// Rows that are built between two looks at whether to stop; a multiple of 16.
const PIECE: usize = 8192;
/// Smaller heads are scanned in no time. Few bits are no reason to do without: the scan in float32
/// is bound by arithmetic, and takes as long for 4 bits as for 8 (`--bench lm_head`: 46 and 45 ms,
/// the planes 9 ms).
const WORTH_BYTES: usize = 16 << 20;

/// A validated `lm_head.planes`.
pub(super) struct PlanesFile {
    map: Map,
    layout: PlanesLayout,
    order: ColumnOrder,
    mean: Vec<f32>,
    norms: Vec<f32>,
    blocks: Range<usize>,
    /// Upper bounds of all rows, kept from one token to the next.
    pub(super) uppers: Mutex<Vec<f32>>,
}

/// Where the parts of a file stand.
struct Places {
    order: Range<usize>,
    mean: Range<usize>,
    norms: Range<usize>,
    blocks: Range<usize>,
}

impl Places {
    /// Cannot overflow: the caps allow 2²⁴ blocks of less than 2²⁶ bytes.
    fn new(layout: &PlanesLayout, rows: usize) -> Self {
        let (cols, n_blocks) = (layout.cols(), PlanesLayout::n_blocks(rows));
        let order = HEADER..HEADER + 4 * cols;
        let mean = order.end..order.end + 4 * cols;
        let norms = mean.end..mean.end + 4 * n_blocks;
        let start = norms.end.next_multiple_of(64);
        Self { order, mean, norms, blocks: start..start + n_blocks * layout.block_bytes() }
    }
}

/// What the builder did.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct PlanesReport {
    /// Rows of the head.
    pub rows: usize,
    /// Elements of a row.
    pub cols: usize,
    /// Dtype of the head.
    pub dtype: String,
    /// Bytes of the head.
    pub head_bytes: u64,
    /// Bytes of the planes.
    pub planes_bytes: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
}

/// Why planes would not make this head faster; `None` where they would.
pub fn planes_not_worth(head: Matrix<'_>) -> Option<String> {
    (head.bytes().len() < WORTH_BYTES)
        .then(|| format!("the head has {} bytes: a scan takes no time", head.bytes().len()))
}

/// Builds the planes of the LM head of `vindex` and puts them in place as a whole. `mean_abs` is
/// the mean |h| of each column of hidden states after the final norm, `[hidden_size]`; it decides
/// how fast the planes are, not whether they are right.
///
/// # Errors
/// A vindex without unembedding; a wrong length; a full disk; [`VindexError::Cancelled`].
pub fn build_head_planes(
    vindex: &Vindex,
    cpu: &Cpu,
    mean_abs: &[f32],
    progress: &dyn Progress,
) -> Result<PlanesReport, VindexError> {
    let start = Instant::now();
    let head = vindex.unembedding()?;
    let layout = PlanesLayout::new(head.cols());
    let order = ColumnOrder::new(mean_abs);
    let mean = mean_row(cpu, head)?;
    let places = Places::new(&layout, head.rows());
    let mut norms = vec![0.0; PlanesLayout::n_blocks(head.rows())];
    let mut bytes = vec![0; places.blocks.end];
    progress.start("LM head planes", head.rows() as u64, "rows");
    let mut rest = &mut bytes[places.blocks.clone()];
    let mut norms_left = norms.as_mut_slice();
    for first in (0..head.rows()).step_by(PIECE) {
        let rows = head.row_range(first..head.rows().min(first + PIECE));
        let n_blocks = PlanesLayout::n_blocks(rows.rows());
        let (blocks, others) = rest.split_at_mut(n_blocks * layout.block_bytes());
        let (these, other_norms) = norms_left.split_at_mut(n_blocks);
        (rest, norms_left) = (others, other_norms);
        let built = build_planes(cpu, rows, &order, &mean, blocks, these);
        progress.advance(rows.rows() as u64);
        if built.is_err() || progress.cancelled() {
            progress.finish();
            built?;
            return Err(VindexError::Cancelled { left: "no planes were written".to_owned() });
        }
    }
    progress.finish();
    let floats = |to: &mut [u8], from: &[f32]| {
        for (to, from) in to.as_chunks_mut().0.iter_mut().zip(from) {
            *to = from.to_le_bytes();
        }
    };
    for (to, column) in bytes[places.order].as_chunks_mut().0.iter_mut().zip(order.columns()) {
        *to = column.to_le_bytes();
    }
    floats(&mut bytes[places.mean], &mean);
    floats(&mut bytes[places.norms], &norms);
    bytes[..8].copy_from_slice(&MAGIC);
    let numbers = [VERSION, head.rows() as u32, head.cols() as u32, layout.block_bytes() as u32];
    for (to, number) in bytes[8..24].as_chunks_mut().0.iter_mut().zip(numbers) {
        *to = number.to_le_bytes();
    }
    bytes[IDENTITY].copy_from_slice(identity(vindex)?.bytes());
    let content = Sha::of(&bytes[HEADER..]);
    bytes[CONTENT].copy_from_slice(content.bytes());
    atomic::replace_file(&vindex.file_path(LM_HEAD_PLANES), &bytes)?;
    Ok(PlanesReport {
        rows: head.rows(),
        cols: head.cols(),
        dtype: head.dtype().name().to_owned(),
        head_bytes: head.bytes().len() as u64,
        planes_bytes: bytes.len() as u64,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// Deletes the planes of the LM head; `false` where there are none.
///
/// # Errors
/// The system's.
pub fn delete_head_planes(vindex: &Vindex) -> Result<bool, VindexError> {
    let path = vindex.file_path(LM_HEAD_PLANES);
    match std::fs::remove_file(&path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(VindexError::io("delete", &path)(error)),
    }
}

/// What makes a head this head: the hash of its file, and which tensor of it.
fn identity(vindex: &Vindex) -> Result<Sha, VindexError> {
    let role = if vindex.config().tied { Role::TokenEmbd } else { Role::Output };
    let id = TensorId::global(role);
    let head = vindex.require(id)?;
    let manifest = vindex.manifest();
    let tensor = manifest.tensors.iter().find(|tensor| tensor.id == id);
    let (name, file) = tensor.map_or(("", ""), |tensor| (&tensor.name, &tensor.file));
    let hash = manifest.file(file).and_then(|file| file.sha256);
    let hash = hash.map_or_else(String::new, |hash| hash.to_string());
    let (dtype, rows, cols) = (head.dtype(), head.rows(), head.cols());
    Ok(Sha::of(format!("{hash} {name} {dtype} {rows} {cols}").as_bytes()))
}

impl PlanesFile {
    /// The planes of `vindex`; `None` where it has none.
    pub(super) fn open(vindex: &Vindex) -> Result<Option<Self>, VindexError> {
        let path = vindex.file_path(LM_HEAD_PLANES);
        if !path.exists() {
            return Ok(None);
        }
        let file = Self::new(Map::open(&path)?)?;
        let head = vindex.unembedding()?;
        let shape = (u32_at(file.map.bytes(), 12) as usize, file.layout.cols());
        if shape != (head.rows(), head.cols())
            || file.map.bytes()[IDENTITY] != *identity(vindex)?.bytes()
        {
            return Err(corrupt(&path, "header", "it was made from another LM head"));
        }
        Ok(Some(file))
    }

    /// Checks everything but the content's hash.
    fn new(map: Map) -> Result<Self, VindexError> {
        let fault = |section, why: String| corrupt(map.path(), section, &why);
        let header = |why| fault("header", why);
        let bytes = map.bytes();
        if bytes.len() < HEADER {
            return Err(header(format!("the file has {} bytes, a header {HEADER}", bytes.len())));
        }
        if bytes[..8] != MAGIC {
            return Err(header("it does not begin with LARQLHP1".to_owned()));
        }
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err(header(format!("its version is {version}, this larql reads {VERSION}")));
        }
        let (rows, cols) = (u32_at(bytes, 12), u32_at(bytes, 16));
        if !(1..=MAX_ROWS).contains(&rows) || !(1..=MAX_COLS).contains(&cols) {
            return Err(header(format!("{rows} x {cols} is no shape of an LM head")));
        }
        let layout = PlanesLayout::new(cols as usize);
        if u32_at(bytes, 20) as usize != layout.block_bytes() {
            let (found, expected) = (u32_at(bytes, 20), layout.block_bytes());
            return Err(header(format!("blocks of {found} bytes instead of {expected}")));
        }
        if bytes[24..IDENTITY.start].iter().chain(&bytes[CONTENT.end..HEADER]).any(|&b| b != 0) {
            return Err(header("reserved bytes are not zero".to_owned()));
        }
        let places = Places::new(&layout, rows as usize);
        if bytes.len() != places.blocks.end {
            let (found, expected) = (bytes.len(), places.blocks.end);
            return Err(fault("blocks", format!("the file has {found} bytes, not {expected}")));
        }
        let floats = |range: Range<usize>| -> Vec<f32> {
            bytes[range].as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
        };
        let columns = bytes[places.order].as_chunks().0;
        let order =
            ColumnOrder::from_columns(columns.iter().map(|b| u32::from_le_bytes(*b)).collect())
                .ok_or_else(|| fault("column order", "it is no permutation".to_owned()))?;
        let (mean, norms) = (floats(places.mean), floats(places.norms));
        if mean.iter().any(|v| !v.is_finite()) {
            return Err(fault("mean row", "it holds a value that is not finite".to_owned()));
        }
        if norms.iter().any(|norm| norm.is_nan() || *norm < 0.0) {
            return Err(fault("norms", "one of them is negative or NaN".to_owned()));
        }
        let (blocks, uppers) = (places.blocks, Mutex::default());
        Ok(Self { map, layout, order, mean, norms, blocks, uppers })
    }

    /// Bytes on the heap.
    pub(super) fn heap(&self) -> usize {
        let uppers = self.uppers.lock().unwrap_or_else(PoisonError::into_inner).capacity();
        let floats = uppers + self.mean.len() + self.norms.len();
        floats * size_of::<f32>() + size_of_val(self.order.columns())
    }

    /// The planes, to scan.
    pub(super) fn planes(&self) -> Result<HeadPlanes<'_>, VindexError> {
        let blocks = &self.map.bytes()[self.blocks.clone()];
        Ok(HeadPlanes::new(&self.layout, &self.order, &self.mean, &self.norms, blocks)?)
    }
}

impl std::fmt::Debug for PlanesFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PlanesFile({})", self.map.path().display())
    }
}

/// Why the content of the planes in `dir` is not what was written; `None` where it is. `Ok(None)`
/// of the outer kind: there are none.
pub(crate) fn check_content(dir: &Path) -> Result<Option<(u64, Option<String>)>, VindexError> {
    let path = dir.join(LM_HEAD_PLANES);
    if !path.exists() {
        return Ok(None);
    }
    let map = Map::open(&path)?;
    let size = map.bytes().len() as u64;
    let why = match PlanesFile::new(map) {
        Err(error) => Some(error.to_string()),
        Ok(file) => {
            let bytes = file.map.bytes();
            let sound = Sha::of(&bytes[HEADER..]).bytes() == &bytes[CONTENT];
            (!sound).then(|| "its content is not what its header says; delete it".to_owned())
        }
    };
    Ok(Some((size, why)))
}

fn corrupt(path: &Path, section: &str, why: &str) -> VindexError {
    VindexError::Corrupt {
        path: path.to_path_buf(),
        section: section.to_owned(),
        why: format!("{why}; delete the file, and `larql lm-head NAME.vindex` builds it again"),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
