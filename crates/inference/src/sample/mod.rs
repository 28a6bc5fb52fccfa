//! `Sampler`: from the logits of one position to the next token.
//!
//! Most ways to sample look at a few of the best tokens only. [`Sampler::wants`] says at how many,
//! so that the LM head need not compute the rest; both ways in ([`Sampler::sample_top`],
//! [`Sampler::sample_logits`]) choose the same token.

mod options;
#[cfg(test)]
mod tests;

use larql_compute::{ComputeError, Order, Scored, TopK};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};

use crate::InferenceError;

pub use options::SamplerOptions;

/// The logits that a sampler has to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// The largest so many, for [`Sampler::sample_top`].
    Top(usize),
    /// Every one, for [`Sampler::sample_logits`].
    All,
}

/// Chooses tokens. One sampler serves one text: each draw moves its random numbers on.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: SamplerOptions,
    random: Xoshiro256PlusPlus,
    /// The distinct tokens of the window, ascending.
    repeated: Vec<u32>,
    /// The logits, where they have to be changed.
    scratch: Vec<f32>,
    /// exp((logit - largest) / temperature) of the tokens that can be drawn.
    weights: Vec<f64>,
}

impl Sampler {
    /// A sampler at the start of its random numbers.
    ///
    /// # Errors
    /// [`InferenceError::Option`] for a value outside of its range.
    pub fn new(options: SamplerOptions) -> Result<Sampler, InferenceError> {
        options.check()?;
        // A generator that is named, so that a seed means the same in every later version.
        let random = Xoshiro256PlusPlus::seed_from_u64(options.seed);
        let (repeated, scratch, weights) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Sampler { options, random, repeated, scratch, weights })
    }

    /// What it was made with.
    pub fn options(&self) -> &SamplerOptions {
        &self.options
    }

    /// Which logits the next choice has to see. All of them only where nothing bounds how far down
    /// it looks: no top-k, or a penalty that lifts tokens.
    pub fn wants(&self, history: &[u32]) -> Wants {
        let keep = self.keep();
        if keep == usize::MAX || self.options.penalises() && self.options.repetition_penalty < 1.0 {
            return Wants::All;
        }
        // A penalty pushes at most the tokens of the window out of the best `keep`.
        let window = if self.options.penalises() { self.window(history).len() } else { 0 };
        Wants::Top(keep.saturating_add(window))
    }

    /// The next token, from the logits of all tokens. `history` is the text so far, prompt
    /// included.
    ///
    /// # Errors
    /// A [`ComputeError`] for NaN or plus infinity; minus infinity is a token that cannot be drawn.
    /// [`InferenceError::NoToken`] where no token can.
    pub fn sample_logits(
        &mut self,
        logits: &[f32],
        history: &[u32],
    ) -> Result<u32, InferenceError> {
        if !self.options.penalises() {
            return self.choose(logits);
        }
        self.collect_repeated(history);
        let mut changed = std::mem::take(&mut self.scratch);
        changed.clear();
        changed.extend_from_slice(logits);
        for &id in &self.repeated {
            if let Some(logit) = changed.get_mut(id as usize) {
                *logit = penalised(*logit, self.options.repetition_penalty);
            }
        }
        let chosen = self.choose(&changed);
        self.scratch = changed;
        chosen
    }

    /// The next token, from the best tokens alone: at least as many as [`wants`](Sampler::wants)
    /// says (or all that there are), best first.
    ///
    /// # Errors
    /// As [`sample_logits`](Sampler::sample_logits).
    pub fn sample_top(&mut self, top: &[Scored], history: &[u32]) -> Result<u32, InferenceError> {
        let mut best = TopK::new(self.keep(), Order::Signed);
        if self.options.penalises() {
            self.collect_repeated(history);
        } else {
            self.repeated.clear();
        }
        for &Scored { row, score } in top {
            let repeated =
                u32::try_from(row).is_ok_and(|id| self.repeated.binary_search(&id).is_ok());
            let penalty = if repeated { self.options.repetition_penalty } else { 1.0 };
            best.push(row, penalised(score, penalty))?;
        }
        self.draw_best(best.into_sorted())
    }

    /// The choice among unsorted logits that need no further change.
    fn choose(&mut self, logits: &[f32]) -> Result<u32, InferenceError> {
        let largest = largest(logits)?;
        let options = &self.options;
        let keep = if self.keep() < usize::MAX {
            self.keep()
        } else if options.top_p < 1.0 {
            return self.choose_nucleus(logits, largest);
        } else if options.min_p > 0.0 {
            let least = least(largest, options.min_p);
            logits.iter().filter(|&&logit| logit >= least).count()
        } else {
            return self.draw_any(logits, largest);
        };
        self.draw_best(best(logits, keep)?)
    }

    /// Top-p without top-k. How many tokens that takes is not known beforehand, so ever more of
    /// the best are tried; one heap of everything would cost far more than the usual few.
    fn choose_nucleus(&mut self, logits: &[f32], largest: f32) -> Result<u32, InferenceError> {
        let total: f64 = logits.iter().map(|&logit| weight(logit, largest, 1.0)).sum();
        let wanted = total * f64::from(self.options.top_p);
        let mut keep = 64;
        loop {
            let candidates = best(logits, keep)?;
            let sum: f64 = candidates.iter().map(|c| weight(c.score, largest, 1.0)).sum();
            if sum >= wanted || candidates.len() == logits.len() {
                let nucleus = nucleus(&candidates, largest, wanted);
                return self.draw(&candidates[..nucleus], largest);
            }
            keep *= 8;
        }
    }

    /// Draws among the best tokens, best first, after top-p.
    fn draw_best(&mut self, mut candidates: Vec<Scored>) -> Result<u32, InferenceError> {
        let largest = candidates.first().map_or(f32::NEG_INFINITY, |best| best.score);
        refuse_infinite(candidates.first().map_or(0, |best| best.row), largest)?;
        if self.options.top_p < 1.0 && !self.options.greedy() {
            let total: f64 = candidates.iter().map(|c| weight(c.score, largest, 1.0)).sum();
            let wanted = total * f64::from(self.options.top_p);
            candidates.truncate(nucleus(&candidates, largest, wanted));
        }
        self.draw(&candidates, largest)
    }

    /// Draws one of `candidates`, best first: min-p and the temperature, then the dice.
    fn draw(&mut self, candidates: &[Scored], largest: f32) -> Result<u32, InferenceError> {
        if largest == f32::NEG_INFINITY {
            return Err(InferenceError::NoToken);
        }
        let least = least(largest, self.options.min_p);
        let keep = candidates.partition_point(|candidate| candidate.score >= least);
        let candidates = &candidates[..keep];
        let place = match self.options.greedy() {
            true => 0,
            false => self.dice(candidates.iter().map(|c| c.score), largest),
        };
        let chosen = candidates.get(place).ok_or(InferenceError::NoToken)?;
        u32::try_from(chosen.row).map_err(|_| InferenceError::NoToken)
    }

    /// Draws one of all tokens.
    fn draw_any(&mut self, logits: &[f32], largest: f32) -> Result<u32, InferenceError> {
        if largest == f32::NEG_INFINITY {
            return Err(InferenceError::NoToken);
        }
        Ok(self.dice(logits.iter().copied(), largest) as u32)
    }

    /// The place of a logit, drawn with its probability. One of them is `largest`.
    fn dice(&mut self, logits: impl Iterator<Item = f32>, largest: f32) -> usize {
        let temperature = self.options.temperature;
        self.weights.clear();
        self.weights.extend(logits.map(|logit| weight(logit, largest, temperature)));
        let total: f64 = self.weights.iter().sum();
        // 53 random bits: a number of [0, 1).
        let share = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let mut left = share * total;
        let mut last = 0;
        for (place, &weight) in self.weights.iter().enumerate() {
            if weight > 0.0 {
                last = place;
                left -= weight;
                if left < 0.0 {
                    break;
                }
            }
        }
        // Rounding may leave a little over; it belongs to the last that can be drawn.
        last
    }

    /// How many of the best tokens the first cut leaves.
    fn keep(&self) -> usize {
        match self.options.top_k {
            _ if self.options.greedy() => 1,
            0 => usize::MAX,
            k => k,
        }
    }

    /// The last tokens, those that are penalised.
    fn window<'a>(&self, history: &'a [u32]) -> &'a [u32] {
        &history[history.len().saturating_sub(self.options.repetition_window)..]
    }

    fn collect_repeated(&mut self, history: &[u32]) {
        let window = self.window(history);
        self.repeated.clear();
        self.repeated.extend_from_slice(window);
        self.repeated.sort_unstable();
        self.repeated.dedup();
    }
}

/// A repeated token's logit.
fn penalised(logit: f32, penalty: f32) -> f32 {
    if logit > 0.0 { logit / penalty } else { logit * penalty }
}

/// The weight of a token beside the best one's, which is 1.
fn weight(logit: f32, largest: f32, temperature: f32) -> f64 {
    ((f64::from(logit) - f64::from(largest)) / f64::from(temperature)).exp()
}

/// The least logit that min-p keeps.
fn least(largest: f32, min_p: f32) -> f32 {
    if min_p > 0.0 { largest + min_p.ln() } else { f32::NEG_INFINITY }
}

/// How many of `candidates`, best first, it takes to weigh `wanted`; at least one, at most all.
fn nucleus(candidates: &[Scored], largest: f32, wanted: f64) -> usize {
    let mut sum = 0.0;
    let enough = candidates.iter().position(|candidate| {
        sum += weight(candidate.score, largest, 1.0);
        sum >= wanted
    });
    enough.map_or(candidates.len(), |place| place + 1)
}

/// The `keep` largest logits, best first.
fn best(logits: &[f32], keep: usize) -> Result<Vec<Scored>, ComputeError> {
    let mut best = TopK::new(keep, Order::Signed);
    for (row, &logit) in logits.iter().enumerate() {
        best.push(row, logit)?;
    }
    Ok(best.into_sorted())
}

/// The largest logit; minus infinity where there is none.
fn largest(logits: &[f32]) -> Result<f32, ComputeError> {
    let mut largest = f32::NEG_INFINITY;
    for (place, &logit) in logits.iter().enumerate() {
        if logit.is_nan() {
            return Err(ComputeError::NotFinite { what: "logits", position: place, value: logit });
        }
        if logit > largest {
            largest = logit;
            refuse_infinite(place, logit)?;
        }
    }
    Ok(largest)
}

/// Beside plus infinity no other token has a probability.
fn refuse_infinite(position: usize, value: f32) -> Result<(), ComputeError> {
    if value == f32::INFINITY {
        return Err(ComputeError::NotFinite { what: "logits", position, value });
    }
    Ok(())
}
