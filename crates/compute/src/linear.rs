//! The projections of a forward pass: the same vectors against one matrix or several.

use crate::cpu::check_len;
use crate::{Activations, ComputeError, Cpu, Matrix};

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
        for (m, y) in outputs.iter() {
            check_len("the activation", m.cols(), x.cols())?;
            check_len("the output", x.n().saturating_mul(m.rows()), y.len())?;
        }
        for (m, y) in outputs {
            if m.dtype().block_len() == 1 {
                if x.n() == 1 {
                    self.matvec(*m, x.values(), y)?;
                } else {
                    self.matmul(*m, x.values(), x.n(), y)?;
                }
            } else {
                for (p, y) in y.chunks_mut(m.rows().max(1)).enumerate() {
                    let x = x.q8_vector(p);
                    self.each_row(*m, y, |row| self.kernels().dot_q8(m.dtype(), row, x));
                }
            }
        }
        Ok(())
    }
}
