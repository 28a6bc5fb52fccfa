//! The FFN of one block: dense, or its walk (only the features that contribute most).

use std::sync::OnceLock;

use larql_checkpoint::config::Activation;
use larql_compute::{Nonlinearity, Order, TopK};

use crate::forward::{hook, resize};
use crate::hooks::{Hooks, Point};
use crate::model::{FfnWeights, Layer, Projection};
use crate::profile::Operation;
use crate::state::State;
use crate::{InferenceError, Model};

/// Which features of an FFN take part.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum FfnMode {
    /// All of them.
    #[default]
    Dense,
    /// For every position and layer only the features with the largest `|activation| * ‖down‖`.
    /// An approximation, and not a faster one unless few are kept: all gate and up rows are still
    /// read to find them.
    Walk(Keep),
}

/// How many features a walk keeps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Keep {
    /// This many of every layer.
    Count(usize),
    /// This share of every layer's features, in percent, rounded up.
    Percent(f32),
}

impl Keep {
    /// Features kept of `n`.
    pub fn of(self, n: usize) -> usize {
        match self {
            Self::Count(count) => count.min(n),
            Self::Percent(percent) => {
                let kept = (n as f64 * f64::from(percent) / 100.0).ceil();
                (kept as usize).min(n)
            }
        }
    }
}

/// The length of every feature's output direction, `[n_features]` a layer, found when first asked
/// for.
#[derive(Debug, Default)]
pub(crate) struct FeatureNorms(Vec<OnceLock<Vec<f32>>>);

impl FeatureNorms {
    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        self.0.iter().filter_map(OnceLock::get).map(|norms| size_of_val(&norms[..])).sum()
    }
}

/// The non-linearity of a configuration.
pub(crate) fn nonlinearity(activation: Activation) -> Nonlinearity {
    match activation {
        Activation::Silu => Nonlinearity::Silu,
        Activation::GeluTanh => Nonlinearity::GeluTanh,
        Activation::Gelu => Nonlinearity::Gelu,
    }
}

impl Model<'_> {
    /// Chooses which features of every FFN take part from now on.
    ///
    /// # Errors
    /// A walk over experts, which is not implemented: they choose features already.
    pub fn set_ffn_mode(&mut self, mode: FfnMode) -> Result<(), InferenceError> {
        if mode != FfnMode::Dense && self.config().moe.is_some() {
            return Err(InferenceError::WalkOverExperts);
        }
        self.feature_norms.0.resize_with(self.layers.len(), OnceLock::new);
        self.ffn_mode = mode;
        Ok(())
    }

    /// Which features take part.
    pub fn ffn_mode(&self) -> FfnMode {
        self.ffn_mode
    }

    /// The FFN of block `i` over the normed residual `h`, `[n, hidden_size]`; its output, before
    /// any post-norm, to `out`, `[n, hidden_size]`.
    pub(crate) fn ffn(
        &self,
        layer: &Layer<'_>,
        i: usize,
        first: usize,
        state: &mut State,
        hooks: &mut dyn Hooks,
    ) -> Result<(), InferenceError> {
        let (key, up, down) = match &layer.ffn {
            FfnWeights::Dense { key, up, down } => (key, *up, down),
            FfnWeights::Experts { router, score_bias, routed, shared } => {
                let bias = score_bias.as_deref();
                let experts = (*router, bias, *routed, *shared);
                return self.experts(experts, i, first, state, hooks);
            }
        };
        let (cpu, hidden) = (self.cpu, self.config().hidden_size);
        let work = &mut state.work;
        let n = work.h.len() / hidden;
        work.activations.set(self.cpu, &work.h, n)?;
        resize(&mut work.gate, n * key.matrix.rows());
        let gate = (key.matrix, &mut work.gate[..]);
        match up {
            Some(up) => {
                resize(&mut work.up, n * up.rows());
                let up = (up, &mut work.up[..]);
                cpu.project_all(&mut [gate, up], &work.activations)?;
            }
            None => cpu.project_all(&mut [gate], &work.activations)?,
        }
        key.add_bias(&mut work.gate);
        let bytes = key.matrix.bytes().len() + up.map_or(0, |up| up.bytes().len());
        state.profile.mark(Operation::GateUp, bytes);
        let f = nonlinearity(self.config().activation);
        let up = up.map(|_| &state.work.up[..]);
        cpu.activate(f, &mut state.work.gate, up)?; // [n, intermediate_size]
        hook(hooks, Point::MlpPost(i), first, &mut state.work.gate)?;
        state.profile.mark(Operation::Activation, 0);
        if let FfnMode::Walk(keep) = self.ffn_mode {
            return self.walk(i, keep.of(key.matrix.rows()), down, state);
        }
        self.down(down, n, state)
    }

    /// The down projection of all activations.
    fn down(
        &self,
        down: &Projection<'_>,
        n: usize,
        state: &mut State,
    ) -> Result<(), InferenceError> {
        let work = &mut state.work;
        work.activations.set(self.cpu, &work.gate, n)?;
        resize(&mut work.out, n * down.matrix.rows());
        self.cpu.project(down.matrix, &work.activations, &mut work.out)?;
        down.add_bias(&mut work.out);
        state.profile.mark(Operation::Down, down.matrix.bytes().len());
        Ok(())
    }

    /// The sum over the `kept` features of largest contribution: from feature-major down rows
    /// where the vindex has them, else as the down projection with all others at 0.
    fn walk(
        &self,
        i: usize,
        kept: usize,
        down: &Projection<'_>,
        state: &mut State,
    ) -> Result<(), InferenceError> {
        let hidden = self.config().hidden_size;
        let norms = self.feature_norms(i)?;
        let n_features = norms.len();
        let n = state.work.gate.len() / n_features;
        let rows = self.vindex.down_features(i);
        if let Some(rows) = rows {
            resize(&mut state.work.out, n * hidden);
            state.work.out.fill(0.0);
            let mut read = 0;
            let positions = state
                .work
                .gate
                .chunks_exact(n_features)
                .zip(state.work.out.chunks_exact_mut(hidden));
            for (activations, out) in positions {
                for feature in strongest(activations, norms, kept)? {
                    self.cpu.axpy_row(rows, feature, activations[feature], out)?;
                    read += rows.row_stride();
                }
            }
            down.add_bias(&mut state.work.out);
            state.profile.mark(Operation::Down, read);
            return Ok(());
        }
        for activations in state.work.gate.chunks_exact_mut(n_features) {
            let mut chosen = vec![false; n_features];
            strongest(activations, norms, kept)?.into_iter().for_each(|f| chosen[f] = true);
            activations.iter_mut().zip(chosen).for_each(|(a, chosen)| {
                if !chosen {
                    *a = 0.0;
                }
            });
        }
        self.down(down, n, state)
    }

    /// `‖down‖` of every feature of layer `i`.
    fn feature_norms(&self, i: usize) -> Result<&[f32], InferenceError> {
        let Some(slot) = self.feature_norms.0.get(i) else { return Ok(&[]) };
        if let Some(norms) = slot.get() {
            return Ok(norms);
        }
        let FfnWeights::Dense { down, .. } = &self.layers[i].ffn else { return Ok(&[]) };
        let mut squares = vec![0.0_f32; down.matrix.cols()];
        let mut row = vec![0.0; down.matrix.cols()];
        for r in 0..down.matrix.rows() {
            self.cpu.row(down.matrix, r, &mut row)?;
            squares.iter_mut().zip(&row).for_each(|(s, v)| *s = v.mul_add(*v, *s));
        }
        squares.iter_mut().for_each(|s| *s = s.sqrt());
        Ok(slot.get_or_init(|| squares))
    }
}

/// The `kept` features with the largest `|activation| * norm`, in rising order.
fn strongest(
    activations: &[f32],
    norms: &[f32],
    kept: usize,
) -> Result<Vec<usize>, InferenceError> {
    let mut top = TopK::new(kept, Order::Abs);
    for (feature, (a, norm)) in activations.iter().zip(norms).enumerate() {
        top.push(feature, a * norm)?;
    }
    let mut chosen: Vec<usize> = top.into_sorted().into_iter().map(|s| s.row).collect();
    chosen.sort_unstable();
    Ok(chosen)
}
