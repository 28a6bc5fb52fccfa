//! Looking at a forward pass: which features fire ([`walk`]), what the residual would say after
//! every layer ([`lens()`]), which part of the model put a logit where it is ([`Attribution`]), and
//! which features speak for a token, and what becomes of it without them ([`Causes`],
//! [`logits_with`]).
//!
//! Everything stands on the hooks of the one forward pass; nothing here computes a layer anew.

mod attribution;
mod each;
mod features;
mod lens;
mod means;
mod snapshot;
mod walk;
mod why;

pub use attribution::{Attribution, LayerAttribution};
pub use lens::{LensRow, TokenChance, lens};
pub use means::ReferenceMeans;
pub use snapshot::{LayerSnapshot, Residuals, Snapshot};
pub use walk::{Firing, WalkOptions, walk};
pub use why::{Cause, Causes, Replaced, divergence, everything_else, log_prob, logits_with};

/// The product of two vectors in float64.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).fold(0.0, |sum, (&a, &b)| sum + f64::from(a) * f64::from(b))
}
