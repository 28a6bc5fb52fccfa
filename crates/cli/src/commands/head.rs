//! `larql lm-head VINDEX`: builds the coarse planes of the LM head, or deletes them.

use std::io;
use std::time::Duration;

use larql_checkpoint::tokenizer::EncodeOptions;
use larql_inference::{CacheOptions, KvDtype, Model, NoHooks, Overflow};
use larql_vindex::{
    PlanesReport, Progress, build_head_planes, delete_head_planes, planes_not_worth,
};
use serde::Serialize;

use crate::args::LmHead;
use crate::context::Context;
use crate::error::{Diagnostic, Failure};
use crate::progress::Bars;
use crate::render::{Page, Report, units};
use crate::session::Session;

/// What the hidden states are taken from that say which columns are hot: prose, code and lists in
/// several languages, written for this purpose.
const TEXT: &str = include_str!("../../assets/calibration.txt");
/// Tokens that are run at a time.
const BATCH: usize = 64;

pub(crate) fn run(args: &LmHead, context: &Context) -> Result<(), Failure> {
    let session = Session::open(&args.vindex, context)?;
    if args.delete {
        return context.emit(&Deleted { deleted: delete_head_planes(&session.vindex)? });
    }
    if !args.force
        && let Some(why) = planes_not_worth(session.vindex.unembedding()?)
    {
        return Err(Diagnostic::new(format!("planes would not make this model faster: {why}"))
            .at_path(&args.vindex)
            .help("--force builds them all the same")
            .into());
    }
    // Planes of another head must not keep the model from being run for these.
    delete_head_planes(&session.vindex)?;
    let bars = Bars::new(context);
    let mean_abs = calibrate(&session, &bars)?;
    let report = build_head_planes(&session.vindex, &session.cpu, &mean_abs, &bars)?;
    drop(bars);
    context.emit(&report)
}

/// The mean |h| of each column over the hidden states of the text.
fn calibrate(session: &Session<'_>, progress: &dyn Progress) -> Result<Vec<f32>, Failure> {
    let model = Model::load(&session.vindex, &session.cpu)?;
    let mut tokens = session.tokenizer()?.encode(TEXT, EncodeOptions::PROMPT)?;
    tokens.truncate(model.config().context_length);
    let options =
        CacheOptions { context: tokens.len(), kv: KvDtype::F32, overflow: Overflow::Error };
    let mut state = model.state(options)?;
    let mut sums = vec![0.0_f64; model.config().hidden_size];
    progress.start("calibrating", tokens.len() as u64, "tokens");
    let mut fed = Ok(());
    for batch in tokens.chunks(BATCH) {
        fed = model.feed_all(&mut state, batch, &mut NoHooks);
        if fed.is_err() || progress.cancelled() {
            break;
        }
        for h in state.hidden().chunks_exact(sums.len()) {
            sums.iter_mut().zip(h).for_each(|(sum, h)| *sum += f64::from(h.abs()));
        }
        progress.advance(batch.len() as u64);
    }
    progress.finish();
    fed?;
    if progress.cancelled() {
        let left = "no planes were written".to_owned();
        return Err(larql_vindex::VindexError::Cancelled { left }.into());
    }
    Ok(sums.iter().map(|sum| (sum / tokens.len().max(1) as f64) as f32).collect())
}

impl Report for PlanesReport {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        let share = units::percent(self.planes_bytes as f64 / self.head_bytes.max(1) as f64);
        page.heading("LM head planes")?;
        page.fields(&[
            ("rows", units::count(self.rows as u64)),
            ("columns", units::count(self.cols as u64)),
            ("head", format!("{}, {}", self.dtype, units::bytes(self.head_bytes))),
            ("planes", format!("{} ({share} of the head)", units::bytes(self.planes_bytes))),
            ("time", units::duration(Duration::from_secs_f64(self.seconds))),
        ])
    }
}

/// What became of the planes.
#[derive(Serialize)]
struct Deleted {
    deleted: bool,
}

impl Report for Deleted {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.note(if self.deleted {
            "The planes of the LM head are deleted."
        } else {
            "There are no planes of the LM head."
        })
    }
}
