//! Which experts the router of a mixture-of-experts layer chooses for a residual.

use larql_checkpoint::config::{Gating, Moe};
use larql_checkpoint::{Role, TensorId};
use larql_compute::{ComputeError, Order, TopK};

use super::Search;
use crate::VindexError;

/// One chosen expert.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Routing {
    /// Expert within the layer.
    pub expert: usize,
    /// Probability (softmax) or affinity (sigmoid) that the router gives it.
    pub weight: f32,
}

impl Search<'_> {
    /// The experts that `layer`'s router chooses for `x` (`[hidden_size]`, the FFN's input), the
    /// strongest first. Group-limited routing first keeps the groups whose best expert
    /// (DeepSeek-V2, softmax) or two best experts together (DeepSeek-V3, sigmoid) are strongest.
    ///
    /// # Errors
    /// A layer without experts, a query of the wrong length, a router that gives NaN.
    pub fn route(&self, layer: usize, x: &[f32]) -> Result<Vec<Routing>, VindexError> {
        let config = self.vindex.config();
        let moe = match &config.moe {
            Some(moe) if config.is_moe_layer(layer) => moe,
            _ => return Err(VindexError::NotMoe { layer }),
        };
        let router = self.vindex.require(TensorId::layer(Role::FfnGateInp, layer))?;
        let mut logits = vec![0.0f32; router.rows()];
        self.cpu.matvec(router, x, &mut logits)?;
        let bias = self.optional_vector(TensorId::layer(Role::ExpProbsBias, layer))?;
        choose_experts(layer, moe, &logits, bias.as_deref())
    }
}

/// The experts that router `logits` (`[n_experts]`) of `layer` choose, the strongest first;
/// `score_bias` decides with them and does not weigh. See [`Search::route`].
///
/// # Errors
/// Logits that give NaN, by the expert.
pub fn choose_experts(
    layer: usize,
    moe: &Moe,
    logits: &[f32],
    score_bias: Option<&[f32]>,
) -> Result<Vec<Routing>, VindexError> {
    let weights = match moe.gating {
        Gating::Softmax => softmax(logits),
        Gating::Sigmoid => logits.iter().map(|&l| 1.0 / (1.0 + (-l).exp())).collect(),
    };
    let mut choice = weights.clone();
    if let Some(bias) = score_bias {
        choice.iter_mut().zip(bias).for_each(|(c, b)| *c += b);
    }
    if let Some(groups) = moe.groups {
        let judged_by = if moe.gating == Gating::Sigmoid { 2 } else { 1 };
        keep_best_groups(&mut choice, groups.count, groups.used, judged_by)?;
    }
    let mut top = TopK::new(moe.n_experts_used, Order::Signed);
    for (expert, &score) in choice.iter().enumerate() {
        top.push(expert, score).map_err(|_| VindexError::NanRouter { layer, expert })?;
    }
    let chosen = top.into_sorted();
    Ok(chosen.into_iter().map(|c| Routing { expert: c.row, weight: weights[c.row] }).collect())
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exps: Vec<f32> = logits.iter().map(|l| (l - max).exp()).collect();
    let sum: f32 = exps.iter().sum();
    exps.into_iter().map(|e| e / sum).collect()
}

/// Sets the experts outside the best `n_used` of `n_groups` equal groups out of reach.
fn keep_best_groups(
    choice: &mut [f32],
    n_groups: usize,
    n_used: usize,
    judged_by: usize,
) -> Result<(), ComputeError> {
    let size = choice.len() / n_groups;
    let mut groups = TopK::new(n_used, Order::Signed);
    for (group, members) in choice.chunks_exact(size).enumerate() {
        let mut best = TopK::new(judged_by, Order::Signed);
        for (i, &c) in members.iter().enumerate() {
            best.push(i, c)?;
        }
        groups.push(group, best.into_sorted().iter().map(|s| s.score).sum())?;
    }
    let kept: Vec<usize> = groups.into_sorted().iter().map(|s| s.row).collect();
    for (group, members) in choice.chunks_exact_mut(size).enumerate() {
        if !kept.contains(&group) {
            members.fill(f32::NEG_INFINITY);
        }
    }
    Ok(())
}
