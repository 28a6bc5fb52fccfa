//! The walk with the real residual: which features fire at each position, ranked by how much they
//! write.

use std::ops::Range;

use larql_compute::{Order, TopK};

use crate::analysis::each::Each;
use crate::analysis::features;
use crate::analysis::snapshot::state_for;
use crate::{InferenceError, Model};

/// What to walk over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkOptions {
    /// Layers to report.
    pub layers: Range<usize>,
    /// The first position to report; all after it follow.
    pub from: usize,
    /// Features to report for each layer and position.
    pub top: usize,
}

/// A feature that fires.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Firing {
    /// The position.
    pub position: usize,
    /// The layer.
    pub layer: usize,
    /// The feature.
    pub feature: usize,
    /// Its activation, which its down column is multiplied by; of experts times the expert's
    /// weight.
    pub activation: f32,
    /// `|activation| * ‖down‖`: the length of what it writes, before any post-norm.
    pub contribution: f32,
    /// Its part of the sum of all contributions of the layer at the position, 0 to 1.
    pub share: f32,
}

/// Runs `tokens` and reports for each layer and position the features of largest contribution, by
/// position, then layer, then rank.
///
/// # Errors
/// Those of the forward pass; layers that the model does not have; an empty text.
pub fn walk(
    model: &Model<'_>,
    tokens: &[u32],
    options: &WalkOptions,
) -> Result<Vec<Firing>, InferenceError> {
    if options.layers.is_empty() || options.layers.end > model.config().n_layers {
        model.vindex.check_layer(options.layers.end.saturating_sub(1).max(options.layers.start))?;
    }
    let mut lengths = vec![None; options.layers.end];
    let mut found = Vec::new();
    let rank = |layer: usize, position: usize, activations: &[f32]| {
        let lengths = match &mut lengths[layer] {
            Some(known) => known,
            unknown => unknown.insert(features::lengths(model, layer)?),
        };
        let mut top = TopK::new(options.top, Order::Signed);
        let mut all = 0.0_f64;
        for (feature, (a, length)) in activations.iter().zip(lengths.iter()).enumerate() {
            let contribution = a.abs() * length;
            all += f64::from(contribution);
            top.push(feature, contribution)?;
        }
        found.extend(top.into_sorted().into_iter().map(|scored| Firing {
            position,
            layer,
            feature: scored.row,
            activation: activations[scored.row],
            contribution: scored.score,
            share: if all > 0.0 { (f64::from(scored.score) / all) as f32 } else { 0.0 },
        }));
        Ok(())
    };
    let mut state = state_for(model, tokens)?;
    let mut hooks = Each::new(model, options.layers.clone(), options.from, rank);
    model.feed_with(&mut state, tokens, &mut hooks)?;
    // Stable: within a layer and position they stay ranked.
    found.sort_by_key(|firing| (firing.position, firing.layer));
    Ok(found)
}
