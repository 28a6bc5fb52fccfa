//! What a feature writes: its down column as the unembedding sees it.
//!
//! A down column reaches the logits through the layer's post-FFN norm (where the model has one)
//! and the final norm. Both multiply by a weight vector, and a LayerNorm subtracts the mean; their
//! scalar factors depend on the token and do not change a direction.

use larql_checkpoint::config::NormKind;
use larql_checkpoint::{Role, TensorId};
use larql_compute::Matrix;

use super::Search;
use super::norm::l2;
use crate::{Vindex, VindexError};

/// The map from a layer's down columns to output directions.
#[derive(Debug, Clone)]
pub struct OutputDirections {
    /// Product of the norm weights, `[hidden_size]`.
    weight: Vec<f32>,
    /// Whether the final norm subtracts the mean first.
    centred: bool,
}

impl OutputDirections {
    /// The map for one layer of `vindex`.
    ///
    /// # Errors
    /// A vindex whose level has no norm weights.
    pub fn of(vindex: &Vindex, layer: usize) -> Result<Self, VindexError> {
        let mut weight = vindex.vector(TensorId::global(Role::OutputNorm))?;
        if vindex.config().post_norms {
            let post = vindex.vector(TensorId::layer(Role::PostFfnNorm, layer))?;
            weight.iter_mut().zip(&post).for_each(|(w, p)| *w *= p);
        }
        Ok(Self { weight, centred: vindex.config().norm.kind == NormKind::Layer })
    }

    /// Turns a down column (`[hidden_size]`) into the direction that it writes, in place.
    pub fn apply(&self, column: &mut [f32]) {
        if self.centred {
            let mean = column.iter().map(|&v| f64::from(v)).sum::<f64>() / column.len() as f64;
            column.iter_mut().for_each(|v| *v -= mean as f32);
        }
        column.iter_mut().zip(&self.weight).for_each(|(v, w)| *v *= w);
    }

    /// The vector whose dot product with a *raw* down column is that column's direction · `u`.
    fn pull_back(&self, u: &[f32]) -> Vec<f32> {
        let mut back: Vec<f32> = u.iter().zip(&self.weight).map(|(u, w)| u * w).collect();
        if self.centred {
            let mean = back.iter().map(|&v| f64::from(v)).sum::<f64>() / back.len() as f64;
            back.iter_mut().for_each(|v| *v -= mean as f32);
        }
        back
    }
}

impl Search<'_> {
    /// Cosine of every feature's output direction in `layer` with each of `targets`
    /// (`[n][hidden_size]`); the result is `[n][n_features]`. A feature that writes nothing has
    /// cosine 0.
    pub(super) fn output_cosines(
        &self,
        layer: usize,
        targets: &[Vec<f32>],
    ) -> Result<Vec<Vec<f32>>, VindexError> {
        let directions = OutputDirections::of(self.vindex, layer)?;
        let pulled: Vec<Vec<f32>> = targets.iter().map(|u| directions.pull_back(u)).collect();
        let mut cosines = vec![Vec::with_capacity(self.vindex.n_features(layer)?); targets.len()];
        for block in self.downs(layer)? {
            let (dots, lengths) = self.dots_and_lengths(block.matrix, &directions, &pulled)?;
            for ((cosines, dots), target) in cosines.iter_mut().zip(dots).zip(targets) {
                let norm = l2(target);
                cosines.extend(dots.iter().zip(&lengths).map(|(dot, length)| {
                    let product = length * norm;
                    if product > 0.0 { dot / product } else { 0.0 }
                }));
            }
        }
        Ok(cosines)
    }

    /// For every column of `down` (`[hidden_size, n]`): the dot product of its direction with each
    /// target, `[n_targets][n]`, and the direction's length, `[n]`. Reads the rows once: row `i`
    /// adds `pulled[i] * row` to the dot products and its weighted square to the lengths.
    #[allow(clippy::type_complexity, reason = "two results of one pass")]
    fn dots_and_lengths(
        &self,
        down: Matrix<'_>,
        directions: &OutputDirections,
        pulled: &[Vec<f32>],
    ) -> Result<(Vec<Vec<f32>>, Vec<f32>), VindexError> {
        let n = down.cols();
        let mut dots = vec![vec![0.0f32; n]; pulled.len()];
        let mut squares = vec![0.0f32; n];
        let mut sums = vec![0.0f32; n];
        let mut crosses = vec![0.0f32; n];
        let mut row = vec![0.0f32; n];
        for (i, &weight) in directions.weight.iter().enumerate() {
            self.cpu.row(down, i, &mut row)?;
            for (dots, pulled) in dots.iter_mut().zip(pulled) {
                let factor = pulled[i];
                dots.iter_mut().zip(&row).for_each(|(d, v)| *d += factor * v);
            }
            let ww = weight * weight;
            squares.iter_mut().zip(&row).for_each(|(s, v)| *s += ww * v * v);
            if directions.centred {
                sums.iter_mut().zip(&row).for_each(|(s, v)| *s += v);
                crosses.iter_mut().zip(&row).for_each(|(c, v)| *c += ww * v);
            }
        }
        // |w∘(d − m)|² = Σ w²d² − 2m Σ w²d + m² Σ w², so one pass is enough.
        let hidden = directions.weight.len() as f32;
        let total: f32 = directions.weight.iter().map(|w| w * w).sum();
        let length = |j: usize| {
            let mean = sums[j] / hidden;
            (squares[j] - 2.0 * mean * crosses[j] + mean * mean * total).max(0.0).sqrt()
        };
        Ok((dots, (0..n).map(length).collect()))
    }
}
