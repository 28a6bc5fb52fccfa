//! `larql bench --perplexity FILE` and `--ffn-sweep`: how good the answers are.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use larql_checkpoint::tokenizer::EncodeOptions;
use larql_inference::{
    CacheOptions, EvaluateOptions, Evaluation, FfnMode, Model, Overflow, Workload,
};
use serde::Serialize;

use super::read_text;
use crate::args::{Bench, ffn_name};
use crate::context::Context;
use crate::error::{Diagnostic, Failure};
use crate::progress::Bars;
use crate::render::{Column, Page, Report, Table, units};
use crate::session::Session;

/// The text of a sweep unless one is given: Lewis Carroll, "Alice's Adventures in Wonderland"
/// (1865), the beginning.
const TEXT: &str = include_str!("../../../assets/alice.txt");
/// Tokens that are generated to time a mode of the sweep.
const TIMED: usize = 32;

/// How a text was cut.
#[derive(Serialize)]
struct Cut {
    text: String,
    tokens: usize,
    windows: usize,
    window: usize,
    /// Tokens that were foretold.
    scored: usize,
}

impl Cut {
    fn line(&self) -> String {
        format!(
            "{}: {} tokens, {} {} of {}; the second half of each is foretold, {} tokens in all",
            self.text,
            units::count(self.tokens as u64),
            self.windows,
            if self.windows == 1 { "window" } else { "windows" },
            self.window,
            units::count(self.scored as u64),
        )
    }
}

#[derive(Serialize)]
struct PerplexityReport {
    #[serde(flatten)]
    cut: Cut,
    ffn: String,
    kv: String,
    perplexity: f64,
    /// Standard error.
    error: f64,
    /// Mean of -ln p.
    nll: f64,
    seconds: f64,
    /// Tokens that were run in a second, scoring included.
    tokens_per_second: f64,
}

#[derive(Serialize)]
struct SweepReport {
    #[serde(flatten)]
    cut: Cut,
    /// Whether only the down rows of the features that are kept were read.
    feature_major_down: bool,
    rows: Vec<SweepRow>,
}

/// One mode against `dense`.
#[derive(Serialize)]
struct SweepRow {
    mode: String,
    /// Features that a layer keeps.
    features: usize,
    /// The share of positions where the most likely token is that of `dense`.
    agreement: f64,
    /// Mean KL(dense || this), in nats.
    kl: f64,
    perplexity: f64,
    perplexity_error: f64,
    weight_bytes_per_token: f64,
    /// By the median token.
    tokens_per_second: f64,
}

pub(super) fn perplexity(
    args: &Bench,
    path: &Path,
    session: &Session<'_>,
    context: &Context,
) -> Result<(), Failure> {
    let tokens = session.tokenizer()?.encode(&read_text(path)?, EncodeOptions::PROMPT)?;
    let mut model = Model::load(&session.vindex, &session.cpu)?;
    let bars = Bars::new(context);
    let start = Instant::now();
    let found = model.evaluate(&tokens, options(args, session)?, &[args.ffn], &bars)?;
    let time = start.elapsed().as_secs_f64();
    drop(bars);
    let Some(found) = found.first() else { return Ok(()) };
    let cut = cut(path.display().to_string(), tokens.len(), args, found);
    context.emit(&PerplexityReport {
        ffn: ffn_name(args.ffn),
        kv: args.kv.to_string(),
        perplexity: found.perplexity(),
        error: found.perplexity_error(),
        nll: found.nll,
        seconds: time,
        tokens_per_second: (cut.windows * cut.window) as f64 / time.max(1e-9),
        cut,
    })
}

pub(super) fn sweep(args: &Bench, session: &Session<'_>, context: &Context) -> Result<(), Failure> {
    let (name, text) = match &args.quality.text {
        Some(path) => (path.display().to_string(), read_text(path)?),
        None => ("Alice's Adventures in Wonderland, beginning".to_owned(), TEXT.to_owned()),
    };
    let tokens = session.tokenizer()?.encode(&text, EncodeOptions::PROMPT)?;
    let mut model = Model::load(&session.vindex, &session.cpu)?;
    let keeps = args.quality.keep.iter().map(|&keep| FfnMode::Walk(keep));
    let modes: Vec<FfnMode> = [FfnMode::Dense].into_iter().chain(keeps).collect();
    let bars = Bars::new(context);
    let found = model.evaluate(&tokens, options(args, session)?, &modes, &bars)?;
    drop(bars);
    let Some(first) = found.first() else { return Ok(()) };
    let cut = cut(name, tokens.len(), args, first);
    let rows = found.iter().map(|found| row(args, session, &mut model, found));
    let rows = rows.collect::<Result<_, Failure>>()?;
    let feature_major_down = session.vindex.down_features(0).is_some();
    context.emit(&SweepReport { cut, feature_major_down, rows })
}

/// What was found about a mode, and what it costs to generate with it.
fn row(
    args: &Bench,
    session: &Session<'_>,
    model: &mut Model<'_>,
    found: &Evaluation,
) -> Result<SweepRow, Failure> {
    let prompt = session.tokenizer()?.encode(&args.prompt, EncodeOptions::PROMPT)?;
    if prompt.is_empty() {
        return Err(Diagnostic::new("the prompt has no tokens").at("--prompt").into());
    }
    let warmup = args.warmup;
    let workload = Workload { prompt: &prompt, warm_prompt: prompt.len(), warmup, tokens: TIMED };
    model.set_ffn_mode(found.mode)?;
    let cache =
        CacheOptions { context: workload.context(), kv: args.kv, overflow: Overflow::Error };
    let measured = model.measure(&mut model.state(cache)?, workload)?;
    let n_features = model.config().intermediate_size;
    let features = match found.mode {
        FfnMode::Dense => n_features,
        FfnMode::Walk(keep) => keep.of(n_features),
    };
    let bytes = measured.decode_profile.weight_bytes() as f64;
    Ok(SweepRow {
        mode: ffn_name(found.mode),
        features,
        agreement: found.agreement,
        kl: found.kl,
        perplexity: found.perplexity(),
        perplexity_error: found.perplexity_error(),
        weight_bytes_per_token: bytes / TIMED as f64,
        tokens_per_second: 1.0 / measured.step_percentile(50.0).as_secs_f64().max(1e-9),
    })
}

fn options(args: &Bench, session: &Session<'_>) -> Result<EvaluateOptions, Failure> {
    let tokenizer = session.tokenizer()?;
    let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
    Ok(EvaluateOptions { window: args.quality.window, kv: args.kv, bos })
}

fn cut(text: String, tokens: usize, args: &Bench, found: &Evaluation) -> Cut {
    let window = args.quality.window;
    Cut { text, tokens, windows: tokens / window, window, scored: found.scored }
}

impl Report for PerplexityReport {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.line(&self.cut.line())?;
        page.fields(&[
            ("perplexity", format!("{:.4} ± {:.4}", self.perplexity, self.error)),
            ("mean -ln p", format!("{:.5}", self.nll)),
            ("ffn", self.ffn.clone()),
            ("keys and values", self.kv.clone()),
            (
                "time",
                format!(
                    "{} ({:.1} tok/s)",
                    units::duration(Duration::from_secs_f64(self.seconds)),
                    self.tokens_per_second
                ),
            ),
        ])
    }
}

impl Report for SweepReport {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.line(&self.cut.line())?;
        let mut table = Table::new([
            Column::text("ffn"),
            Column::number("features"),
            Column::number("same token"),
            Column::number("KL"),
            Column::number("perplexity"),
            Column::number("weights read"),
            Column::number("tok/s"),
        ]);
        for row in &self.rows {
            table.row([
                row.mode.clone(),
                row.features.to_string(),
                units::percent(row.agreement),
                format!("{:.4}", row.kl),
                format!("{:.2} ± {:.2}", row.perplexity, row.perplexity_error),
                units::bytes(row.weight_bytes_per_token as u64),
                format!("{:.1}", row.tokens_per_second),
            ]);
        }
        page.table(&table)?;
        page.note(
            "Features a layer with the largest contribution, all others at 0. Same token: how often\n\
             the most likely next token is that of dense. KL: of dense from the walk, mean in nats.\n\
             A walk still reads all gate and up rows, to choose.",
        )?;
        page.note(match self.feature_major_down {
            true => {
                "Of the down projections it reads only the rows that it keeps, and multiplies them in\n\
                 float32 where dense rounds to 8 bits: so 100 % is not quite dense."
            }
            false => {
                "It also reads all of the down projections, for this vindex has no down rows by feature\n\
                 (`larql extract-index --feature-major-down`): it saves nothing."
            }
        })
    }
}
