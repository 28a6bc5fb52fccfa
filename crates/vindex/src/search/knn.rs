//! Exact nearest gate rows of one residual.

use std::ops::Range;

use larql_compute::{ComputeError, Order, TopK};

use super::{Hit, Search};
use crate::VindexError;

impl Search<'_> {
    /// The `k` features of `layer` whose gate rows answer `x` (`[hidden_size]`) most strongly:
    /// score = gate · x over the dequantised row, ranked by |score| or by score, ties to the
    /// lower feature; exactly `min(k, n_features)` hits. `expert` narrows the search to one
    /// expert's features and reads only its rows.
    ///
    /// # Errors
    /// A layer or expert that the model does not have, a query of the wrong length or with a value
    /// that is not finite, a gate row that gives NaN (named), a vindex level without gates.
    pub fn gate_knn(
        &self,
        layer: usize,
        x: &[f32],
        k: usize,
        order: Order,
        expert: Option<usize>,
    ) -> Result<Vec<Hit>, VindexError> {
        let features = self.features(layer, expert)?;
        self.scan(layer, x, k, order, [features])
    }

    /// The same search over the features of the experts that a router chose (see
    /// [`Search::route`]) and of the shared ones; the rows of other experts are not read.
    ///
    /// # Errors
    /// As [`Search::gate_knn`].
    pub fn gate_knn_routed(
        &self,
        layer: usize,
        x: &[f32],
        k: usize,
        order: Order,
        experts: &[usize],
    ) -> Result<Vec<Hit>, VindexError> {
        let mut ranges = experts
            .iter()
            .map(|&expert| self.features(layer, Some(expert)))
            .collect::<Result<Vec<_>, _>>()?;
        let n_routed = self.vindex.config().moe.as_ref().map_or(0, |moe| moe.n_experts);
        ranges.extend(self.features(layer, Some(n_routed)).ok());
        self.scan(layer, x, k, order, ranges)
    }

    fn scan(
        &self,
        layer: usize,
        x: &[f32],
        k: usize,
        order: Order,
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<Vec<Hit>, VindexError> {
        let mut top = TopK::new(k, order);
        for range in ranges {
            for keys in self.keys(layer, range)? {
                let found = self
                    .cpu
                    .top_k_rows(keys.matrix, x, k, order)
                    .map_err(|error| nan_feature(error, layer, keys.first))?;
                for hit in found {
                    top.push(keys.first + hit.row, hit.score)?;
                }
            }
        }
        Ok(hits(layer, top))
    }
}

pub(super) fn hits(layer: usize, top: TopK) -> Vec<Hit> {
    let sorted = top.into_sorted().into_iter();
    sorted.map(|s| Hit { layer, feature: s.row, score: s.score }).collect()
}

/// A NaN score names a row of a part; the caller wants the feature.
pub(super) fn nan_feature(error: ComputeError, layer: usize, first: usize) -> VindexError {
    match error {
        ComputeError::NanScore { row } => VindexError::NanFeature { layer, feature: first + row },
        other => other.into(),
    }
}
