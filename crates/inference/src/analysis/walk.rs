//! The walk with the real residual: which features fire at each position, ranked by how much they
//! write.

use std::ops::Range;

use larql_compute::{Order, TopK};

use crate::analysis::features;
use crate::analysis::snapshot::{rows_from, state_for};
use crate::hooks::{Hooks, Point};
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
    let mut state = state_for(model, tokens)?;
    let mut hooks = Walk { model, options, h: Vec::new(), found: Vec::new() };
    model.feed_with(&mut state, tokens, &mut hooks)?;
    let mut found = hooks.found;
    // Stable: within a layer and position they stay ranked.
    found.sort_by_key(|firing| (firing.position, firing.layer));
    Ok(found)
}

struct Walk<'a> {
    model: &'a Model<'a>,
    options: &'a WalkOptions,
    h: Vec<f32>,
    found: Vec<Firing>,
}

impl Hooks for Walk<'_> {
    fn wants(&self, point: Point) -> bool {
        match point {
            Point::MlpIn(layer) | Point::MlpPost(layer) => self.options.layers.contains(&layer),
            _ => false,
        }
    }

    fn at(&mut self, point: Point, first: usize, values: &mut [f32]) -> Result<(), InferenceError> {
        let config = self.model.config();
        let Point::MlpPost(layer) = point else {
            self.h = rows_from(values, config.hidden_size, first, self.options.from).to_vec();
            return Ok(());
        };
        let n_features = config.n_features(layer);
        let rows = rows_from(values, n_features, first, self.options.from);
        if rows.is_empty() {
            return Ok(());
        }
        let lengths = features::lengths(self.model, layer)?;
        let inputs = self.h.chunks_exact(config.hidden_size);
        for (i, (row, h)) in rows.chunks_exact(n_features).zip(inputs).enumerate() {
            let mut activations = row.to_vec();
            features::weigh(self.model, layer, h, &mut activations)?;
            let mut top = TopK::new(self.options.top, Order::Signed);
            let mut all = 0.0_f64;
            for (feature, (a, length)) in activations.iter().zip(&lengths).enumerate() {
                let contribution = a.abs() * length;
                all += f64::from(contribution);
                top.push(feature, contribution)?;
            }
            self.found.extend(top.into_sorted().into_iter().map(|scored| Firing {
                position: first.max(self.options.from) + i,
                layer,
                feature: scored.row,
                activation: activations[scored.row],
                contribution: scored.score,
                share: if all > 0.0 { (f64::from(scored.score) / all) as f32 } else { 0.0 },
            }));
        }
        Ok(())
    }
}
