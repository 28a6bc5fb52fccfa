//! What features do on average: the reference that activations are compared with.

use larql_vindex::{Progress, VindexError};

use crate::analysis::each::Each;
use crate::analysis::snapshot::state_for;
use crate::{InferenceError, Model};

/// Every feature's mean activation over a text.
#[derive(Debug, Clone, PartialEq)]
pub struct ReferenceMeans {
    /// Positions that they are taken over.
    pub positions: u64,
    /// `[n_features]` a layer; of experts times the expert's weight, 0 where it is not visited.
    pub layers: Vec<Vec<f32>>,
}

impl ReferenceMeans {
    /// Runs each of `documents` by itself. The first position of each is left out: models use it
    /// as an attention sink, and no feature does there what it does elsewhere.
    ///
    /// # Errors
    /// Those of the forward pass; no document with a second position;
    /// [`VindexError::Cancelled`].
    pub fn take(
        model: &Model<'_>,
        documents: &[Vec<u32>],
        progress: &dyn Progress,
    ) -> Result<Self, InferenceError> {
        let config = model.config();
        let lens = documents.iter().map(|tokens| tokens.len().saturating_sub(1) as u64);
        let positions: u64 = lens.sum();
        if positions == 0 {
            return Err(InferenceError::NothingFed);
        }
        let mut sums: Vec<Vec<f64>> =
            (0..config.n_layers).map(|layer| vec![0.0; config.n_features(layer)]).collect();
        progress.start("reading the reference text", positions, "tokens");
        let mut fed = Ok(());
        for tokens in documents.iter().filter(|tokens| tokens.len() > 1) {
            let add = |layer: usize, _: usize, activations: &[f32]| {
                let pairs = sums[layer].iter_mut().zip(activations);
                pairs.for_each(|(sum, &a)| *sum += f64::from(a));
                Ok(())
            };
            let mut hooks = Each::new(model, 0..config.n_layers, 1, add);
            fed = state_for(model, tokens)
                .and_then(|mut state| model.feed_with(&mut state, tokens, &mut hooks));
            if fed.is_err() || progress.cancelled() {
                break;
            }
            progress.advance(tokens.len() as u64 - 1);
        }
        progress.finish();
        fed?;
        if progress.cancelled() {
            return Err(VindexError::Cancelled { left: "no means were stored".to_owned() }.into());
        }
        let mean = |sum: &f64| (sum / positions as f64) as f32;
        let layers = sums.iter().map(|layer| layer.iter().map(mean).collect()).collect();
        Ok(Self { positions, layers })
    }
}
