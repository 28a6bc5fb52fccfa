//! How fast a model runs: a prompt, and a fixed number of tokens after it, each step timed.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use larql_vindex::HeapUse;

use crate::hooks::NoHooks;
use crate::model::{AttentionWeights, FfnWeights, Layer, Norm, Projection};
use crate::profile::Profile;
use crate::sample::{Sampler, SamplerOptions};
use crate::state::State;
use crate::{GenerateOptions, InferenceError, Model};

/// What [`Model::measure`] runs.
#[derive(Debug, Clone, Copy)]
pub struct Workload<'t> {
    /// The prompt, at least one token.
    pub prompt: &'t [u32],
    /// Of the prompt, how many tokens at its end are run to warm up.
    pub warm_prompt: usize,
    /// Tokens that are then generated to warm up; 0 warms nothing up, the prompt neither.
    pub warmup: usize,
    /// Tokens whose steps are timed.
    pub tokens: usize,
}

impl Workload<'_> {
    /// Positions that a state must have for it.
    pub fn context(&self) -> usize {
        self.prompt.len().max(self.warm_prompt + self.warmup) + self.tokens + 1
    }
}

/// What [`Model::measure`] found. Every token but the first costs a step: running the token before
/// it, the LM head, sampling.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Times to run the prompt: it is run again until that took a second, at most five times.
    pub prefills: Vec<Duration>,
    /// Where that of all runs together went.
    pub prefill_profile: Profile,
    /// Time from the end of the prompt to the first token.
    pub first: Duration,
    /// The time of each step.
    pub steps: Vec<Duration>,
    /// Where that of all steps together went.
    pub decode_profile: Profile,
    /// Of the steps, the time of sampling.
    pub sampling: Duration,
    /// What the model said.
    pub text: String,
}

impl Measured {
    /// The time of all steps.
    pub fn decode(&self) -> Duration {
        self.steps.iter().sum()
    }

    /// The median time to run the prompt.
    pub fn prefill(&self) -> Duration {
        percentile(&self.prefills, 50.0)
    }

    /// The time that `percent` of the steps do not exceed (nearest rank); zero without steps.
    pub fn step_percentile(&self, percent: f64) -> Duration {
        percentile(&self.steps, percent)
    }
}

/// The time that `percent` of some times do not exceed (nearest rank); zero where there are none.
fn percentile(times: &[Duration], percent: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).or(sorted.last()).copied().unwrap_or_default()
}

/// Runs of the prompt.
const PREFILLS: usize = 5;
/// Time of them after which there are no more.
const PREFILL_TIME: Duration = Duration::from_secs(1);

impl Model<'_> {
    /// Runs a workload in `state`, which is emptied before: the same loop as
    /// [`Model::generate`], greedy, without regard to tokens that end a text.
    ///
    /// # Errors
    /// An empty prompt, a context that is too small; those of the forward pass.
    pub fn measure(
        &self,
        state: &mut State,
        workload: Workload<'_>,
    ) -> Result<Measured, InferenceError> {
        let Workload { prompt, warm_prompt, warmup, tokens } = workload;
        let generate = |state: &mut State, prompt: &[u32], n: usize| {
            let mut sampler = Sampler::new(SamplerOptions::default())?;
            let options =
                GenerateOptions { max_tokens: Some(n), ends: false, ..GenerateOptions::default() };
            let mut piece = |_: &str| ControlFlow::Continue(());
            self.generate(state, &mut sampler, prompt, &options, &mut NoHooks, &mut piece)
        };
        state.reset();
        if warmup > 0 {
            let warm = &prompt[prompt.len().saturating_sub(warm_prompt.max(1))..];
            generate(state, warm, warmup)?;
            state.reset();
        }
        state.reset_profile();
        let mut prefills: Vec<Duration> = Vec::new();
        while prefills.len() < PREFILLS && prefills.iter().sum::<Duration>() < PREFILL_TIME {
            state.reset();
            let start = Instant::now();
            self.feed(state, prompt)?;
            prefills.push(start.elapsed());
        }
        let prefill_profile = state.profile().clone();
        let first = generate(state, &[], 1)?;
        state.reset_profile();
        let rest = generate(state, &first.tokens, tokens)?;
        // The first step of `rest` is what it calls its prompt, and the choice after it.
        let steps = if tokens == 0 { Vec::new() } else { vec![rest.prefill + rest.first] };
        Ok(Measured {
            prefills,
            prefill_profile,
            first: first.first,
            steps: steps.into_iter().chain(rest.steps).collect(),
            decode_profile: state.profile().clone(),
            sampling: rest.sampling,
            text: first.text + &rest.text,
        })
    }

    /// Bytes on the heap by owner; what is mapped is not in it.
    pub fn heap(&self) -> Vec<HeapUse> {
        let norms: usize = self.layers.iter().map(Layer::heap).sum();
        let norms = norms + self.output_norm.heap();
        let heap = [
            ("norms and biases", norms),
            ("feature norms of the walk", self.feature_norms.heap()),
            ("lm head planes: bounds and tables", self.head.heap()),
        ];
        heap.into_iter().map(|(owner, bytes)| HeapUse { owner, bytes: bytes as u64 }).collect()
    }
}

impl Layer<'_> {
    fn heap(&self) -> usize {
        let attention = match &self.attention {
            AttentionWeights::Heads { q, k, v, norms } => {
                let norms = norms.as_ref().map_or(0, |(q, k)| q.heap() + k.heap());
                [q, k, v].into_iter().map(Projection::heap).sum::<usize>() + norms
            }
            AttentionWeights::Latent(latent) => latent.kv_a_norm.heap(),
        };
        let ffn = match &self.ffn {
            FfnWeights::Dense { key, down, .. } => key.heap() + down.heap(),
            FfnWeights::Experts { score_bias, .. } => {
                score_bias.as_ref().map_or(0, |bias| size_of_val(&bias[..]))
            }
        };
        let post = [&self.post_attn_norm, &self.post_ffn_norm];
        let norms = post.into_iter().flatten().chain([&self.attn_norm, &self.ffn_norm]);
        attention + self.attn_output.heap() + ffn + norms.map(Norm::heap).sum::<usize>()
    }
}

impl Projection<'_> {
    fn heap(&self) -> usize {
        self.bias.as_ref().map_or(0, |bias| size_of_val(&bias[..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let times: Vec<Duration> = (1..=30).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&times, 50.0), Duration::from_millis(15));
        assert_eq!(percentile(&times, 99.0), Duration::from_millis(30));
        assert_eq!(percentile(&times, 0.0), Duration::from_millis(1));
        assert_eq!(percentile(&times[..1], 99.0), Duration::from_millis(30));
        assert_eq!(percentile(&[], 50.0), Duration::ZERO);
    }
}
