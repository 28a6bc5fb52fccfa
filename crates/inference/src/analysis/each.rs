//! Hooks that show every feature's activation, position by position.

use std::ops::Range;

use crate::analysis::features;
use crate::analysis::snapshot::rows_from;
use crate::hooks::{Hooks, Point};
use crate::{InferenceError, Model};

/// Calls `each` with layer, position and activations (`[n_features]`, of experts times the expert's
/// weight) for some layers and all positions from one on.
pub(super) struct Each<'a, F> {
    model: &'a Model<'a>,
    layers: Range<usize>,
    from: usize,
    each: F,
    /// The FFN's input, which the router is asked with.
    h: Vec<f32>,
}

impl<'a, F> Each<'a, F>
where
    F: FnMut(usize, usize, &[f32]) -> Result<(), InferenceError>,
{
    pub(super) fn new(model: &'a Model<'a>, layers: Range<usize>, from: usize, each: F) -> Self {
        Self { model, layers, from, each, h: Vec::new() }
    }
}

impl<F> Hooks for Each<'_, F>
where
    F: FnMut(usize, usize, &[f32]) -> Result<(), InferenceError>,
{
    fn wants(&self, point: Point) -> bool {
        match point {
            Point::MlpIn(layer) | Point::MlpPost(layer) => self.layers.contains(&layer),
            _ => false,
        }
    }

    fn at(&mut self, point: Point, first: usize, values: &mut [f32]) -> Result<(), InferenceError> {
        let config = self.model.config();
        let Point::MlpPost(layer) = point else {
            self.h = rows_from(values, config.hidden_size, first, self.from).to_vec();
            return Ok(());
        };
        let n_features = config.n_features(layer);
        let rows = rows_from(values, n_features, first, self.from).chunks_exact(n_features);
        let mut activations = Vec::with_capacity(n_features);
        for (i, (row, h)) in rows.zip(self.h.chunks_exact(config.hidden_size)).enumerate() {
            activations.clear();
            activations.extend_from_slice(row);
            features::weigh(self.model, layer, h, &mut activations)?;
            (self.each)(layer, first.max(self.from) + i, &activations)?;
        }
        Ok(())
    }
}
