//! Why a token: the features that speak for it more than they usually do, and what becomes of it
//! without them.
//!
//! A feature's score is `(activation − baseline) × (direction · what it writes)`: the baseline is
//! its usual activation, the direction the token's row of the unembedding less the alternative's.
//! It is the first-order effect on the logit of setting the feature back to its baseline, by the
//! direct path only; what really happens, [`logits_with`] says.

use larql_compute::{Order, Scored, TopK};

use crate::analysis::snapshot::{rows_from, state_for};
use crate::analysis::{Attribution, Snapshot, features, lens};
use crate::hooks::{Hooks, Point};
use crate::{InferenceError, Model};

/// A feature and its part in a token's logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cause {
    /// The layer.
    pub layer: usize,
    /// The feature.
    pub feature: usize,
    /// Its activation.
    pub activation: f32,
    /// What that is compared with.
    pub baseline: f32,
    /// What the difference adds to the token's logit, less the alternative's.
    pub score: f32,
}

/// Every feature's score.
#[derive(Debug, Clone, PartialEq)]
pub struct Causes {
    all: Vec<Cause>,
}

impl Causes {
    /// The scores at the position of `seen`, of which `found` is the attribution, against
    /// `baseline` (`[n_features]` a layer).
    pub fn of(found: &Attribution, seen: &Snapshot, baseline: &[Vec<f32>]) -> Self {
        let mut all = Vec::with_capacity(baseline.iter().map(Vec::len).sum());
        let layers = found.layers.iter().zip(&seen.layers).zip(baseline).enumerate();
        for (layer, ((terms, seen), baseline)) in layers {
            let parts = terms.slopes.iter().zip(&seen.activations).zip(baseline).enumerate();
            all.extend(parts.map(|(feature, ((&slope, &activation), &baseline))| {
                let score = (activation - baseline) * slope;
                Cause { layer, feature, activation, baseline, score }
            }));
        }
        Self { all }
    }

    /// The `n` features with the highest scores: those that speak for the token.
    ///
    /// # Errors
    /// A score that is NaN.
    pub fn speaking_for(&self, n: usize) -> Result<Vec<Cause>, InferenceError> {
        Ok(self.top(n, 1.0)?.into_iter().filter(|cause| cause.score > 0.0).collect())
    }

    /// The `n` features with the lowest scores: those that speak against it.
    ///
    /// # Errors
    /// A score that is NaN.
    pub fn speaking_against(&self, n: usize) -> Result<Vec<Cause>, InferenceError> {
        Ok(self.top(n, -1.0)?.into_iter().filter(|cause| cause.score < 0.0).collect())
    }

    fn top(&self, n: usize, sign: f32) -> Result<Vec<Cause>, InferenceError> {
        let mut top = TopK::new(n, Order::Signed);
        for (row, cause) in self.all.iter().enumerate() {
            top.push(row, sign * cause.score)?;
        }
        Ok(top.into_sorted().into_iter().map(|Scored { row, .. }| self.all[row]).collect())
    }

    /// All of them, by layer and feature.
    pub fn all(&self) -> &[Cause] {
        &self.all
    }
}

/// The row of the unembedding that stands for everything but `token` that the model might say: the
/// average of all other rows, each with its probability by `logits` (`[vocab_size]`). The logit of
/// the token less that of this row changes, to first order, as the logarithm of the token's odds.
///
/// # Errors
/// Those of the kernels.
pub fn everything_else(
    model: &Model<'_>,
    logits: &[f32],
    token: u32,
) -> Result<Vec<f32>, InferenceError> {
    /// Rarer tokens are left out; all of them together are rarer than one in 10,000.
    const RARE: f64 = 1e-10;
    let total = lens::log_sum(logits);
    let chance = |logit: f32| (f64::from(logit) - total).exp();
    let rows = model.head().rows();
    let mut row = vec![0.0; rows.cols()];
    let (mut sum, mut weight) = (vec![0.0_f64; rows.cols()], 0.0);
    for (other, &logit) in logits.iter().enumerate() {
        let chance = chance(logit);
        if other == token as usize || chance < RARE {
            continue;
        }
        model.cpu().row(rows, other, &mut row)?;
        sum.iter_mut().zip(&row).for_each(|(sum, &v)| *sum += chance * f64::from(v));
        weight += chance;
    }
    Ok(sum.iter().map(|sum| if weight > 0.0 { (sum / weight) as f32 } else { 0.0 }).collect())
}

/// A feature and the activation that it gets, of experts times the expert's weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Replaced {
    /// The layer.
    pub layer: usize,
    /// The feature.
    pub feature: usize,
    /// The activation.
    pub activation: f32,
}

/// The logits after `tokens`, `[vocab_size]`, with some features replaced at the last position. Of
/// experts that the position does not visit nothing is replaced.
///
/// # Errors
/// Those of the forward pass; an empty text.
pub fn logits_with(
    model: &Model<'_>,
    tokens: &[u32],
    replaced: &[Replaced],
) -> Result<Vec<f32>, InferenceError> {
    let mut state = state_for(model, tokens)?;
    let mut by_layer = vec![Vec::new(); model.config().n_layers];
    for one in replaced {
        let n_features = (one.layer < by_layer.len()).then(|| model.config().n_features(one.layer));
        if n_features.is_none_or(|n| one.feature >= n) {
            return Err(InferenceError::Option {
                what: "a feature to replace",
                found: format!("{}:{}", one.layer, one.feature),
                expected: "one that the model has",
            });
        }
        by_layer[one.layer].push((one.feature, one.activation));
    }
    let mut hooks = Replace { model, by_layer, last: tokens.len() - 1, h: Vec::new() };
    model.feed_with(&mut state, tokens, &mut hooks)?;
    let mut logits = Vec::new();
    model.logits(&mut state, &mut logits)?;
    Ok(logits)
}

struct Replace<'a> {
    model: &'a Model<'a>,
    by_layer: Vec<Vec<(usize, f32)>>,
    last: usize,
    h: Vec<f32>,
}

impl Hooks for Replace<'_> {
    fn wants(&self, point: Point) -> bool {
        match point {
            Point::MlpIn(layer) | Point::MlpPost(layer) => !self.by_layer[layer].is_empty(),
            _ => false,
        }
    }

    fn at(&mut self, point: Point, first: usize, values: &mut [f32]) -> Result<(), InferenceError> {
        let config = self.model.config();
        let Point::MlpPost(layer) = point else {
            self.h = rows_from(values, config.hidden_size, first, self.last).to_vec();
            return Ok(());
        };
        let row = rows_from(values, config.n_features(layer), first, self.last);
        if row.is_empty() {
            return Ok(());
        }
        // The expert's weight is multiplied in after this point.
        let mut weights = vec![1.0; row.len()];
        features::weigh(self.model, layer, &self.h, &mut weights)?;
        for &(feature, activation) in &self.by_layer[layer] {
            if weights[feature] != 0.0 {
                row[feature] = activation / weights[feature];
            }
        }
        Ok(())
    }
}

/// The natural logarithm of a token's probability by `logits` (`[vocab_size]`).
pub fn log_prob(logits: &[f32], token: u32) -> f64 {
    logits
        .get(token as usize)
        .map_or(f64::NEG_INFINITY, |&logit| f64::from(logit) - lens::log_sum(logits))
}

/// The Kullback-Leibler divergence of what two rows of logits (`[vocab_size]`) say, in nats: how
/// much worse `after` predicts what `before` would have said.
pub fn divergence(before: &[f32], after: &[f32]) -> f64 {
    let (total, other) = (lens::log_sum(before), lens::log_sum(after));
    let terms = before.iter().zip(after).map(|(&b, &a)| {
        let (b, a) = (f64::from(b) - total, f64::from(a) - other);
        if b == f64::NEG_INFINITY { 0.0 } else { b.exp() * (b - a) }
    });
    terms.sum::<f64>().max(0.0)
}
