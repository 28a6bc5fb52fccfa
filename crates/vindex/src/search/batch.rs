//! Exact nearest gate rows of many residuals at once.
//!
//! One GEMM gives every score up to float32 rounding. Rounding has a proven size, so the rows that
//! could belong to a position's answer are few; they are scored again by the canonical dot
//! product, and the result is the one that [`Search::gate_knn`] gives for each position alone.

use larql_compute::{Matrix, Order, TopK};

use super::knn::{hits, nan_feature};
use super::norm::l2;
use super::parts::Keys;
use super::{Hit, Search};
use crate::VindexError;

/// Positions from which a GEMM beats one scan for each of them (measured on Gemma 3 270M, two
/// threads: 1.85 ms for 16 positions at once, 0.12 ms for one alone).
const GEMM_FROM: usize = 16;

impl Search<'_> {
    /// [`Search::gate_knn`] for `n` residuals: `xs` is `[n, hidden_size]`, the result holds the
    /// hits of each position in order.
    ///
    /// # Errors
    /// As [`Search::gate_knn`]; a length of `xs` that is no multiple of the hidden size.
    pub fn gate_knn_batch(
        &self,
        layer: usize,
        xs: &[f32],
        k: usize,
        order: Order,
        expert: Option<usize>,
    ) -> Result<Vec<Vec<Hit>>, VindexError> {
        let hidden = self.vindex.config().hidden_size;
        if !xs.len().is_multiple_of(hidden) {
            return Err(VindexError::QueryLength { expected: hidden, found: xs.len() });
        }
        let n = xs.len() / hidden;
        if n < GEMM_FROM {
            return xs
                .chunks_exact(hidden)
                .map(|x| self.gate_knn(layer, x, k, order, expert))
                .collect();
        }
        let mut tops: Vec<TopK> = (0..n).map(|_| TopK::new(k, order)).collect();
        for keys in self.keys(layer, self.features(layer, expert)?)? {
            self.batch_part(layer, &keys, xs, k, order, &mut tops)?;
        }
        Ok(tops.into_iter().map(|top| hits(layer, top)).collect())
    }

    fn batch_part(
        &self,
        layer: usize,
        keys: &Keys<'_>,
        xs: &[f32],
        k: usize,
        order: Order,
        tops: &mut [TopK],
    ) -> Result<(), VindexError> {
        let (rows, hidden) = (keys.matrix.rows(), keys.matrix.cols());
        let mut scores = vec![0.0; tops.len() * rows]; // [n, rows]
        self.cpu.matmul(keys.matrix, xs, tops.len(), &mut scores)?;
        let norms = self.row_norms(keys.matrix);
        let unit = rounding(hidden);

        let positions = tops.iter_mut().zip(xs.chunks_exact(hidden)).zip(scores.chunks_exact(rows));
        for ((top, x), scores) in positions {
            // GEMM and canonical product are each within `unit * |g||x|` of the real number.
            let slack = 2.0 * unit * l2(x);
            // NaN anywhere is the scan's to report, with the row's name.
            let floor = floor_of_top(scores, &norms, slack, k, order);
            for (row, &score) in scores.iter().enumerate() {
                let reach = order.key(score) + slack * norms[row];
                if reach.is_nan() || reach >= floor {
                    let exact = self.cpu.dot_row(keys.matrix, row, x)?;
                    top.push(keys.first + row, exact).map_err(|e| nan_feature(e, layer, 0))?;
                }
            }
        }
        Ok(())
    }

    /// Euclidean norms of all rows, each rounded up a little so that it is an upper bound.
    fn row_norms(&self, matrix: Matrix<'_>) -> Vec<f32> {
        let mut norms = vec![0.0f32; matrix.rows()];
        self.cpu.pool().for_each_chunk(&mut norms, 64, |first, norms| {
            let mut row = vec![0.0f32; matrix.cols()];
            for (i, norm) in norms.iter_mut().enumerate() {
                // A norm that is NaN excludes nothing: the row is scored exactly, or refused there.
                let read = self.cpu.row(matrix, first + i, &mut row);
                *norm = read.map_or(f32::NAN, |()| l2(&row) * (1.0 + 1e-5));
            }
        });
        norms
    }
}

/// What the k-th best row certainly reaches: a row that cannot reach it is not in the answer.
fn floor_of_top(scores: &[f32], norms: &[f32], slack: f32, k: usize, order: Order) -> f32 {
    let mut best = TopK::new(k, Order::Signed);
    for (row, &score) in scores.iter().enumerate() {
        let certain = order.key(score) - slack * norms[row];
        // A row without a certain score (NaN, infinity) never raises the floor.
        if certain.is_finite() && best.push(row, certain).is_err() {
            return f32::NEG_INFINITY;
        }
    }
    if best.len() < k { f32::NEG_INFINITY } else { best.threshold() }
}

/// Error of an `n`-term float32 dot product in any order, in units of Σ|gᵢ||xᵢ| ≤ ‖g‖‖x‖
/// (Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., eq. 3.5).
fn rounding(n: usize) -> f32 {
    let nu = n as f32 * (f32::EPSILON / 2.0);
    nu / (1.0 - nu)
}
