//! The projections of a forward pass: the same vectors against one matrix or several.

use crate::{ComputeError, Cpu, Matrix, Q8Activation};

/// Vectors that are about to be projected: `[n, cols]`, in float32 for the float formats and in
/// int8 for the block formats. Quantised once, whatever number of matrices follow.
#[derive(Debug, Default)]
pub struct Activations {
    n: usize,
    cols: usize,
    values: Vec<f32>,
    quantized: Vec<Q8Activation>,
}

impl Activations {
    /// Takes over the `n` vectors `x`, `[n, cols]`.
    ///
    /// # Errors
    /// A length that is not a multiple of `n`; a NaN or an infinity, by its position.
    pub fn set(&mut self, x: &[f32], n: usize) -> Result<(), ComputeError> {
        let cols = x.len().checked_div(n).unwrap_or(0);
        if n * cols != x.len() {
            return Err(ComputeError::VectorLength {
                what: "the vectors",
                expected: n * cols,
                found: x.len(),
            });
        }
        (self.n, self.cols) = (n, cols);
        self.values.clear();
        self.values.extend_from_slice(x);
        self.quantized.clear();
        for row in x.chunks(cols.max(1)) {
            self.quantized.push(Q8Activation::new(row)?);
        }
        Ok(())
    }

    /// Number of vectors.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Elements of a vector.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The vectors, `[n, cols]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }
}

impl Cpu {
    /// `y[p, r] = m[r] · x[p]`, `y` is `[n, rows]`. Block formats are multiplied in integers by the
    /// quantised vectors (`docs/NUMERICS.md`), float formats in float32.
    ///
    /// # Errors
    /// Wrong lengths.
    pub fn project(
        &self,
        m: Matrix<'_>,
        x: &Activations,
        y: &mut [f32],
    ) -> Result<(), ComputeError> {
        self.project_all(&mut [(m, y)], x)
    }

    /// As [`Cpu::project`], for several matrices of as many columns.
    ///
    /// # Errors
    /// Wrong lengths.
    pub fn project_all(
        &self,
        outputs: &mut [(Matrix<'_>, &mut [f32])],
        x: &Activations,
    ) -> Result<(), ComputeError> {
        for (m, y) in outputs {
            let rows = m.rows();
            if y.len() != x.n * rows {
                return Err(ComputeError::VectorLength {
                    what: "the output",
                    expected: x.n * rows,
                    found: y.len(),
                });
            }
            if m.dtype().block_len() == 1 {
                if x.n == 1 {
                    self.matvec(*m, &x.values, y)?;
                } else {
                    self.matmul(*m, &x.values, x.n, y)?;
                }
            } else {
                for (x, y) in x.quantized.iter().zip(y.chunks_mut(rows.max(1))) {
                    self.matvec_q8(*m, x, y)?;
                }
            }
        }
        Ok(())
    }
}
