//! `larql why --ablate N`: what the model says without the features that speak for a token, there
//! and after unrelated texts, and what as many other features matter.

use std::io;

use larql_inference::Model;
use larql_inference::analysis::{Cause, Replaced, divergence, log_prob, logits_with};
use serde::Serialize;

use super::look;
use crate::error::Failure;
use crate::render::{Column, Page, Table, units};
use crate::session::{Session, TokenRow};

/// Texts, one a line, that have nothing to do with what anybody asks about.
const UNRELATED: &str = include_str!("../../assets/unrelated.txt");

/// What happens when features are set to what they usually do.
#[derive(Serialize)]
pub(super) struct Ablation {
    /// Features that were set.
    features: usize,
    log_prob_before: f64,
    log_prob_after: f64,
    /// What the model says then.
    says: TokenRow,
    unrelated: Vec<Unrelated>,
    /// As many features, evenly spread over all layers.
    control: Control,
}

/// The Kullback-Leibler divergence, in nats, of what the model says after a text from what it says
/// there with the features set at the end of it.
#[derive(Serialize)]
struct Unrelated {
    prompt: &'static str,
    divergence: f64,
}

#[derive(Serialize)]
struct Control {
    log_prob_after: f64,
    mean_divergence: f64,
}

/// Sets `chosen` to their baselines at the last of `tokens`, and at the end of the unrelated texts.
pub(super) fn run(
    session: &Session<'_>,
    model: &Model<'_>,
    tokens: &[u32],
    token: u32,
    chosen: &[Cause],
    all: &[Cause],
) -> Result<Ablation, Failure> {
    let chosen: Vec<Replaced> = chosen.iter().map(replaced).collect();
    // Features stand in no order, so that every n-th of them is as good as a draw.
    let step = (all.len() / chosen.len().max(1)).max(1);
    let spread = all.iter().skip(step / 2).step_by(step).take(chosen.len());
    let control: Vec<Replaced> = spread.map(replaced).collect();
    let before = logits_with(model, tokens, &[])?;
    let after = logits_with(model, tokens, &chosen)?;
    let mut unrelated = Vec::new();
    let mut by_control = 0.0;
    for prompt in UNRELATED.lines() {
        let tokens = look::ids(&look::prompt(session, prompt)?);
        let untouched = logits_with(model, &tokens, &[])?;
        let divergence = |set: &[Replaced]| -> Result<f64, Failure> {
            Ok(divergence(&untouched, &logits_with(model, &tokens, set)?))
        };
        by_control += divergence(&control)?;
        unrelated.push(Unrelated { prompt, divergence: divergence(&chosen)? });
    }
    Ok(Ablation {
        features: chosen.len(),
        log_prob_before: log_prob(&before, token),
        log_prob_after: log_prob(&after, token),
        says: session.token(look::best(&after)?)?,
        control: Control {
            log_prob_after: log_prob(&logits_with(model, tokens, &control)?, token),
            mean_divergence: by_control / unrelated.len().max(1) as f64,
        },
        unrelated,
    })
}

fn replaced(cause: &Cause) -> Replaced {
    Replaced { layer: cause.layer, feature: cause.feature, activation: cause.baseline }
}

impl Ablation {
    pub(super) fn draw(&self, page: &mut Page<'_>, token: &str) -> io::Result<()> {
        let n = self.features;
        page.heading(&format!("With the {n} that speak most for {token} set to what is usual"))?;
        let before = self.log_prob_before;
        let changed = |after: f64| format!("{before:+.3} to {after:+.3}: {:+.3}", after - before);
        let mean = self.unrelated.iter().map(|row| row.divergence).sum::<f64>()
            / self.unrelated.len().max(1) as f64;
        page.fields(&[
            ("log-probability", format!("{} nats", changed(self.log_prob_after))),
            ("it says", format!("{} ({})", units::token(&self.says.text), self.says.id)),
            ("damage", format!("KL {mean:.3} nats after unrelated texts, on average")),
            (
                "control",
                format!(
                    "{n} features spread over all layers: {:+.3}, KL {:.3}",
                    self.control.log_prob_after - before,
                    self.control.mean_divergence
                ),
            ),
        ])?;
        let mut table = Table::new([Column::number("KL"), Column::text("unrelated text")]);
        for row in &self.unrelated {
            table.row([format!("{:.3}", row.divergence), row.prompt.to_owned()]);
        }
        page.table(&table)
    }
}
