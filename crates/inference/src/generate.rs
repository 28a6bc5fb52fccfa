//! Generation: the one loop from a prompt to the text that follows it. It prints nothing; text is
//! handed to a callback as soon as it is certain, and the callback may end it.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use larql_checkpoint::tokenizer::Tokenizer;

use crate::hooks::{Hooks, Point};
use crate::sample::{Sampler, Wants};
use crate::state::{BATCH, Overflow, State};
use crate::text::TextStream;
use crate::{InferenceError, Model};

/// What to generate, and where to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenerateOptions {
    /// Most tokens to generate; `None`: until the text ends or the context is full.
    pub max_tokens: Option<usize>,
    /// Texts, or names of control tokens, that end the text and are not part of it.
    pub stops: Vec<String>,
    /// Whether a token that ends generation does so. Measurements that want a fixed number of
    /// tokens turn it off.
    pub ends: bool,
    /// Whether the text goes on where the prompt ends, or is an answer by itself (see
    /// [`TextStream::after`]).
    pub continues: bool,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self { max_tokens: None, stops: Vec::new(), ends: true, continues: true }
    }
}

/// Why generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// The model chose this token, which ends generation.
    End(u32),
    /// This stop string was met.
    Stop(String),
    /// [`GenerateOptions::max_tokens`] were generated.
    Length,
    /// The context is full.
    Context,
    /// The callback ended it.
    Cancelled,
}

impl Finish {
    /// A name for people and scripts.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::End(_) => "end",
            Self::Stop(_) => "stop",
            Self::Length => "length",
            Self::Context => "context",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What was generated, and how long it took.
#[derive(Debug, Clone)]
pub struct Generated {
    /// The tokens chosen, but not one that ended generation.
    pub tokens: Vec<u32>,
    /// The text, as it was handed out.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt that were run.
    pub prompt_tokens: usize,
    /// Time to run them.
    pub prefill: Duration,
    /// Time to choose the first token once the prompt was run: LM head and sampling.
    pub first: Duration,
    /// For every further token chosen, one that ends generation included: running the token before
    /// it, LM head and sampling. The callback's time is not in it.
    pub steps: Vec<Duration>,
    /// Of `first` and `steps`, the time of sampling alone.
    pub sampling: Duration,
}

impl Generated {
    /// Tokens a second of the prompt; `None` where none was run.
    pub fn prefill_rate(&self) -> Option<f64> {
        rate(self.prompt_tokens, self.prefill)
    }

    /// Time of all steps.
    pub fn decode(&self) -> Duration {
        self.steps.iter().sum()
    }

    /// Tokens a second after the first; `None` where there are none.
    pub fn decode_rate(&self) -> Option<f64> {
        rate(self.steps.len(), self.decode())
    }
}

fn rate(tokens: usize, time: Duration) -> Option<f64> {
    (tokens > 0 && !time.is_zero()).then(|| tokens as f64 / time.as_secs_f64())
}

impl Model<'_> {
    /// Adds `prompt` to the text of `state` and generates what follows. `piece` is called for every
    /// token of the prompt's batches (with an empty text) and of the answer (with the text that is
    /// certain now, which may be empty) and may end generation. The last token chosen is not yet
    /// part of the state. `hooks` see every token that is run.
    ///
    /// # Errors
    /// A prompt that does not fit the context (nothing is run then), a prompt and state that are
    /// both empty, an empty stop string; those of the forward pass, the sampler and the hooks.
    pub fn generate(
        &self,
        state: &mut State,
        sampler: &mut Sampler,
        prompt: &[u32],
        options: &GenerateOptions,
        hooks: &mut dyn Hooks,
        piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generated, InferenceError> {
        let mut run = Run::new(self, options, piece)?;
        if options.continues {
            run.stream = run.stream.after(state.tokens()).after(prompt);
        }
        let finish = match run.prefill(state, prompt, hooks)? {
            ControlFlow::Break(()) => Finish::Cancelled,
            ControlFlow::Continue(()) => run.decode(state, sampler, hooks)?,
        };
        Ok(run.finish(finish))
    }

    /// Runs `tokens`; every hidden state is kept where the hooks want them after the final norm.
    fn feed_hooked(
        &self,
        state: &mut State,
        tokens: &[u32],
        hooks: &mut dyn Hooks,
    ) -> Result<(), InferenceError> {
        if hooks.wants(Point::FinalNorm) {
            self.feed_all(state, tokens, hooks)
        } else {
            self.feed_with(state, tokens, hooks)
        }
    }
}

/// One generation under way.
pub(crate) struct Run<'r, 'm> {
    model: &'r Model<'m>,
    tokenizer: &'r Tokenizer,
    options: &'r GenerateOptions,
    stream: TextStream<'r>,
    done: Generated,
    piece: &'r mut dyn FnMut(&str) -> ControlFlow<()>,
    /// Whether a full context is handed back, so that the caller makes room, and never shifted.
    pub(crate) hands_back: bool,
}

impl<'r, 'm> Run<'r, 'm> {
    /// Nothing run yet, the text an answer by itself.
    pub(crate) fn new(
        model: &'r Model<'m>,
        options: &'r GenerateOptions,
        piece: &'r mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Self, InferenceError> {
        let tokenizer = model.vindex().tokenizer()?;
        let stream = TextStream::new(tokenizer, options.stops.clone())?;
        let done = Generated {
            tokens: Vec::new(),
            text: String::new(),
            finish: Finish::Length,
            prompt_tokens: 0,
            prefill: Duration::ZERO,
            first: Duration::ZERO,
            steps: Vec::new(),
            sampling: Duration::ZERO,
        };
        Ok(Self { model, tokenizer, options, stream, done, piece, hands_back: false })
    }

    /// The tokens chosen so far.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.done.tokens
    }

    /// Runs the prompt, batch by batch so that it can be ended.
    pub(crate) fn prefill(
        &mut self,
        state: &mut State,
        prompt: &[u32],
        hooks: &mut dyn Hooks,
    ) -> Result<ControlFlow<()>, InferenceError> {
        let start = Instant::now();
        // Where the text has to be shifted, the forward pass decides once how far, for all of it;
        // and what does not fit at all is refused before anything is run.
        let fits = state.len() + prompt.len() <= state.context();
        let batch = if fits { BATCH } else { prompt.len() };
        let mut flow = ControlFlow::Continue(());
        for tokens in prompt.chunks(batch.max(1)) {
            self.model.feed_hooked(state, tokens, hooks)?;
            self.done.prompt_tokens += tokens.len();
            flow = (self.piece)("");
            if flow.is_break() {
                break;
            }
        }
        self.done.prefill += start.elapsed();
        Ok(flow)
    }

    /// Chooses token after token.
    pub(crate) fn decode(
        &mut self,
        state: &mut State,
        sampler: &mut Sampler,
        hooks: &mut dyn Hooks,
    ) -> Result<Finish, InferenceError> {
        let mut logits = Vec::new();
        let limit = self.options.max_tokens.unwrap_or(usize::MAX);
        while self.done.tokens.len() < limit {
            let start = Instant::now();
            let first = self.done.tokens.is_empty();
            if let Some(&last) = self.done.tokens.last() {
                let full = state.len() >= state.context();
                if full && (self.hands_back || state.options.overflow == Overflow::Error) {
                    return Ok(Finish::Context);
                }
                self.model.feed_hooked(state, &[last], hooks)?;
            }
            let next = self.choose(state, sampler, &mut logits)?;
            let time = start.elapsed();
            match first {
                true => self.done.first = time,
                false => self.done.steps.push(time),
            }
            if self.options.ends && self.tokenizer.ends_generation(next) {
                return Ok(Finish::End(next));
            }
            self.done.tokens.push(next);
            let text = self.stream.push(next);
            let goes_on = self.hand_out(&text);
            if let Some(stop) = self.stream.stopped() {
                return Ok(Finish::Stop(stop.to_owned()));
            }
            if goes_on.is_break() {
                return Ok(Finish::Cancelled);
            }
        }
        Ok(Finish::Length)
    }

    /// Hands out what was held back as the beginning of a stop string: it is text now.
    pub(crate) fn finish(mut self, finish: Finish) -> Generated {
        let rest = self.stream.rest_of_text();
        if !rest.is_empty() {
            let _ = self.hand_out(&rest);
        }
        self.done.finish = finish;
        self.done
    }

    /// The next token, from as much of the LM head as the sampler has to see.
    fn choose(
        &mut self,
        state: &mut State,
        sampler: &mut Sampler,
        logits: &mut Vec<f32>,
    ) -> Result<u32, InferenceError> {
        match sampler.wants(state.tokens()) {
            Wants::Top(k) => {
                let top = self.model.top_k(state, k)?;
                let start = Instant::now();
                let next = sampler.sample_top(&top, state.tokens());
                self.done.sampling += start.elapsed();
                next
            }
            Wants::All => {
                self.model.logits(state, logits)?;
                let start = Instant::now();
                let next = sampler.sample_logits(logits, state.tokens());
                self.done.sampling += start.elapsed();
                next
            }
        }
    }

    fn hand_out(&mut self, text: &str) -> ControlFlow<()> {
        self.done.text.push_str(text);
        (self.piece)(text)
    }
}
