//! Rows on their way from a source to a file: read, converted in parallel, and measured.

use std::ops::Range;

use larql_checkpoint::Checkpoint;
use larql_compute::{Dtype, Matrix, dequantize_row, quantize_row};

use crate::VindexError;

/// Where the rows of a tensor come from.
#[derive(Clone)]
pub(crate) enum Rows<'a> {
    /// Blocks that are in memory (mapped).
    Matrix(Matrix<'a>),
    /// Rows that a checkpoint puts together one by one.
    Checkpoint(&'a Checkpoint, &'a larql_checkpoint::TensorEntry),
    /// The columns of matrices with equally many rows, as rows; one matrix after the other.
    Columns(Vec<Matrix<'a>>),
}

/// How far a conversion moved the values.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Deviation {
    /// Elements compared.
    pub elements: u64,
    /// Sum of squared differences.
    pub squared_error: f64,
    /// Sum of squared source values.
    pub squared_values: f64,
}

impl Deviation {
    /// Root mean squared error.
    pub fn rmse(&self) -> f64 {
        if self.elements == 0 { 0.0 } else { (self.squared_error / self.elements as f64).sqrt() }
    }

    /// The error's norm over the values' norm.
    pub fn relative(&self) -> f64 {
        if self.squared_error == 0.0 {
            0.0
        } else {
            (self.squared_error / self.squared_values).sqrt()
        }
    }

    /// Adds another tensor's.
    pub fn add(&mut self, other: &Self) {
        self.elements += other.elements;
        self.squared_error += other.squared_error;
        self.squared_values += other.squared_values;
    }
}

/// f32 elements of one tile of [`Rows::Columns`]: 16 MiB.
const TILE: usize = 4 << 20;
/// Elements converted between two writes.
const BATCH: usize = 1 << 20;
/// Every block length divides this, so a tile of so many columns begins and ends between blocks.
const BLOCK_ALIGN: usize = 256;

impl Rows<'_> {
    /// How the source stores the elements; `None` where it depends on the matrix.
    fn dtype(&self) -> Dtype {
        match self {
            Self::Matrix(matrix) => matrix.dtype(),
            Self::Checkpoint(_, entry) => entry.dtype,
            Self::Columns(matrices) => matrices[0].dtype(),
        }
    }

    /// Number of rows.
    fn rows(&self) -> usize {
        match self {
            Self::Matrix(matrix) => matrix.rows(),
            Self::Checkpoint(_, entry) => entry.rows,
            Self::Columns(matrices) => matrices.iter().map(Matrix::cols).sum(),
        }
    }

    /// Elements of a row.
    fn cols(&self) -> usize {
        match self {
            Self::Matrix(matrix) => matrix.cols(),
            Self::Checkpoint(_, entry) => entry.cols,
            Self::Columns(matrices) => matrices[0].rows(),
        }
    }

    /// Calls `emit` with the bytes of all rows as `to`, in order and in pieces, on `threads`
    /// threads. Returns how far the values moved.
    ///
    /// # Errors
    /// The source's, the quantiser's (a value that is not finite), and those of `emit`.
    pub(crate) fn convert(
        &self,
        to: Dtype,
        threads: usize,
        mut emit: impl FnMut(&[u8]) -> Result<(), VindexError>,
    ) -> Result<Deviation, VindexError> {
        if let Self::Columns(matrices) = self {
            let mut total = Deviation::default();
            for matrix in matrices {
                total.add(&transpose(matrix, to, threads, &mut emit)?);
            }
            return Ok(total);
        }
        let from = self.dtype();
        let cols = self.cols();
        let batch = (BATCH / cols).max(1);
        let mut total = Deviation::default();
        let mut first = 0;
        let mut out = Vec::new();
        while first < self.rows() {
            let rows = first..(first + batch).min(self.rows());
            if from == to {
                self.copy(rows.clone(), &mut out, &mut emit)?;
            } else {
                out.resize(rows.len() * to.row_bytes(cols)?, 0);
                let source = Source { rows: self, first, cols, from };
                total.add(&convert_batch(&source, to, threads, &mut out)?);
                emit(&out)?;
            }
            first = rows.end;
        }
        Ok(total)
    }

    /// Rows whose dtype stays: bytes, unchanged.
    fn copy(
        &self,
        rows: Range<usize>,
        scratch: &mut Vec<u8>,
        emit: &mut impl FnMut(&[u8]) -> Result<(), VindexError>,
    ) -> Result<(), VindexError> {
        match self {
            Self::Matrix(matrix) => emit(matrix.row_range(rows).bytes()),
            Self::Checkpoint(checkpoint, entry) => {
                let stride = entry.dtype.row_bytes(entry.cols)?;
                scratch.resize(rows.len() * stride, 0);
                for (row, out) in rows.zip(scratch.chunks_exact_mut(stride)) {
                    checkpoint.read_row(entry, row, out);
                }
                emit(scratch)
            }
            Self::Columns(_) => Ok(()),
        }
    }
}

/// Rows of a batch, as f32.
trait ReadRow: Sync {
    fn cols(&self) -> usize;
    fn read(&self, row: usize, scratch: &mut Vec<u8>, out: &mut [f32]) -> Result<(), VindexError>;
}

struct Source<'a, 'b> {
    rows: &'a Rows<'b>,
    first: usize,
    cols: usize,
    from: Dtype,
}

impl ReadRow for Source<'_, '_> {
    fn cols(&self) -> usize {
        self.cols
    }

    fn read(&self, row: usize, scratch: &mut Vec<u8>, out: &mut [f32]) -> Result<(), VindexError> {
        let row = self.first + row;
        match self.rows {
            Rows::Matrix(matrix) => dequantize_row(self.from, matrix.row_bytes(row), out),
            Rows::Checkpoint(checkpoint, entry) => {
                scratch.resize(self.from.row_bytes(self.cols)?, 0);
                checkpoint.read_row(entry, row, scratch);
                dequantize_row(self.from, scratch, out);
            }
            Rows::Columns(_) => {}
        }
        Ok(())
    }
}

/// One tile of a transposed matrix: `columns` of it as rows.
struct Tile<'a> {
    /// Source rows of `width` elements each, `[cols][width]`.
    values: &'a [f32],
    width: usize,
    cols: usize,
}

impl ReadRow for Tile<'_> {
    fn cols(&self) -> usize {
        self.cols
    }

    fn read(&self, row: usize, _: &mut Vec<u8>, out: &mut [f32]) -> Result<(), VindexError> {
        for (value, source) in out.iter_mut().zip(self.values.chunks_exact(self.width)) {
            *value = source[row];
        }
        Ok(())
    }
}

fn transpose(
    matrix: &Matrix<'_>,
    to: Dtype,
    threads: usize,
    emit: &mut impl FnMut(&[u8]) -> Result<(), VindexError>,
) -> Result<Deviation, VindexError> {
    let (from, cols) = (matrix.dtype(), matrix.rows());
    let width = (TILE / cols / BLOCK_ALIGN).max(1) * BLOCK_ALIGN;
    let mut values = vec![0.0; width.min(matrix.cols()) * cols];
    let mut total = Deviation::default();
    let mut first = 0;
    let mut out = Vec::new();
    while first < matrix.cols() {
        let columns = first..(first + width).min(matrix.cols());
        let bytes = from.row_bytes(columns.start)?..from.row_bytes(columns.end)?;
        let values = &mut values[..columns.len() * cols];
        for (row, out) in values.chunks_exact_mut(columns.len()).enumerate() {
            dequantize_row(from, &matrix.row_bytes(row)[bytes.clone()], out);
        }
        let tile = Tile { values, width: columns.len(), cols };
        out.resize(columns.len() * to.row_bytes(cols)?, 0);
        total.add(&convert_batch(&tile, to, threads, &mut out)?);
        emit(&out)?;
        first = columns.end;
    }
    Ok(total)
}

/// Fills `out` with consecutive rows as `to`, split evenly over threads. Deviations are added in
/// row order, so the report does not depend on the number of threads.
fn convert_batch(
    source: &impl ReadRow,
    to: Dtype,
    threads: usize,
    out: &mut [u8],
) -> Result<Deviation, VindexError> {
    let stride = to.row_bytes(source.cols())?;
    let rows = out.len() / stride;
    let each = rows.div_ceil(threads.max(1)).max(1);
    let work = |first: usize, out: &mut [u8]| -> Result<Vec<Deviation>, VindexError> {
        let mut values = vec![0.0; source.cols()];
        let mut back = vec![0.0; source.cols()];
        let mut scratch = Vec::new();
        let mut deviations = Vec::with_capacity(out.len() / stride);
        for (i, out) in out.chunks_exact_mut(stride).enumerate() {
            source.read(first + i, &mut scratch, &mut values)?;
            quantize_row(to, &values, out)?;
            dequantize_row(to, out, &mut back);
            deviations.push(deviation(&values, &back));
        }
        Ok(deviations)
    };
    let parts: Vec<Result<Vec<Deviation>, VindexError>> = if each >= rows {
        vec![work(0, out)]
    } else {
        std::thread::scope(|scope| {
            let handles: Vec<_> = out
                .chunks_mut(each * stride)
                .enumerate()
                .map(|(i, out)| scope.spawn(move || work(i * each, out)))
                .collect();
            handles
                .into_iter()
                .map(|handle| {
                    handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect()
        })
    };
    let mut total = Deviation::default();
    for part in parts {
        part?.iter().for_each(|row| total.add(row));
    }
    Ok(total)
}

fn deviation(values: &[f32], back: &[f32]) -> Deviation {
    let mut sums = Deviation { elements: values.len() as u64, ..Deviation::default() };
    for (&value, &stored) in values.iter().zip(back) {
        let (value, stored) = (f64::from(value), f64::from(stored));
        sums.squared_error += (value - stored).powi(2);
        sums.squared_values += value.powi(2);
    }
    sums
}
