//! `GgufTensor`: a tensor whose dtype, shape and place in the file have been proven to fit.

use std::ops::Range;
use std::path::Path;

use larql_compute::{Dtype, Matrix};

use crate::Map;

/// One tensor of a GGUF file. Holding one is the proof that its bytes are there.
#[derive(Clone)]
pub struct GgufTensor {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) map: Map,
    pub(super) range: Range<usize>,
}

impl GgufTensor {
    /// Name, as it stands in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How the elements are stored.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Dimensions in GGUF's order: elements of a row first, then rows, then matrices.
    /// One to four of them, none zero.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Elements of a row (the first dimension).
    pub fn cols(&self) -> usize {
        self.shape[0]
    }

    /// Rows of all matrices together: the product of every dimension but the first.
    pub fn rows(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// All its bytes. They begin at a multiple of the file's alignment (at least 8).
    pub fn bytes(&self) -> &[u8] {
        &self.map.bytes()[self.range.clone()]
    }

    /// A view as `rows()` x `cols()`; a stack of experts is one tall matrix.
    pub fn matrix(&self) -> Matrix<'_> {
        Matrix::new(self.dtype, self.rows(), self.cols(), self.bytes())
            .expect("the header parser computed the range from this dtype and shape")
    }

    /// The file that holds the bytes: one of several where the model is split.
    pub fn file(&self) -> &Path {
        self.map.path()
    }

    /// The mapped file that holds the bytes.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// Where in [`file`](Self::file) the bytes lie.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Where in [`file`](Self::file) the first byte lies.
    pub fn offset(&self) -> u64 {
        self.range.start as u64
    }
}

impl std::fmt::Debug for GgufTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GgufTensor({} {} {:?} at {:?})", self.name, self.dtype, self.shape, self.range)
    }
}
