//! The product of a matrix and many quantised vectors: panels of 16 rows, unpacked once.

use std::cell::RefCell;

use crate::kernels::panel::{Lanes, PANEL_ROWS, PANEL_VECTORS, Panel, PanelKernels, PanelVectors};
use crate::pool::Columns;
use crate::{Activations, Matrix};

/// Vectors from which on unpacking pays (measured: `cargo bench -p larql-compute --bench kernels`).
pub(crate) const MIN_VECTORS: usize = 16;

/// Bytes of unpacked rows that a worker takes at a time: with the vectors beside them they stay in
/// a core's L2 cache, and the vectors come from further away once for all of them.
const TAKEN: usize = 512 << 10;

thread_local! {
    /// Panels of the last product, whose memory the next one uses again.
    static PANELS: RefCell<Vec<Panel>> = const { RefCell::new(Vec::new()) };
}

/// Rows that one of `threads` workers takes at a time.
pub(crate) fn grain(m: Matrix<'_>, threads: usize) -> usize {
    let share = m.rows().div_ceil(2 * threads);
    (TAKEN / m.cols().max(1)).min(share).max(1).next_multiple_of(PANEL_ROWS)
}

/// The rows `columns` of `m` with all vectors of `x`.
pub(crate) fn product(
    kernels: PanelKernels,
    m: Matrix<'_>,
    x: &Activations,
    columns: &mut Columns<'_>,
) {
    let range = columns.range();
    PANELS.with_borrow_mut(|panels| {
        panels.resize_with(range.len().div_ceil(PANEL_ROWS).max(panels.len()), Panel::default);
        let starts = range.clone().step_by(PANEL_ROWS);
        for (start, panel) in starts.clone().zip(panels.iter_mut()) {
            let rows = m.row_range(start..range.end.min(start + PANEL_ROWS));
            (kernels.fill)(rows, panel);
        }
        let mut vectors = PanelVectors::default();
        let mut out = [Lanes::default(); PANEL_VECTORS];
        for first in (0..x.n()).step_by(PANEL_VECTORS) {
            let n = PANEL_VECTORS.min(x.n() - first);
            vectors.set(&panels[0], |v| x.q8_vector(first + v.min(n - 1)));
            for (panel, i) in panels.iter().zip((0..range.len()).step_by(PANEL_ROWS)) {
                (kernels.multiply)(panel, &vectors, &mut out);
                for (v, out) in out[..n].iter().enumerate() {
                    let y = &mut columns.row(first + v)[i..];
                    let rows = y.len().min(PANEL_ROWS);
                    y[..rows].copy_from_slice(&out[..rows]);
                }
            }
        }
    });
}
