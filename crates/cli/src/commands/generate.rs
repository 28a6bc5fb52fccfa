//! What commands that generate text share: a model made ready, text that streams, and the figures afterwards.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::time::{Duration, SystemTime};

use larql_inference::sample::Sampler;
use larql_inference::{
    CacheOptions, FfnMode, Finish, Generated, InferenceError, Model, Overflow, State,
};
use serde::Serialize;

use crate::args::{DEFAULT_CONTEXT, Running, Sampling};
use crate::context::Context;
use crate::error::{Diagnostic, Failure};
use crate::interrupt;
use crate::render::{Page, Report, units};
use crate::session::{Session, TokenRow};

/// The model as the flags ask for it, and an empty text.
pub(super) fn load<'a>(
    session: &'a Session<'_>,
    flags: &Running,
    context: &Context,
) -> Result<(Model<'a>, State), Failure> {
    let mut model = Model::load(&session.vindex, &session.cpu)?;
    model.set_ffn_mode(flags.ffn)?;
    if flags.ffn != FfnMode::Dense {
        context.remark(
            "--ffn walk leaves features out: an approximation, and no faster unless few are kept",
        );
    }
    let trained = model.config().context_length;
    let positions = flags.context.positions.unwrap_or(trained.min(DEFAULT_CONTEXT));
    if positions > trained {
        context.remark(&format!(
            "the model was trained on contexts of {trained} tokens; beyond, it gets worse"
        ));
    }
    let overflow = if flags.context.shift { Overflow::Shift } else { Overflow::Error };
    let state = model.state(CacheOptions { context: positions, kv: flags.kv, overflow })?;
    Ok((model, state))
}

/// The sampler as the flags ask for it, and its seed where it draws.
pub(super) fn sampler(flags: &Sampling) -> Result<(Sampler, Option<u64>), Failure> {
    // Any number will do; that it is another each time is all that is wanted.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seed = flags.seed.unwrap_or(u64::from(now.subsec_nanos()));
    let options = flags.options(seed).map_err(|flag| {
        Diagnostic::new(format!("{flag} has no effect at temperature 0, which draws nothing"))
            .at(flag)
            .help("add --temperature 0.8, or leave it out")
    })?;
    let drawn = (!options.greedy()).then_some(seed);
    Ok((Sampler::new(options)?, drawn))
}

/// Writes pieces of text to stdout as they come, unless the output is JSON.
pub(super) struct Stream {
    shown: bool,
    failed: Option<io::Error>,
}

impl Stream {
    pub(super) fn new(context: &Context) -> Stream {
        Stream { shown: !context.json(), failed: None }
    }

    /// Takes a piece; generation is to end where Ctrl-C was pressed or nobody reads.
    pub(super) fn piece(&mut self, text: &str) -> ControlFlow<()> {
        if self.shown && !text.is_empty() {
            let mut out = io::stdout().lock();
            let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            if let Err(error) = written {
                self.shown = false;
                self.failed = Some(error);
            }
        }
        if self.failed.is_some() || interrupt::requested() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Ends the line of the text.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        self.failed.take().map_or(Ok(()), Err)?;
        if self.shown {
            writeln!(io::stdout().lock())?;
        }
        Ok(())
    }
}

/// What was generated, for programs.
#[derive(Serialize)]
pub(super) struct GeneratedRow {
    text: String,
    tokens: Vec<TokenRow>,
    /// `end`, `stop`, `length`, `context` or `cancelled`.
    finish: &'static str,
    prompt_tokens: usize,
    /// The seed, where tokens were drawn.
    seed: Option<u64>,
    timings: Timings,
}

#[derive(Serialize)]
struct Timings {
    prefill_ms: f64,
    prefill_tokens_per_second: Option<f64>,
    first_token_ms: f64,
    decode_ms: f64,
    decode_tokens_per_second: Option<f64>,
    sampling_ms: f64,
}

impl GeneratedRow {
    pub(super) fn new(
        generated: &Generated,
        session: &Session<'_>,
        seed: Option<u64>,
    ) -> Result<GeneratedRow, Failure> {
        let tokenizer = session.tokenizer()?;
        let token = |&id: &u32| TokenRow { id, text: tokenizer.token_text(id) };
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Ok(GeneratedRow {
            text: generated.text.clone(),
            tokens: generated.tokens.iter().map(token).collect(),
            finish: generated.finish.name(),
            prompt_tokens: generated.prompt_tokens,
            seed,
            timings: Timings {
                prefill_ms: ms(generated.prefill),
                prefill_tokens_per_second: generated.prefill_rate(),
                first_token_ms: ms(generated.first),
                decode_ms: ms(generated.decode()),
                decode_tokens_per_second: generated.decode_rate(),
                sampling_ms: ms(generated.sampling),
            },
        })
    }
}

/// Only programs ask for the row: for people the text has been streamed.
impl Report for GeneratedRow {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.line(&self.text)
    }
}

/// One line of figures on stderr.
pub(super) fn figures(generated: &Generated, seed: Option<u64>, context: &Context) {
    let rate = |rate: Option<f64>| rate.map_or(String::new(), |r| format!(", {r:.1} tok/s"));
    let seed = seed.map_or(String::new(), |seed| format!("; seed {seed}"));
    context.remark(&format!(
        "prompt: {} in {}{}; generated: {} in {}{}{seed}",
        tokens(generated.prompt_tokens),
        units::duration(generated.prefill),
        rate(generated.prefill_rate()),
        tokens(generated.tokens.len()),
        units::duration(generated.first + generated.decode()),
        rate(generated.decode_rate()),
    ));
}

fn tokens(n: usize) -> String {
    if n == 1 { "1 token".to_owned() } else { format!("{} tokens", units::count(n as u64)) }
}

/// The failure that the end of a generation is, where it is one.
pub(super) fn failure(finish: &Finish, state: &State) -> Option<Failure> {
    match finish {
        Finish::Cancelled => Some(Failure::Cancelled("the text above is unfinished".to_owned())),
        Finish::Context => {
            let (context, held) = (state.context(), state.len());
            Some(context_full(InferenceError::ContextFull { context, held, asked: 1 }))
        }
        Finish::End(_) | Finish::Stop(_) | Finish::Length => None,
    }
}

/// A full context with the flag that helps; any other failure as it is.
pub(super) fn context_full(error: InferenceError) -> Failure {
    match error {
        InferenceError::ContextFull { context, held, asked } => Diagnostic::new(format!(
            "the context of {context} tokens is full: it holds {held}, and {asked} more are needed"
        ))
        .at("--context")
        .help(format!(
            "--context {} for a longer one, or --context {context},shift to forget the older half",
            (held + asked).next_power_of_two().max(context.saturating_mul(2))
        ))
        .into(),
        error => error.into(),
    }
}
