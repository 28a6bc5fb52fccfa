//! Everything that is stored about one feature.

use larql_compute::dequantize_row;

use super::norm::l2;
use super::parts::Keys;
use super::{OutputDirections, Search};
use crate::VindexError;

/// The record of one feature, without its labels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FeatureFacts {
    /// Layer of the feature.
    pub layer: usize,
    /// Feature within the layer.
    pub feature: usize,
    /// Expert that it belongs to, and its position there, in a mixture of experts; shared experts
    /// are counted behind the routed ones.
    pub expert: Option<(usize, usize)>,
    /// Length of its gate row (its key).
    pub gate_norm: f32,
    /// Length of its up row, where the network is gated.
    pub up_norm: Option<f32>,
    /// Length of its down column, where the level has the down projection.
    pub down_norm: Option<f32>,
    /// Length of its output direction: the down column through the norms that follow.
    pub direction_norm: Option<f32>,
    /// Cosine between what it reads (gate) and what it writes (down).
    pub gate_down_cosine: Option<f32>,
}

impl Search<'_> {
    /// The facts about one feature, computed from its three vectors. (Its labels are a look-up in a
    /// mapped file: [`crate::labels::Labels::get`].)
    ///
    /// # Errors
    /// A layer or feature that the model does not have; a level without gates.
    pub fn feature(&self, layer: usize, feature: usize) -> Result<FeatureFacts, VindexError> {
        self.check_feature(layer, feature)?;
        let gate = self.gate_row(layer, feature)?;
        let up = match self.ups(layer, feature..feature + 1) {
            Ok(ups) => self.first_row(&ups)?,
            Err(VindexError::Absent { .. }) => None,
            Err(error) => return Err(error),
        };
        let column = match self.down_column(layer, feature) {
            Ok(column) => Some(column),
            Err(VindexError::Absent { .. }) => None,
            Err(error) => return Err(error),
        };
        let direction_norm = match column.clone() {
            Some(mut column) => {
                OutputDirections::of(self.vindex, layer)?.apply(&mut column);
                Some(l2(&column))
            }
            None => None,
        };
        let size = self.vindex.config().expert_size(layer);
        Ok(FeatureFacts {
            layer,
            feature,
            expert: size.map(|size| self.expert_of(feature, size)),
            gate_norm: l2(&gate),
            up_norm: up.as_deref().map(l2),
            down_norm: column.as_deref().map(l2),
            direction_norm,
            gate_down_cosine: column.as_deref().map(|column| cosine(&gate, column)),
        })
    }

    /// The key of a feature, `[hidden_size]`: its gate row, or its up row where there is no gate.
    ///
    /// # Errors
    /// A layer or feature that the model does not have; a level without gates.
    pub fn gate_row(&self, layer: usize, feature: usize) -> Result<Vec<f32>, VindexError> {
        self.check_feature(layer, feature)?;
        let row = self.first_row(&self.keys(layer, feature..feature + 1)?)?;
        Ok(row.unwrap_or_default())
    }

    fn check_feature(&self, layer: usize, feature: usize) -> Result<(), VindexError> {
        let n_features = self.vindex.n_features(layer)?;
        if feature < n_features {
            return Ok(());
        }
        Err(VindexError::NoSuchFeature { layer, feature, n_features })
    }

    fn first_row(&self, keys: &[Keys<'_>]) -> Result<Option<Vec<f32>>, VindexError> {
        let Some(keys) = keys.first() else { return Ok(None) };
        let mut out = vec![0.0; keys.matrix.cols()];
        self.cpu.row(keys.matrix, 0, &mut out)?;
        Ok(Some(out))
    }

    /// Expert and position within it; all shared experts together are the one behind the routed.
    fn expert_of(&self, feature: usize, size: usize) -> (usize, usize) {
        let n_routed = self.vindex.config().moe.as_ref().map_or(0, |moe| moe.n_experts);
        let expert = (feature / size).min(n_routed);
        (expert, feature - expert * size)
    }

    /// The down column of a feature, `[hidden_size]`. One block of each down row is decoded
    /// for it.
    ///
    /// # Errors
    /// A layer or feature that the model does not have; a level without the down projection.
    pub fn down_column(&self, layer: usize, feature: usize) -> Result<Vec<f32>, VindexError> {
        self.check_feature(layer, feature)?;
        let blocks = self.downs(layer)?;
        let Some(block) = blocks.iter().rev().find(|block| block.first <= feature) else {
            return Ok(Vec::new());
        };
        let (down, column) = (block.matrix, feature - block.first);
        let len = down.dtype().block_len();
        let bytes = column / len * down.dtype().block_bytes();
        let bytes = bytes..bytes + down.dtype().block_bytes();
        let mut values = vec![0.0; len];
        let element = |row| {
            dequantize_row(down.dtype(), &down.row_bytes(row)[bytes.clone()], &mut values);
            values[column % len]
        };
        Ok((0..down.rows()).map(element).collect())
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot: f64 = a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
    (dot / f64::from(l2(a) * l2(b)).max(f64::MIN_POSITIVE)) as f32
}
