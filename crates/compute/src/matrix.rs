//! `Matrix`: a validated, borrowed view of rows of blocks.

use std::ops::Range;

use crate::{ComputeError, Dtype};

/// A row-major matrix of `rows` x `cols` elements over borrowed bytes. Holding one is the proof
/// that the byte length fits the shape, so nothing downstream checks again.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    dtype: Dtype,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// A view of `bytes` as `rows` x `cols`.
    ///
    /// # Errors
    /// Columns that are not whole blocks, a size beyond the address space, a byte length that
    /// differs from what the shape implies.
    pub fn new(
        dtype: Dtype,
        rows: usize,
        cols: usize,
        bytes: &'a [u8],
    ) -> Result<Self, ComputeError> {
        let row_bytes = dtype.row_bytes(cols)?;
        let expected =
            row_bytes.checked_mul(rows).ok_or(ComputeError::TooLarge { dtype, rows, cols })?;
        if bytes.len() != expected {
            return Err(ComputeError::ByteLength {
                dtype,
                rows,
                cols,
                expected,
                found: bytes.len(),
            });
        }
        Ok(Self { dtype, rows, cols, row_bytes, bytes })
    }

    /// How the elements are stored.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of elements in a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All bytes, row after row.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes of one row.
    pub fn row_stride(&self) -> usize {
        self.row_bytes
    }

    /// The blocks of row `row`. Panics where `row >= rows`, as slices do.
    pub fn row_bytes(&self, row: usize) -> &'a [u8] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        &self.bytes[row * self.row_bytes..(row + 1) * self.row_bytes]
    }

    /// The rows `range` as a matrix of their own. Panics outside the matrix, as slices do.
    pub fn row_range(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.rows, "{range:?} of {}", self.rows);
        let bytes = &self.bytes[range.start * self.row_bytes..range.end * self.row_bytes];
        Self { rows: range.len(), bytes, ..*self }
    }
}

impl std::fmt::Debug for Matrix<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix({} {}x{})", self.dtype, self.rows, self.cols)
    }
}
