//! Direct logit attribution: the logit of a token as a sum over the parts of the model.
//!
//! The residual before the final norm is the sum of the embedding and of everything that attention
//! and FFNs add. The final norm is linear once its scale (one over the root mean square of this
//! residual) is held fast, so the logit is a sum with one term for each part; a LayerNorm's mean
//! is taken off each part, and its bias is a part of its own. What an FFN adds is again a sum over
//! its features; where a norm follows the FFN, its scale is held fast as well.
//!
//! The terms say what each part adds **directly**. What a part does through later layers, and what
//! would happen to the norms without it, they do not say.

use larql_compute::{Order, Scored, TopK};

use crate::analysis::{Snapshot, dot, features};
use crate::{InferenceError, Model};

/// The terms of a logit, or of the difference of two.
#[derive(Debug, Clone, PartialEq)]
pub struct Attribution {
    /// The logit by the model itself, before any soft-cap.
    pub logit: f64,
    /// The embedding's term.
    pub embedding: f64,
    /// The blocks' terms.
    pub layers: Vec<LayerAttribution>,
    /// The term of the final norm's bias.
    pub norm_bias: f64,
}

/// The terms of one block.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerAttribution {
    /// Attention's term.
    pub attention: f64,
    /// The FFN's term.
    pub ffn: f64,
    /// Of `ffn`: every feature's, `[n_features]`.
    pub features: Vec<f32>,
    /// What a feature adds for each unit of activation, `[n_features]`; 0 for those of experts that
    /// were not visited.
    pub slopes: Vec<f32>,
    /// Of `ffn`: the down projection's bias.
    pub ffn_bias: f64,
}

impl LayerAttribution {
    /// What is left of `ffn` without features and bias: the forward pass multiplies quantised
    /// matrices by activations rounded to eight bits, the features' terms are of unrounded ones.
    pub fn rounding(&self) -> f64 {
        let features: f64 = self.features.iter().map(|&f| f64::from(f)).sum();
        self.ffn - self.ffn_bias - features
    }
}

impl Attribution {
    /// The terms of `direction · hidden`, where `direction` (`[hidden_size]`) is a row of the
    /// unembedding or the difference of two.
    ///
    /// # Errors
    /// Those of the kernels.
    pub fn of(
        model: &Model<'_>,
        seen: &Snapshot,
        direction: &[f32],
    ) -> Result<Self, InferenceError> {
        let norm = &model.output_norm;
        let reader = norm.pull_back(direction, norm.scale(seen.residual()));
        let layers = seen.layers.iter().enumerate().map(|(i, layer)| {
            let feature_reader = feature_reader(model, i, &layer.activations, &reader)?;
            let slopes = features::dots(model, i, &feature_reader, &layer.activations)?;
            Ok(LayerAttribution {
                attention: dot(&reader, &layer.attn_out),
                ffn: dot(&reader, &layer.mlp_out),
                features: slopes.iter().zip(&layer.activations).map(|(s, a)| s * a).collect(),
                slopes,
                ffn_bias: dot(&feature_reader, features::down_bias(model, i)),
            })
        });
        Ok(Self {
            logit: dot(direction, &seen.hidden),
            embedding: dot(&reader, &seen.embedding),
            layers: layers.collect::<Result<_, InferenceError>>()?,
            norm_bias: dot(direction, norm.bias()),
        })
    }

    /// All terms: embedding, norm bias, attention and FFN of every block.
    pub fn sum(&self) -> f64 {
        let layers: f64 = self.layers.iter().map(|layer| layer.attention + layer.ffn).sum();
        self.embedding + self.norm_bias + layers
    }

    /// The `n` features with the largest terms of either sign: layer, feature and term.
    ///
    /// # Errors
    /// A term that is NaN.
    pub fn strongest(&self, n: usize) -> Result<Vec<(usize, usize, f32)>, InferenceError> {
        let sizes = self.layers.iter().map(|layer| layer.features.len());
        let firsts: Vec<usize> =
            sizes.scan(0, |next, size| Some(std::mem::replace(next, *next + size))).collect();
        let mut top = TopK::new(n, Order::Abs);
        for (layer, &first) in self.layers.iter().zip(&firsts) {
            for (feature, &term) in layer.features.iter().enumerate() {
                top.push(first + feature, term)?;
            }
        }
        let place = |scored: Scored| {
            let layer = firsts.partition_point(|&first| first <= scored.row) - 1;
            (layer, scored.row - firsts[layer], scored.score)
        };
        Ok(top.into_sorted().into_iter().map(place).collect())
    }

    /// The sum of the terms' sizes, of which the rounding error of [`Attribution::sum`] is a small
    /// share.
    pub fn size(&self) -> f64 {
        let layers = self.layers.iter().map(|layer| layer.attention.abs() + layer.ffn.abs());
        self.embedding.abs() + self.norm_bias.abs() + layers.sum::<f64>()
    }
}

/// The vector whose dot product with a down column of block `layer`, times the activation, is that
/// feature's term, `[hidden_size]`: `reader` through the post-FFN norm, where there is one.
pub(super) fn feature_reader(
    model: &Model<'_>,
    layer: usize,
    activations: &[f32],
    reader: &[f32],
) -> Result<Vec<f32>, InferenceError> {
    let Some(norm) = &model.layers[layer].post_ffn_norm else { return Ok(reader.to_vec()) };
    let sum = features::sum(model, layer, activations)?;
    Ok(norm.pull_back(reader, norm.scale(&sum)))
}
