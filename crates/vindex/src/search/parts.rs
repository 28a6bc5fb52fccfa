//! Where a layer's features stand in its tensors, as matrices.

use std::ops::Range;

use larql_checkpoint::TensorId;
use larql_compute::Matrix;

use super::Search;
use crate::VindexError;

/// Rows that stand for the features `first..first + matrix.rows()`.
pub(super) struct Keys<'a> {
    pub(super) first: usize,
    pub(super) matrix: Matrix<'a>,
}

/// A block of down rows (`[hidden_size, n]`) whose columns are the features `first..first + n`.
pub(super) struct Columns<'a> {
    pub(super) first: usize,
    pub(super) matrix: Matrix<'a>,
}

impl<'a> Search<'a> {
    /// The key rows of the features in `features`, in order.
    pub(super) fn keys(
        &self,
        layer: usize,
        features: Range<usize>,
    ) -> Result<Vec<Keys<'a>>, VindexError> {
        let parts = self.vindex.config().ffn_keys(layer);
        self.rows_of(layer, parts, features)
    }

    /// The up rows of the features in `features`; empty where the network has no gate.
    pub(super) fn ups(
        &self,
        layer: usize,
        features: Range<usize>,
    ) -> Result<Vec<Keys<'a>>, VindexError> {
        let parts = self.vindex.config().ffn_ups(layer);
        self.rows_of(layer, parts, features)
    }

    fn rows_of(
        &self,
        layer: usize,
        parts: Vec<larql_checkpoint::config::FfnPart>,
        features: Range<usize>,
    ) -> Result<Vec<Keys<'a>>, VindexError> {
        let mut found = Vec::with_capacity(parts.len());
        for part in parts {
            let start = features.start.max(part.first_feature);
            let end = features.end.min(part.first_feature + part.rows.len());
            if start < end {
                let matrix = self.vindex.require(TensorId::layer(part.role, layer))?;
                let base = part.rows.start;
                let rows = base + start - part.first_feature..base + end - part.first_feature;
                found.push(Keys { first: start, matrix: matrix.row_range(rows) });
            }
        }
        Ok(found)
    }

    /// The down blocks of a layer: one for a dense layer, one for each expert otherwise.
    pub(super) fn downs(&self, layer: usize) -> Result<Vec<Columns<'a>>, VindexError> {
        let parts = self.vindex.config().ffn_downs(layer).into_iter();
        parts
            .map(|part| {
                let matrix = self.vindex.require(TensorId::layer(part.role, layer))?;
                Ok(Columns { first: part.first_feature, matrix: matrix.row_range(part.rows) })
            })
            .collect()
    }

    /// All features of a layer, or those of one expert; the shared experts of a layer count as one
    /// more expert behind the routed ones.
    pub(super) fn features(
        &self,
        layer: usize,
        expert: Option<usize>,
    ) -> Result<Range<usize>, VindexError> {
        let n_features = self.vindex.n_features(layer)?;
        let Some(expert) = expert else { return Ok(0..n_features) };
        let size = self.vindex.config().expert_size(layer);
        let size = size.ok_or(VindexError::NotMoe { layer })?;
        let n_routed = self.vindex.config().moe.as_ref().map_or(0, |moe| moe.n_experts);
        let has_shared = n_features > n_routed * size;
        match expert {
            e if e < n_routed => Ok(e * size..(e + 1) * size),
            e if e == n_routed && has_shared => Ok(n_routed * size..n_features),
            _ => Err(VindexError::NoSuchExpert {
                layer,
                expert,
                n_experts: n_routed + usize::from(has_shared),
            }),
        }
    }
}
