//! Hooks: named points of the forward pass at which a program reads or replaces what flows there.

use std::fmt;

use crate::InferenceError;

/// A point of the forward pass. The names are those that interpretability tools use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Point {
    /// `embed`: the scaled embeddings (with learned positions), `[n, hidden_size]`.
    Embed,
    /// `blocks.{i}.resid_pre`: the residual before the block, `[n, hidden_size]`.
    ResidPre(usize),
    /// `blocks.{i}.attn_out`: what attention adds to the residual, after any post-norm,
    /// `[n, hidden_size]`.
    AttnOut(usize),
    /// `blocks.{i}.resid_mid`: the residual between attention and FFN, `[n, hidden_size]`.
    ResidMid(usize),
    /// `blocks.{i}.mlp_in`: the normed residual, which the gate rows are matched against,
    /// `[n, hidden_size]`.
    MlpIn(usize),
    /// `blocks.{i}.mlp_post`: every feature's activation, which its down row is multiplied by,
    /// `[n, n_features]`. Of experts that a token does not visit it is 0, and replacing it there
    /// changes nothing.
    MlpPost(usize),
    /// `blocks.{i}.mlp_out`: what the FFN adds to the residual, after any post-norm,
    /// `[n, hidden_size]`.
    MlpOut(usize),
    /// `blocks.{i}.resid_post`: the residual after the block, `[n, hidden_size]`.
    ResidPost(usize),
    /// `ln_final`: the hidden state after the final norm, which the LM head is multiplied by,
    /// `[n, hidden_size]`.
    FinalNorm,
}

impl Point {
    /// Every point of a model of `n_layers` layers, in the order in which they are passed.
    pub fn all(n_layers: usize) -> Vec<Self> {
        let mut points = vec![Self::Embed];
        for i in 0..n_layers {
            points.extend([
                Self::ResidPre(i),
                Self::AttnOut(i),
                Self::ResidMid(i),
                Self::MlpIn(i),
                Self::MlpPost(i),
                Self::MlpOut(i),
                Self::ResidPost(i),
            ]);
        }
        points.push(Self::FinalNorm);
        points
    }

    /// The point of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "embed" => return Some(Self::Embed),
            "ln_final" => return Some(Self::FinalNorm),
            _ => {}
        }
        let (layer, what) = name.strip_prefix("blocks.")?.split_once('.')?;
        let layer = layer.parse().ok()?;
        let point = match what {
            "resid_pre" => Self::ResidPre(layer),
            "attn_out" => Self::AttnOut(layer),
            "resid_mid" => Self::ResidMid(layer),
            "mlp_in" => Self::MlpIn(layer),
            "mlp_post" => Self::MlpPost(layer),
            "mlp_out" => Self::MlpOut(layer),
            "resid_post" => Self::ResidPost(layer),
            _ => return None,
        };
        Some(point)
    }
}

/// The name.
impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (layer, what) = match self {
            Self::Embed => return f.write_str("embed"),
            Self::FinalNorm => return f.write_str("ln_final"),
            Self::ResidPre(layer) => (layer, "resid_pre"),
            Self::AttnOut(layer) => (layer, "attn_out"),
            Self::ResidMid(layer) => (layer, "resid_mid"),
            Self::MlpIn(layer) => (layer, "mlp_in"),
            Self::MlpPost(layer) => (layer, "mlp_post"),
            Self::MlpOut(layer) => (layer, "mlp_out"),
            Self::ResidPost(layer) => (layer, "resid_post"),
        };
        write!(f, "blocks.{layer}.{what}")
    }
}

/// What a program does at the points of a forward pass.
pub trait Hooks {
    /// Whether [`at`](Self::at) is to be called at `point`. Points that nobody wants cost nothing.
    fn wants(&self, point: Point) -> bool;

    /// Called with the values of the positions from `first` on, `[n, width]`, which it may read
    /// and replace.
    ///
    /// # Errors
    /// Its own; they end the forward pass.
    fn at(&mut self, point: Point, first: usize, values: &mut [f32]) -> Result<(), InferenceError>;
}

/// No hooks.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {
    fn wants(&self, _: Point) -> bool {
        false
    }

    fn at(&mut self, _: Point, _: usize, _: &mut [f32]) -> Result<(), InferenceError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for point in Point::all(12) {
            assert_eq!(Point::from_name(&point.to_string()), Some(point));
        }
        for name in ["", "blocks.1", "blocks.x.resid_pre", "blocks.1.resid", "resid_pre"] {
            assert_eq!(Point::from_name(name), None, "{name}");
        }
    }
}
