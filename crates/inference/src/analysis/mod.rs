//! Looking at a forward pass: which features fire ([`walk`]), what the residual would say after
//! every layer ([`lens`]), and which part of the model put a logit where it is ([`Attribution`]).
//!
//! Everything stands on the hooks of the one forward pass; nothing here computes a layer anew.

mod attribution;
mod features;
mod lens;
mod snapshot;
mod walk;

pub use attribution::{Attribution, LayerAttribution};
pub use lens::{LensRow, TokenChance, lens};
pub use snapshot::{LayerSnapshot, Residuals, Snapshot};
pub use walk::{Firing, WalkOptions, walk};

/// The product of two vectors in float64.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}
