//! Matrix products over dequantised panels, through the `gemm` crate.

use std::ops::Range;

use gemm::Parallelism;

use super::Kernels;
use crate::{Matrix, Pool};

/// Elements of a dequantised panel: 512 KiB, which fits beside the rest in a core's L2 cache.
const PANEL: usize = 128 * 1024;

/// Panels that even a small matrix is cut into, so that there is work for several threads.
const SHARES: usize = 8;

/// `y[p, r] = sum_c m[r, c] * x[p, c]` for `n` positions; `x` is `[n, cols]`, `y` `[n, rows]`.
/// Each worker dequantises a panel of rows and multiplies it with all positions.
pub(crate) fn matmul(
    kernels: Kernels,
    pool: &Pool,
    m: &Matrix<'_>,
    x: &[f32],
    n: usize,
    y: &mut [f32],
) {
    let (rows, cols) = (m.rows(), m.cols());
    assert!(x.len() == n * cols && y.len() == n * rows, "shapes were validated by the caller");
    if n == 0 || rows == 0 {
        return;
    }
    if cols == 0 {
        return y.fill(0.0);
    }
    // Not by the number of threads: the order of the sums may depend on a panel's shape.
    let panel_rows = (PANEL / cols).clamp(1, rows.div_ceil(SHARES)).next_multiple_of(8);
    let output = Output { y: y.as_mut_ptr(), rows, n };
    pool.parallel_for(rows, panel_rows, |range| {
        let mut panel = vec![0.0; range.len() * cols];
        for (r, out) in range.clone().zip(panel.chunks_exact_mut(cols)) {
            kernels.row(m.dtype(), m.row_bytes(r), out);
        }
        // SAFETY: `parallel_for` gives each range to one worker, the ranges are disjoint and lie
        // within `0..rows`, and `y` stays borrowed until it returns.
        unsafe { output.multiply(range, &panel, x) };
    });
}

/// `c = a bᵀ`: `a` is `[m, k]`, `b` is `[n, k]`, `c` is `[m, n]`; on this thread.
pub(crate) fn product_transposed(a: &[f32], b: &[f32], k: usize, c: &mut [f32]) {
    let (m, n) = (a.len() / k, b.len() / k);
    assert!(a.len() == m * k && b.len() == n * k && c.len() == m * n, "shapes of a product");
    let (b_row, b_col) = (1, k as isize);
    // SAFETY: the asserted lengths are those of row-major matrices of these shapes.
    unsafe { product(a.as_ptr(), b.as_ptr(), [m, k, n], (b_row, b_col), false, c.as_mut_ptr()) }
}

/// `c += a b`: `a` is `[m, k]`, `b` is `[k, n]`, `c` is `[m, n]`; on this thread.
pub(crate) fn add_product(a: &[f32], b: &[f32], k: usize, c: &mut [f32]) {
    let (m, n) = (a.len() / k, b.len() / k);
    assert!(a.len() == m * k && b.len() == n * k && c.len() == m * n, "shapes of a product");
    // SAFETY: as in `product_transposed`.
    unsafe { product(a.as_ptr(), b.as_ptr(), [m, k, n], (n as isize, 1), true, c.as_mut_ptr()) }
}

/// `c = a b`, or `c += a b`, with `a` and `c` row-major and `b` by its strides of row and column.
///
/// # Safety
/// The pointers hold matrices of these shapes, and nobody else uses `c` meanwhile.
unsafe fn product(
    a: *const f32,
    b: *const f32,
    [m, k, n]: [usize; 3],
    (b_row, b_col): (isize, isize),
    add: bool,
    c: *mut f32,
) {
    let (k_row, n_row, alpha) = (k as isize, n as isize, if add { 1.0_f32 } else { 0.0 });
    // SAFETY: this function's contract; `n_row` and `k_row` are the strides of row-major matrices.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c,
            1,
            n_row,
            add,
            a,
            1,
            k_row,
            b,
            b_col,
            b_row,
            alpha,
            1.0_f32,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// `y`, of which every worker writes the columns of its own rows of the matrix.
struct Output {
    y: *mut f32,
    rows: usize,
    n: usize,
}

// SAFETY: the pointer is used only through `multiply`, whose contract keeps writes disjoint.
unsafe impl Sync for Output {}

impl Output {
    /// Writes `y[.., range]`.
    ///
    /// # Safety
    /// `range` lies within the rows, no other thread uses the same columns of `y` meanwhile, and
    /// `y` points to `n * rows` elements.
    unsafe fn multiply(&self, range: Range<usize>, panel: &[f32], x: &[f32]) {
        let cols = panel.len() / range.len();
        assert_eq!(x.len(), self.n * cols);
        // SAFETY: the destination is columns `range` of the `n` rows of `y`, ours by this
        // function's contract; both sources are row-major slices of the asserted lengths.
        unsafe {
            gemm::gemm(
                self.n,
                range.len(),
                cols,
                self.y.add(range.start),
                1,
                self.rows as isize,
                false,
                x.as_ptr(),
                1,
                cols as isize,
                panel.as_ptr(),
                cols as isize,
                1,
                0.0_f32,
                1.0_f32,
                false,
                false,
                false,
                Parallelism::None,
            );
        }
    }
}
