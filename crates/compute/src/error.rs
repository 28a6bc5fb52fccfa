//! What can be wrong with the arguments of a computation.

use crate::Dtype;

/// Every way in which a block, a matrix or a kernel's arguments can be refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ComputeError {
    /// The number of columns is not a whole number of blocks.
    #[error(
        "{cols} columns cannot be stored as {dtype}: a row of {dtype} is a whole number of blocks of {block}"
    )]
    ColumnsNotBlocks {
        /// The block format.
        dtype: Dtype,
        /// The columns asked for.
        cols: usize,
        /// Elements in one block.
        block: usize,
    },
    /// The bytes do not have the length that the shape and the dtype imply.
    #[error("a {dtype} matrix of {rows} x {cols} takes {expected} bytes, but {found} were given")]
    ByteLength {
        /// The block format.
        dtype: Dtype,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
        /// Bytes that the shape implies.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// `rows * row_bytes` does not fit in memory's address range.
    #[error("a {dtype} matrix of {rows} x {cols} is larger than the address space")]
    TooLarge {
        /// The block format.
        dtype: Dtype,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
    },
    /// A vector's length differs from what the matrix needs.
    #[error("{what} has {found} elements where {expected} are needed")]
    VectorLength {
        /// Which argument.
        what: &'static str,
        /// Elements needed.
        expected: usize,
        /// Elements given.
        found: usize,
    },
    /// A row index lies outside the matrix.
    #[error("row {row} is outside a matrix of {rows} rows")]
    RowOutOfRange {
        /// The row asked for.
        row: usize,
        /// Rows of the matrix.
        rows: usize,
    },
    /// NaN or infinity where only finite numbers make sense.
    #[error("{what} holds a value that is not finite ({value}) at position {position}")]
    NotFinite {
        /// Which argument.
        what: &'static str,
        /// Element index, counted from the start of the argument.
        position: usize,
        /// The offending value.
        value: f32,
    },
    /// A finite value so large that a block's half-precision scale would be infinite.
    #[error(
        "the row to quantise holds {value} at position {position}: {dtype} holds magnitudes up to {limit}; choose a wider dtype"
    )]
    BeyondScale {
        /// The block format asked for.
        dtype: Dtype,
        /// Element index, counted from the start of the row.
        position: usize,
        /// The offending value.
        value: f32,
        /// The largest magnitude of the format.
        limit: f32,
    },
    /// A row's score is NaN, which has no place in an order.
    #[error(
        "the score of row {row} is NaN: the row or the query holds NaN or infinities of both signs"
    )]
    NanScore {
        /// The row.
        row: usize,
    },
    /// This machine cannot run the kernels that were asked for.
    #[error("this CPU has no {asked} kernels; available here: {available}")]
    NoSuchKernels {
        /// The instruction set asked for.
        asked: String,
        /// The sets that this build and CPU offer.
        available: String,
    },
    /// There is no quantiser to this dtype.
    #[error(
        "larql cannot quantise to {dtype}; it writes f32, f16, bf16, q4_0, q8_0, q4_k and q6_k"
    )]
    NoQuantiser {
        /// The block format asked for.
        dtype: Dtype,
    },
}
