//! How well a model foretells a text, and how near its FFN modes come to each other.
//!
//! The text is cut as llama.cpp's `perplexity` cuts it, so that the figures can be compared:
//! windows of `n_ctx` tokens without overlap, what is left at the end is not used; where the model
//! wants a BOS it takes the place of every window's first token. Every window is run by itself, and of
//! its second half every token is foretold from all before it: `n_ctx / 2 - 1` tokens a window.

use larql_vindex::{Progress, VindexError};

use crate::hooks::NoHooks;
use crate::state::{CacheOptions, KvDtype, Overflow};
use crate::{FfnMode, InferenceError, Model};

/// Logits that are held at a time for one mode: 64 MB.
const LOGITS: usize = 16 << 20;

/// How a text is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvaluateOptions {
    /// Tokens of a window, at least 4.
    pub window: usize,
    /// How keys and values are stored.
    pub kv: KvDtype,
    /// What takes the place of a window's first token.
    pub bos: Option<u32>,
}

/// What [`Model::evaluate`] found for one mode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// The mode.
    pub mode: FfnMode,
    /// Tokens that were foretold.
    pub scored: usize,
    /// The mean of -ln p(token).
    pub nll: f64,
    /// Standard error of `nll`.
    pub nll_error: f64,
    /// The share of positions where the most likely token is that of the first mode.
    pub agreement: f64,
    /// The mean of KL(first mode || this one), in nats.
    pub kl: f64,
}

impl Evaluation {
    /// `exp(nll)`.
    pub fn perplexity(&self) -> f64 {
        self.nll.exp()
    }

    /// Standard error of the perplexity.
    pub fn perplexity_error(&self) -> f64 {
        self.nll_error * self.perplexity()
    }
}

/// One position: what the logits say.
#[derive(Debug, Clone, Copy, Default)]
struct Scores {
    best: usize,
    log_sum: f64,
    nll: f64,
    kl: f64,
}

/// Sums over positions.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    scored: usize,
    nll: f64,
    nll_squared: f64,
    agreed: usize,
    kl: f64,
}

impl Model<'_> {
    /// Runs `text` under each of the `modes` and compares them
    /// with the first. The FFN mode that was set stays.
    ///
    /// # Errors
    /// A text that does not fill a window, a window longer than the model's context or shorter
    /// than 4; a walk over experts; [`VindexError::Cancelled`].
    pub fn evaluate(
        &mut self,
        text: &[u32],
        options: EvaluateOptions,
        modes: &[FfnMode],
        progress: &dyn Progress,
    ) -> Result<Vec<Evaluation>, InferenceError> {
        let window = options.window;
        if window < 4 || window > self.config().context_length {
            return Err(InferenceError::Option {
                what: "the window",
                found: format!("{window} tokens"),
                expected: "at least 4 and at most the model's context",
            });
        }
        if text.len() < window {
            return Err(InferenceError::TextTooShort { tokens: text.len(), window });
        }
        let before = self.ffn_mode();
        let n_windows = text.len() / window;
        progress.start("evaluating", (n_windows * modes.len()) as u64, "windows");
        let sums = self.sum_up(text, options, modes, progress);
        progress.finish();
        self.set_ffn_mode(before)?;
        Ok(modes.iter().zip(sums?).map(|(&mode, sums)| sums.evaluation(mode)).collect())
    }

    fn sum_up(
        &mut self,
        text: &[u32],
        options: EvaluateOptions,
        modes: &[FfnMode],
        progress: &dyn Progress,
    ) -> Result<Vec<Sums>, InferenceError> {
        let (window, width) = (options.window, self.config().hidden_size);
        let cache = CacheOptions { context: window, kv: options.kv, overflow: Overflow::Error };
        let mut state = self.state(cache)?;
        let mut hidden = vec![Vec::new(); modes.len()];
        let mut sums = vec![Sums::default(); modes.len()];
        for tokens in text.chunks_exact(window) {
            let mut tokens = tokens.to_vec();
            tokens[0] = options.bos.unwrap_or(tokens[0]);
            for (&mode, hidden) in modes.iter().zip(&mut hidden) {
                self.set_ffn_mode(mode)?;
                state.reset();
                // Nothing is foretold from the last token.
                self.feed_all(&mut state, &tokens[..window - 1], &mut NoHooks)?;
                *hidden = state.hidden()[window / 2 * width..].to_vec();
                progress.advance(1);
                if progress.cancelled() {
                    let left = "nothing was written".to_owned();
                    return Err(VindexError::Cancelled { left }.into());
                }
            }
            self.compare(&hidden, &tokens[window / 2 + 1..], &mut sums)?;
        }
        Ok(sums)
    }

    /// Adds the scores of some positions: of each mode the hidden states, `[n, hidden_size]`, and
    /// the `n` tokens that follow.
    fn compare(
        &self,
        hidden: &[Vec<f32>],
        next: &[u32],
        sums: &mut [Sums],
    ) -> Result<(), InferenceError> {
        let (width, vocab_size) = (self.config().hidden_size, self.config().vocab_size);
        let piece = (LOGITS / vocab_size).max(1);
        let (mut first, mut other) = (Vec::new(), Vec::new());
        for (i, next) in next.chunks(piece).enumerate() {
            let mut reference = vec![Scores::default(); next.len()];
            for (mode, (hidden, sums)) in hidden.iter().zip(&mut *sums).enumerate() {
                let rows = &hidden[i * piece * width..][..next.len() * width];
                let logits = if mode == 0 { &mut first } else { &mut other };
                logits.resize(next.len() * vocab_size, 0.0);
                self.logits_of(rows, logits)?;
                let mut scores = vec![Scores::default(); next.len()];
                self.cpu().pool().for_each_chunk(&mut scores, 1, |p, scores| {
                    let row = p * vocab_size..(p + 1) * vocab_size;
                    let logits = if mode == 0 { &first[row.clone()] } else { &other[row.clone()] };
                    scores[0] = score(logits, next[p]);
                    if mode > 0 {
                        let known = reference[p].log_sum;
                        scores[0].kl =
                            divergence((&first[row], known), (logits, scores[0].log_sum));
                    }
                });
                if mode == 0 {
                    reference.clone_from(&scores);
                }
                scores.iter().zip(&reference).for_each(|(s, reference)| sums.add(s, reference));
            }
        }
        Ok(())
    }
}

impl Sums {
    fn add(&mut self, scores: &Scores, reference: &Scores) {
        self.scored += 1;
        self.nll += scores.nll;
        self.nll_squared += scores.nll * scores.nll;
        self.agreed += usize::from(scores.best == reference.best);
        self.kl += scores.kl;
    }

    fn evaluation(&self, mode: FfnMode) -> Evaluation {
        let n = self.scored.max(1) as f64;
        let nll = self.nll / n;
        let variance = (self.nll_squared / n - nll * nll).max(0.0);
        Evaluation {
            mode,
            scored: self.scored,
            nll,
            nll_error: (variance / (n - 1.0).max(1.0)).sqrt(),
            agreement: self.agreed as f64 / n,
            kl: self.kl / n,
        }
    }
}

/// What logits say about the token that follows; of equal logits the lowest id is the best.
fn score(logits: &[f32], next: u32) -> Scores {
    let mut best = 0;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = id;
        }
    }
    let largest = f64::from(logits[best]);
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    let log_sum = largest + sum.ln();
    Scores { best, log_sum, nll: log_sum - f64::from(logits[next as usize]), kl: 0.0 }
}

/// KL(p || q) of two distributions, each given by logits and the logarithm of their sum of
/// exponentials.
fn divergence((p, p_sum): (&[f32], f64), (q, q_sum): (&[f32], f64)) -> f64 {
    let terms = p.iter().zip(q).map(|(&p, &q)| {
        let log_p = f64::from(p) - p_sum;
        log_p.exp() * (log_p - (f64::from(q) - q_sum))
    });
    terms.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_those_of_a_softmax() {
        // p = 1/8, 1/8, 1/4, 1/2.
        let logits = [0.0, 0.0, 2.0_f32.ln(), 4.0_f32.ln()];
        let scores = score(&logits, 2);
        assert_eq!(scores.best, 3);
        assert!((scores.nll - 4.0_f64.ln()).abs() < 1e-6);
        let uniform = [7.0; 4];
        let q = score(&uniform, 0);
        assert_eq!(q.best, 0);
        let kl = divergence((&logits, scores.log_sum), (&uniform, q.log_sum));
        // ln 4 less the entropy of p, which is 1.75 bits.
        assert!((kl - 0.25 * 2.0_f64.ln()).abs() < 1e-6, "{kl}");
        let same = divergence((&logits, scores.log_sum), (&logits, scores.log_sum));
        assert!(same.abs() < 1e-12);
    }

    #[test]
    fn means_and_their_error() {
        let mut sums = Sums::default();
        for nll in [1.0, 3.0] {
            sums.add(
                &Scores { best: nll as usize, nll, ..Scores::default() },
                &Scores { best: 1, ..Scores::default() },
            );
        }
        let found = sums.evaluation(FfnMode::Dense);
        assert_eq!((found.scored, found.nll, found.agreement), (2, 2.0, 0.5));
        assert!((found.nll_error - 1.0).abs() < 1e-12);
    }
}
