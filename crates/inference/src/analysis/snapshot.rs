//! What flows through the model at one position, and the residuals at several.

use crate::analysis::features;
use crate::hooks::{Hooks, Point};
use crate::{CacheOptions, InferenceError, KvDtype, Model, Overflow, State};

/// What the parts of the model give at the last position of a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The scaled embedding, with learned positions, `[hidden_size]`.
    pub embedding: Vec<f32>,
    /// The blocks.
    pub layers: Vec<LayerSnapshot>,
    /// The hidden state after the final norm, `[hidden_size]`.
    pub hidden: Vec<f32>,
}

/// What one block gives at one position.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LayerSnapshot {
    /// What attention adds to the residual, after any post-norm, `[hidden_size]`.
    pub attn_out: Vec<f32>,
    /// Every feature's activation, of experts times the weight of the expert, `[n_features]`.
    pub activations: Vec<f32>,
    /// What the FFN adds to the residual, after any post-norm, `[hidden_size]`.
    pub mlp_out: Vec<f32>,
    /// The residual after the block, `[hidden_size]`.
    pub resid_post: Vec<f32>,
}

impl Snapshot {
    /// Runs `tokens` and keeps what happens at the last of them. To see an earlier position, give
    /// the tokens up to it: none depends on what follows.
    ///
    /// # Errors
    /// Those of the forward pass; an empty text.
    pub fn take(model: &Model<'_>, tokens: &[u32]) -> Result<Self, InferenceError> {
        let mut state = state_for(model, tokens)?;
        let mut last = Last {
            model,
            last: tokens.len() - 1,
            mlp_in: Vec::new(),
            embedding: Vec::new(),
            layers: vec![LayerSnapshot::default(); model.config().n_layers],
        };
        model.feed_with(&mut state, tokens, &mut last)?;
        let (embedding, layers) = (last.embedding, last.layers);
        Ok(Self { embedding, layers, hidden: state.hidden().to_vec() })
    }

    /// The residual after the last block, `[hidden_size]`.
    pub fn residual(&self) -> &[f32] {
        self.layers.last().map_or(&self.embedding, |layer| &layer.resid_post)
    }
}

impl LayerSnapshot {
    /// Attention's share of what the block adds to the residual: its projection on that addition,
    /// in units of the addition. The FFN's is 1 less this. Above 1 or below 0 where the two work
    /// against each other.
    pub fn attention_share(&self) -> f64 {
        let pairs = self.attn_out.iter().zip(&self.mlp_out);
        let (mut along, mut all) = (0.0_f64, 0.0_f64);
        for (&attention, &ffn) in pairs {
            let (attention, both) = (f64::from(attention), f64::from(attention) + f64::from(ffn));
            along += attention * both;
            all += both * both;
        }
        if all > 0.0 { along / all } else { 0.0 }
    }
}

/// A state for exactly these tokens.
pub(super) fn state_for(model: &Model<'_>, tokens: &[u32]) -> Result<State, InferenceError> {
    if tokens.is_empty() {
        return Err(InferenceError::NothingFed);
    }
    let (kv, overflow) = (KvDtype::default(), Overflow::Error);
    model.state(CacheOptions { context: tokens.len(), kv, overflow })
}

/// The rows of `values` from position `from` on; `first` is the position of the first row.
pub(super) fn rows_from(values: &mut [f32], width: usize, first: usize, from: usize) -> &mut [f32] {
    let skipped = from.saturating_sub(first).saturating_mul(width).min(values.len());
    &mut values[skipped..]
}

struct Last<'a> {
    model: &'a Model<'a>,
    last: usize,
    mlp_in: Vec<f32>,
    embedding: Vec<f32>,
    layers: Vec<LayerSnapshot>,
}

impl Hooks for Last<'_> {
    fn wants(&self, point: Point) -> bool {
        matches!(
            point,
            Point::Embed
                | Point::AttnOut(_)
                | Point::MlpIn(_)
                | Point::MlpPost(_)
                | Point::MlpOut(_)
                | Point::ResidPost(_)
        )
    }

    fn at(&mut self, point: Point, first: usize, values: &mut [f32]) -> Result<(), InferenceError> {
        let width = match point {
            Point::MlpPost(layer) => self.model.config().n_features(layer),
            _ => self.model.config().hidden_size,
        };
        let row = rows_from(values, width, first, self.last);
        if row.is_empty() {
            return Ok(());
        }
        match point {
            Point::Embed => self.embedding = row.to_vec(),
            Point::AttnOut(layer) => self.layers[layer].attn_out = row.to_vec(),
            Point::MlpIn(_) => self.mlp_in = row.to_vec(),
            Point::MlpPost(layer) => {
                let mut activations = row.to_vec();
                features::weigh(self.model, layer, &self.mlp_in, &mut activations)?;
                self.layers[layer].activations = activations;
            }
            Point::MlpOut(layer) => self.layers[layer].mlp_out = row.to_vec(),
            Point::ResidPost(layer) => self.layers[layer].resid_post = row.to_vec(),
            _ => {}
        }
        Ok(())
    }
}

/// The residuals after every block, at all positions from one on.
#[derive(Debug, Clone, PartialEq)]
pub struct Residuals {
    from: usize,
    hidden_size: usize,
    layers: Vec<Vec<f32>>,
}

impl Residuals {
    /// Runs `tokens` and keeps the residuals of the positions `from..`.
    ///
    /// # Errors
    /// Those of the forward pass; an empty text.
    pub fn take(model: &Model<'_>, tokens: &[u32], from: usize) -> Result<Self, InferenceError> {
        let mut state = state_for(model, tokens)?;
        let config = model.config();
        let layers = vec![Vec::new(); config.n_layers];
        let mut residuals = Self { from, hidden_size: config.hidden_size, layers };
        model.feed_with(&mut state, tokens, &mut residuals)?;
        Ok(residuals)
    }

    /// After block `layer`, `[n_positions, hidden_size]`.
    pub fn after(&self, layer: usize) -> &[f32] {
        self.layers.get(layer).map_or(&[], Vec::as_slice)
    }
}

impl Hooks for Residuals {
    fn wants(&self, point: Point) -> bool {
        matches!(point, Point::ResidPost(_))
    }

    fn at(&mut self, point: Point, first: usize, values: &mut [f32]) -> Result<(), InferenceError> {
        if let Point::ResidPost(layer) = point {
            let rows = rows_from(values, self.hidden_size, first, self.from);
            self.layers[layer].extend_from_slice(rows);
        }
        Ok(())
    }
}
