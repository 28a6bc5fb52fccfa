//! What single features write: their down columns, read as dot products, never copied out.

use larql_checkpoint::TensorId;
use larql_compute::Matrix;
use larql_vindex::search::choose_experts;

use crate::model::FfnWeights;
use crate::moe::weigh as weigh_experts;
use crate::{InferenceError, Model};

/// Down rows (`[hidden_size, n]`) whose columns are the features `first..first + n`.
struct Columns<'a> {
    first: usize,
    matrix: Matrix<'a>,
}

fn columns<'a>(model: &Model<'a>, layer: usize) -> Result<Vec<Columns<'a>>, InferenceError> {
    let parts = model.config().ffn_downs(layer).into_iter();
    parts
        .map(|part| {
            let matrix = model.vindex.require(TensorId::layer(part.role, layer))?;
            Ok(Columns { first: part.first_feature, matrix: matrix.row_range(part.rows) })
        })
        .collect()
}

/// The dot product of every feature's down column with `reader` (`[hidden_size]`), `[n_features]`.
/// Blocks in which `wanted` (`[n_features]`) is 0 throughout, as of experts that were not visited,
/// are not read, and give 0.
pub(super) fn dots(
    model: &Model<'_>,
    layer: usize,
    reader: &[f32],
    wanted: &[f32],
) -> Result<Vec<f32>, InferenceError> {
    let mut dots = vec![0.0; model.config().n_features(layer)];
    for block in columns(model, layer)? {
        let features = block.first..block.first + block.matrix.cols();
        if wanted[features.clone()].iter().all(|&a| a == 0.0) {
            continue;
        }
        for (row, &factor) in reader.iter().enumerate() {
            model.cpu.axpy_row(block.matrix, row, factor, &mut dots[features.clone()])?;
        }
    }
    Ok(dots)
}

/// The length of every feature's down column, `[n_features]`.
pub(super) fn lengths(model: &Model<'_>, layer: usize) -> Result<Vec<f32>, InferenceError> {
    let mut lengths = Vec::with_capacity(model.config().n_features(layer));
    for block in columns(model, layer)? {
        let mut row = vec![0.0; block.matrix.cols()];
        let mut squares = vec![0.0_f64; row.len()];
        for r in 0..block.matrix.rows() {
            model.cpu.row(block.matrix, r, &mut row)?;
            squares.iter_mut().zip(&row).for_each(|(s, &v)| *s += f64::from(v) * f64::from(v));
        }
        lengths.extend(squares.into_iter().map(|s| s.sqrt() as f32));
    }
    Ok(lengths)
}

/// The sum of all features' outputs and the bias of the down projection, before any post-norm,
/// `[hidden_size]`.
pub(super) fn sum(
    model: &Model<'_>,
    layer: usize,
    activations: &[f32],
) -> Result<Vec<f32>, InferenceError> {
    let mut sum = vec![0.0; model.config().hidden_size];
    let mut part = sum.clone();
    for block in columns(model, layer)? {
        let own = &activations[block.first..block.first + block.matrix.cols()];
        if own.iter().all(|&a| a == 0.0) {
            continue;
        }
        model.cpu.matvec(block.matrix, own, &mut part)?;
        sum.iter_mut().zip(&part).for_each(|(s, p)| *s += p);
    }
    sum.iter_mut().zip(down_bias(model, layer)).for_each(|(s, b)| *s += b);
    Ok(sum)
}

/// The bias of the down projection; empty where there is none.
pub(super) fn down_bias<'m>(model: &'m Model<'_>, layer: usize) -> &'m [f32] {
    match &model.layers[layer].ffn {
        FfnWeights::Dense { down, .. } => down.bias.as_deref().unwrap_or_default(),
        FfnWeights::Experts { .. } => &[],
    }
}

/// Multiplies the activations of one position by the weights of their experts, which the router
/// gives for the FFN's input `h` (`[hidden_size]`). Dense layers are left as they are.
pub(super) fn weigh(
    model: &Model<'_>,
    layer: usize,
    h: &[f32],
    activations: &mut [f32],
) -> Result<(), InferenceError> {
    let FfnWeights::Experts { router, score_bias, .. } = &model.layers[layer].ffn else {
        return Ok(());
    };
    let Some(moe) = &model.config().moe else { return Ok(()) };
    let mut logits = vec![0.0; moe.n_experts];
    model.cpu.matvec(*router, h, &mut logits)?;
    let mut chosen = choose_experts(layer, moe, &logits, score_bias.as_deref())?;
    weigh_experts(&mut chosen, moe.normalise, moe.scale);
    for choice in chosen {
        let first = choice.expert * moe.expert_size;
        let own = &mut activations[first..first + moe.expert_size];
        own.iter_mut().for_each(|a| *a *= choice.weight);
    }
    Ok(())
}
