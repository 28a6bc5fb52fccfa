//! The FFN of a block with experts.

use larql_compute::{Activations, Matrix};
use larql_vindex::search::{Routing, choose_experts};

use crate::ffn::nonlinearity;
use crate::forward::{hook, resize};
use crate::hooks::{Hooks, Point};
use crate::model::Expert;
use crate::profile::Operation;
use crate::state::State;
use crate::{InferenceError, Model};

/// Router, its score bias, the stacked experts and the shared one.
type Experts<'a> = (Matrix<'a>, Option<&'a [f32]>, Expert<'a>, Option<Expert<'a>>);

/// The positions that visit one expert, and with what weight.
struct Visit {
    expert: usize,
    positions: Vec<(usize, f32)>,
}

impl Model<'_> {
    /// The experts of block `i` over the normed residual `h`, `[n, hidden_size]`, into `out`. Each
    /// expert is read once for all positions that visit it.
    pub(crate) fn experts(
        &self,
        (router, score_bias, routed, shared): Experts<'_>,
        i: usize,
        first: usize,
        state: &mut State,
        hooks: &mut dyn Hooks,
    ) -> Result<(), InferenceError> {
        let (config, hidden) = (self.config(), self.config().hidden_size);
        let Some(moe) = &config.moe else { return Ok(()) };
        let n = state.work.h.len() / hidden;
        // Routers are small and decide much: float32, whatever their format.
        let mut logits = vec![0.0; n * moe.n_experts];
        if n == 1 {
            self.cpu.matvec(router, &state.work.h, &mut logits)?;
        } else {
            self.cpu.matmul(router, &state.work.h, n, &mut logits)?;
        }
        let mut visits: Vec<Visit> =
            (0..moe.n_experts).map(|expert| Visit { expert, positions: Vec::new() }).collect();
        for (p, logits) in logits.chunks_exact(moe.n_experts).enumerate() {
            let mut chosen = choose_experts(i, moe, logits, score_bias)?;
            weigh(&mut chosen, moe.normalise, moe.scale);
            for choice in chosen {
                visits[choice.expert].positions.push((p, choice.weight));
            }
        }
        visits.retain(|visit| !visit.positions.is_empty());
        state.profile.mark(Operation::Router, router.bytes().len());

        let n_features = config.n_features(i);
        let mut seen = hooks.wants(Point::MlpPost(i)).then(|| vec![0.0; n * n_features]);
        resize(&mut state.work.out, n * hidden);
        state.work.out.fill(0.0);
        // Activations first, of all experts, so that a hook sees a layer whole; then their sums.
        let mut activated = Vec::with_capacity(visits.len() + 1);
        for visit in &visits {
            let expert = routed.nth(visit.expert, moe.expert_size, hidden);
            let rows = gather(&state.work.h, hidden, &visit.positions);
            activated.push(self.expert_activations(expert, &rows, state)?);
        }
        let everyone: Vec<(usize, f32)> = (0..n).map(|p| (p, 1.0)).collect();
        if let Some(shared) = shared {
            visits.push(Visit { expert: moe.n_experts, positions: everyone });
            let rows = std::mem::take(&mut state.work.h);
            activated.push(self.expert_activations(shared, &rows, state)?);
            state.work.h = rows;
        }
        if let Some(seen) = &mut seen {
            exchange(&visits, &mut activated, (n_features, moe.expert_size), seen, true);
            hook(hooks, Point::MlpPost(i), first, seen)?;
            exchange(&visits, &mut activated, (n_features, moe.expert_size), seen, false);
        }
        for (visit, activated) in visits.iter().zip(&activated) {
            let expert = match shared {
                Some(shared) if visit.expert == moe.n_experts => shared,
                _ => routed.nth(visit.expert, moe.expert_size, hidden),
            };
            self.add_expert(expert, visit, activated, state)?;
        }
        Ok(())
    }

    /// `act(gate · x) * (up · x)` of one expert for its rows of `x`: `[rows, expert_size]`.
    fn expert_activations(
        &self,
        expert: Expert<'_>,
        x: &[f32],
        state: &mut State,
    ) -> Result<Vec<f32>, InferenceError> {
        let n = x.len() / self.config().hidden_size;
        let mut gate = vec![0.0; n * expert.gate.rows()];
        let work = &mut state.work;
        resize(&mut work.up, gate.len());
        work.activations.set(self.cpu, x, n)?;
        let outputs = &mut [(expert.gate, &mut gate[..]), (expert.up, &mut work.up[..])];
        self.cpu.project_all(outputs, &work.activations)?;
        let bytes = expert.gate.bytes().len() + expert.up.bytes().len();
        state.profile.mark(Operation::GateUp, bytes);
        let f = nonlinearity(self.config().activation);
        self.cpu.activate(f, &mut gate, Some(&state.work.up))?;
        state.profile.mark(Operation::Activation, 0);
        Ok(gate)
    }

    /// Adds an expert's weighted output to the positions that visit it.
    fn add_expert(
        &self,
        expert: Expert<'_>,
        visit: &Visit,
        activated: &[f32],
        state: &mut State,
    ) -> Result<(), InferenceError> {
        let hidden = self.config().hidden_size;
        let work = &mut state.work;
        let activations: &mut Activations = &mut work.activations;
        activations.set(self.cpu, activated, visit.positions.len())?;
        resize(&mut work.normed, visit.positions.len() * hidden);
        self.cpu.project(expert.down, activations, &mut work.normed)?;
        for (&(p, weight), y) in visit.positions.iter().zip(work.normed.chunks_exact(hidden)) {
            let out = &mut work.out[p * hidden..(p + 1) * hidden];
            out.iter_mut().zip(y).for_each(|(out, y)| *out = weight.mul_add(*y, *out));
        }
        state.profile.mark(Operation::Down, expert.down.bytes().len());
        Ok(())
    }
}

/// The weights of the chosen experts, normalised and scaled.
pub(crate) fn weigh(chosen: &mut [Routing], normalise: bool, scale: f32) {
    let sum: f32 = chosen.iter().map(|c| c.weight).sum();
    // The models' own guard against a division by 0.
    let divisor = if normalise { sum + 1e-20 } else { 1.0 };
    chosen.iter_mut().for_each(|c| c.weight = c.weight / divisor * scale);
}

/// The rows of these positions.
fn gather(h: &[f32], hidden: usize, positions: &[(usize, f32)]) -> Vec<f32> {
    let rows = positions.iter().map(|&(p, _)| &h[p * hidden..(p + 1) * hidden]);
    rows.flatten().copied().collect()
}

/// Copies the experts' activations to (`out`) or from their places in `[n, n_features]`.
fn exchange(
    visits: &[Visit],
    activated: &mut [Vec<f32>],
    (n_features, expert_size): (usize, usize),
    all: &mut [f32],
    out: bool,
) {
    for (visit, activated) in visits.iter().zip(activated) {
        let size = activated.len() / visit.positions.len();
        for (&(p, _), own) in visit.positions.iter().zip(activated.chunks_exact_mut(size)) {
            let first = p * n_features + visit.expert * expert_size;
            let place = &mut all[first..first + size];
            if out {
                place.copy_from_slice(own);
            } else {
                own.copy_from_slice(place);
            }
        }
    }
}
