//! What a sampler can be asked for. Names, meanings and order are llama.cpp's.

use crate::InferenceError;

/// How the next token is chosen. The steps run in this order: repetition penalty, top-k, top-p,
/// min-p, temperature, draw. So top-p and min-p look at the distribution of temperature 1,
/// whatever the temperature is.
///
/// The default is greedy: temperature 0 takes the token with the largest logit, and the steps that
/// only cut the tail have no effect. With any other temperature they cut as in llama.cpp's default
/// (40, 0.95, 0.05).
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerOptions {
    /// Divides the logits before the draw: below 1 sharpens, above 1 flattens. 0 is greedy; of
    /// equal logits the lowest id is taken.
    pub temperature: f32,
    /// Only the tokens with the `top_k` largest logits can be drawn. 0 keeps all.
    pub top_k: usize,
    /// Only the smallest set of most probable tokens whose probabilities sum to at least `top_p`
    /// can be drawn. 1 keeps all.
    pub top_p: f32,
    /// Only tokens at least `min_p` times as probable as the best one can be drawn. 0 keeps all.
    pub min_p: f32,
    /// Tokens of the window lose: a positive logit is divided by this, any other multiplied.
    /// 1 changes nothing; below 1 they win.
    pub repetition_penalty: f32,
    /// How many of the last tokens, the prompt's included, are penalised. 0 turns the penalty off.
    pub repetition_window: usize,
    /// Equal seeds draw equal tokens from equal logits.
    pub seed: u64,
}

impl Default for SamplerOptions {
    fn default() -> SamplerOptions {
        SamplerOptions {
            temperature: 0.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.0,
            repetition_window: 64,
            seed: 0,
        }
    }
}

impl SamplerOptions {
    /// Whether the best token is taken and nothing is drawn.
    pub fn greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether logits are changed before they are compared.
    pub(super) fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0 && self.repetition_window > 0
    }

    /// Refuses values outside of their ranges.
    pub(super) fn check(&self) -> Result<(), InferenceError> {
        let temperature = self.temperature.is_finite() && self.temperature >= 0.0;
        let penalty = self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0;
        let checks = [
            ("the temperature", self.temperature, temperature, "0 or more"),
            ("top-p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1"),
            ("min-p", self.min_p, (0.0..=1.0).contains(&self.min_p), "between 0 and 1"),
            ("the repetition penalty", self.repetition_penalty, penalty, "above 0"),
        ];
        for (what, found, ok, expected) in checks {
            if !ok {
                return Err(InferenceError::Option { what, found: found.to_string(), expected });
            }
        }
        Ok(())
    }
}
