//! `walk`: the features that answer a query, layer by layer.

use std::ops::Range;

use larql_checkpoint::{Role, TensorId};
use larql_compute::{Matrix, Order};

use super::norm::normalise;
use super::{Hit, Search};
use crate::VindexError;

/// What stands for the residual at each layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Query {
    /// The token's embedding through each layer's own FFN norm, no forward pass. Attention and all
    /// earlier layers are left out, so it resembles the real residual poorly beyond the first
    /// layers: a cheap look, not what the model computes.
    Embedding,
}

/// What to walk over.
#[derive(Debug, Clone, PartialEq)]
pub struct WalkOptions {
    /// What stands for the residual.
    pub query: Query,
    /// Layers to visit; all where `None`.
    pub layers: Option<Range<usize>>,
    /// Features to return for each layer.
    pub top: usize,
    /// How hits are ranked.
    pub order: Order,
}

impl Default for WalkOptions {
    fn default() -> Self {
        Self { query: Query::Embedding, layers: None, top: 5, order: Order::Abs }
    }
}

/// One layer of a walk.
#[derive(Debug, Clone, PartialEq)]
pub struct WalkLayer {
    /// The layer.
    pub layer: usize,
    /// Its strongest features; the score is gate · query.
    pub hits: Vec<Hit>,
}

/// The answer to `walk`.
#[derive(Debug, Clone, PartialEq)]
pub struct Walk {
    /// The token whose embedding asked.
    pub token: u32,
    /// What stood for the residual.
    pub query: Query,
    /// The layers visited, in order.
    pub layers: Vec<WalkLayer>,
}

impl Search<'_> {
    /// Walks the layers with the embedding of `token`.
    ///
    /// # Errors
    /// A token outside the vocabulary, layers that the model does not have, a level without
    /// embeddings, gates or norms.
    pub fn walk(&self, token: u32, options: &WalkOptions) -> Result<Walk, VindexError> {
        let embedding = self.embedding(token)?;
        let mut layers = Vec::new();
        for layer in self.checked_layers(options.layers.clone())? {
            let query = self.ffn_input(layer, &embedding)?;
            let hits = self.gate_knn(layer, &query, options.top, options.order, None)?;
            layers.push(WalkLayer { layer, hits });
        }
        Ok(Walk { token, query: options.query, layers })
    }

    /// The token's embedding as the first layer receives it, `[hidden_size]`: the stored row times
    /// the model's embedding scale.
    ///
    /// # Errors
    /// A token outside the vocabulary; a level without embeddings.
    pub fn embedding(&self, token: u32) -> Result<Vec<f32>, VindexError> {
        let scale = self.vindex.config().embedding_scale;
        let mut row =
            self.token_row(self.vindex.require(TensorId::global(Role::TokenEmbd))?, token)?;
        row.iter_mut().for_each(|v| *v *= scale);
        Ok(row)
    }

    /// The token's row of the LM head (the token embedding where the model ties them),
    /// `[hidden_size]`.
    ///
    /// # Errors
    /// A token outside the vocabulary; a level without the matrix.
    pub fn unembedding(&self, token: u32) -> Result<Vec<f32>, VindexError> {
        self.token_row(self.vindex.unembedding()?, token)
    }

    /// What `layer`'s FFN receives when `residual` is the residual before it: `residual` through
    /// the layer's FFN norm.
    ///
    /// # Errors
    /// A level without norm weights.
    pub fn ffn_input(&self, layer: usize, residual: &[f32]) -> Result<Vec<f32>, VindexError> {
        let weight = self.vindex.vector(TensorId::layer(Role::FfnNorm, layer))?;
        let bias = self.optional_vector(TensorId::layer(Role::FfnNormBias, layer))?;
        let mut x = residual.to_vec();
        normalise(self.vindex.config(), &mut x, &weight, bias.as_deref());
        Ok(x)
    }

    fn token_row(&self, matrix: Matrix<'_>, token: u32) -> Result<Vec<f32>, VindexError> {
        let row = token as usize;
        if row >= matrix.rows() {
            return Err(VindexError::NoSuchToken { token, vocab_size: matrix.rows() });
        }
        let mut out = vec![0.0; matrix.cols()];
        self.cpu.row(matrix, row, &mut out)?;
        Ok(out)
    }

    pub(super) fn optional_vector(&self, id: TensorId) -> Result<Option<Vec<f32>>, VindexError> {
        self.vindex.matrix(id).map(|_| self.vindex.vector(id)).transpose()
    }

    /// `layers`, or all that the vindex holds; refused where the model has fewer.
    pub(super) fn checked_layers(
        &self,
        layers: Option<Range<usize>>,
    ) -> Result<Range<usize>, VindexError> {
        let n_layers = self.vindex.config().n_layers;
        let layers = layers.unwrap_or(self.vindex.layers());
        if layers.end > n_layers || layers.is_empty() {
            let layer = layers.end.saturating_sub(1).max(layers.start);
            return Err(VindexError::NoSuchLayer { layer, n_layers });
        }
        Ok(layers)
    }
}
