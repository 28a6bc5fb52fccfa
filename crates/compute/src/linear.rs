//! The projections of a forward pass: the same vectors against one matrix or several.

use crate::arch::panel_kernels;
use crate::cpu::{check_len, grain};
use crate::pool::Output;
use crate::{Activations, ComputeError, Cpu, Matrix, panel};

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
        // Many vectors: panels of unpacked rows where this instruction set has them, else of
        // dequantised ones. Few: row by row, each vector as if it were alone.
        let many = x.n() >= panel::MIN_VECTORS;
        let panels = panel_kernels(self.isa()).filter(|_| many);
        let in_float = many && panels.is_none();
        let (mut matrices, mut parts) = (Vec::new(), Vec::new());
        for (m, y) in outputs {
            if m.dtype().block_len() > 1 && !in_float {
                let grain = panels.map_or(grain(*m), |_| panel::grain(*m, self.threads()));
                matrices.push(*m);
                parts.push(Output { y, cols: m.rows(), grain });
            } else if x.n() == 1 {
                self.matvec(*m, x.values(), y)?;
            } else {
                self.matmul(*m, x.values(), x.n(), y)?;
            }
        }
        self.pool().for_each_columns(&mut parts, |i, mut columns| {
            if let Some(kernels) = panels {
                return panel::product(kernels, matrices[i], x, &mut columns);
            }
            let rows = matrices[i].row_range(columns.range());
            for p in 0..columns.n() {
                self.kernels().dots_q8(rows.dtype(), rows.bytes(), x.q8_vector(p), columns.row(p));
            }
        });
        Ok(())
    }
}
