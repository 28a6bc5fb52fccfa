//! The logit lens: what the model would say if a residual went to the final norm at once
//! (nostalgebraist, 2020).

use larql_compute::{Order, TopK};

use crate::{InferenceError, Model};

/// Residuals that go through the LM head together: enough to read it seldom, few enough that their
/// logits stay small beside it.
const TOGETHER: usize = 32;

/// A token with its chance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenChance {
    /// The token.
    pub token: u32,
    /// Its logit, after any soft-cap.
    pub logit: f32,
    /// The natural logarithm of its probability.
    pub log_prob: f64,
}

/// What one residual says.
#[derive(Debug, Clone, PartialEq)]
pub struct LensRow {
    /// The most likely tokens, best first.
    pub top: Vec<TokenChance>,
    /// The token that was asked for.
    pub chosen: Option<TokenChance>,
    /// How many tokens have a higher logit than the one asked for.
    pub rank: Option<usize>,
}

/// Reads each of `residuals` (`[n, hidden_size]`) through the final norm and the LM head: the `k`
/// best tokens, and where `token` stands.
///
/// # Errors
/// A token outside the vocabulary; logits that are NaN.
pub fn lens(
    model: &Model<'_>,
    residuals: &[f32],
    token: Option<u32>,
    k: usize,
) -> Result<Vec<LensRow>, InferenceError> {
    let (hidden, vocab_size) = (model.config().hidden_size, model.config().vocab_size);
    if let Some(token) = token.filter(|&token| token as usize >= vocab_size) {
        return Err(InferenceError::NoSuchToken { token, vocab_size });
    }
    let mut rows = Vec::with_capacity(residuals.len() / hidden);
    let mut logits = Vec::new();
    for residuals in residuals.chunks(TOGETHER * hidden) {
        let n = residuals.len() / hidden;
        let mut normed = vec![0.0; residuals.len()];
        model.output_norm.apply(model.cpu, residuals, &mut normed)?;
        logits.resize(n * vocab_size, 0.0);
        model.cpu.matmul(model.head.rows(), &normed, n, &mut logits)?;
        if let Some(cap) = model.config().final_softcap {
            model.cpu.softcap(&mut logits, cap);
        }
        for logits in logits.chunks_exact(vocab_size) {
            rows.push(read(logits, token, k)?);
        }
    }
    Ok(rows)
}

fn read(logits: &[f32], token: Option<u32>, k: usize) -> Result<LensRow, InferenceError> {
    let mut top = TopK::new(k, Order::Signed);
    for (row, &logit) in logits.iter().enumerate() {
        top.push(row, logit)?;
    }
    let total = log_sum(logits);
    let chance =
        |token: u32, logit: f32| TokenChance { token, logit, log_prob: f64::from(logit) - total };
    let chosen = token.map(|token| chance(token, logits[token as usize]));
    let rank = chosen.map(|chosen| logits.iter().filter(|&&l| l > chosen.logit).count());
    let top = top.into_sorted().into_iter().map(|s| chance(s.row as u32, s.score)).collect();
    Ok(LensRow { top, chosen, rank })
}

/// The logarithm of the sum of the exponentials.
pub(super) fn log_sum(logits: &[f32]) -> f64 {
    let highest = f64::from(logits.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v)));
    let sum: f64 = logits.iter().map(|&v| (f64::from(v) - highest).exp()).sum();
    highest + sum.ln()
}
