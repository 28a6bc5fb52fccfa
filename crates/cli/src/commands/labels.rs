//! `larql labels VINDEX`: shows labels, or computes them.

use std::io;
use std::path::Path;
use std::time::Duration;

use larql_compute::Cpu;
use larql_vindex::labels::{self, Coverage, LabelOptions, LabelReport, LazyLabels};
use larql_vindex::{Level, Progress, Vindex};
use serde::Serialize;

use crate::args::{LabelFlags, Labels};
use crate::context::Context;
use crate::error::{Diagnostic, Failure};
use crate::progress::Bars;
use crate::render::{Column, Page, Report, Table, units};
use crate::session::{LabelRow, Session, tokens_of};

pub(crate) fn run(args: &Labels, context: &Context) -> Result<(), Failure> {
    if args.compute || args.resume {
        let vindex = Vindex::open(&args.vindex)?;
        let bars = Bars::new(context);
        let report = compute(&vindex, &context.cpu()?, &args.flags, args.compute, &bars)?;
        drop(bars);
        return context.emit(&report);
    }
    if args.flags.any() {
        let what = "--score, --top-tokens and --layers say how labels are computed";
        return Err(Diagnostic::new(what).help("add --compute or --resume").into());
    }
    let session = Session::open(&args.vindex, context)?;
    match args.layer {
        Some(layer) => context.emit(&layer_rows(&session, layer)?),
        None => context.emit(&Overview::of(&session)?),
    }
}

/// Computes labels: all of them `anew`, or those that are missing.
pub(super) fn compute(
    vindex: &Vindex,
    cpu: &Cpu,
    flags: &LabelFlags,
    anew: bool,
    progress: &dyn Progress,
) -> Result<LabelReport, Failure> {
    Ok(labels::compute(vindex, cpu, &options(vindex, flags, anew)?, progress)?)
}

/// Begins the label file with its first label: commands that show features fill in the others.
/// A vindex without down projections has nothing to label, and gets no file.
pub(super) fn begin(vindex: &Vindex, cpu: &Cpu, flags: &LabelFlags) -> Result<(), Failure> {
    if vindex.level() == Level::Browse {
        return Ok(());
    }
    let labels = LazyLabels::open(vindex, cpu, &options(vindex, flags, false)?)?;
    labels.get(&[(vindex.layers().start, 0)])?;
    match labels.not_kept() {
        None => Ok(()),
        Some(why) => Err(Diagnostic::new(format!("labels cannot be kept: {why}")).into()),
    }
}

/// What the flags ask for; where they are silent and labels are kept, as those were made.
fn options(vindex: &Vindex, flags: &LabelFlags, anew: bool) -> Result<LabelOptions, Failure> {
    let kept = if anew { None } else { labels::Labels::open(vindex)? };
    let usual = match kept {
        Some(kept) => LabelOptions {
            top_tokens: kept.top_tokens(),
            score: kept.score(),
            ..LabelOptions::default()
        },
        None => LabelOptions::default(),
    };
    Ok(LabelOptions {
        top_tokens: flags.top_tokens.unwrap_or(usual.top_tokens),
        score: flags.score.unwrap_or(usual.score),
        layers: flags.layers.map(|range| range.resolve(vindex.config().n_layers)),
        anew,
    })
}

impl Report for LabelReport {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        let time = Duration::from_secs_f64(self.seconds);
        page.heading("Labels")?;
        page.fields(&[
            ("features", units::count(self.features as u64)),
            ("kept", units::count(self.kept as u64)),
            ("tokens", units::count(self.tokens as u64)),
            ("score", self.score.name().to_owned()),
            ("top tokens", format!("{} of each sign", self.top_tokens)),
            ("time", units::duration(time)),
        ])
    }
}

/// How many labels there are.
#[derive(Serialize)]
struct Overview {
    score: &'static str,
    top_tokens: usize,
    #[serde(flatten)]
    coverage: Coverage,
}

impl Overview {
    fn of(session: &Session<'_>) -> Result<Overview, Failure> {
        let path = session.vindex.path();
        let labels = labels::Labels::open(&session.vindex)?.ok_or_else(|| none_yet(path))?;
        let score = labels.score().name();
        Ok(Overview { score, top_tokens: labels.top_tokens(), coverage: labels.coverage() })
    }
}

fn none_yet(path: &Path) -> Diagnostic {
    Diagnostic::new("this vindex has no labels")
        .at_path(path)
        .help(format!("larql labels {} --compute", path.display()))
}

impl Report for Overview {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        let all = &self.coverage;
        page.fields(&[
            ("score", self.score.to_owned()),
            ("top tokens", format!("{} of each sign", self.top_tokens)),
            ("labelled", coverage_text(all.features, all.of_features)),
        ])?;
        page.heading("Layers")?;
        let mut table = Table::new([
            Column::number("layer"),
            Column::number("labelled"),
            Column::number("features"),
        ]);
        for layer in &all.layers {
            table.row([
                layer.layer.to_string(),
                units::count(layer.features as u64),
                units::count(layer.of_features as u64),
            ]);
        }
        page.table(&table)
    }
}

fn coverage_text(features: usize, of: usize) -> String {
    let share = units::percent(features as f64 / of.max(1) as f64);
    format!("{} of {} features ({share})", units::count(features as u64), units::count(of as u64))
}

/// The labels of one layer.
#[derive(Serialize)]
struct LayerRows {
    layer: usize,
    features: Vec<FeatureRow>,
}

#[derive(Serialize)]
struct FeatureRow {
    feature: usize,
    #[serde(flatten)]
    label: LabelRow,
}

fn layer_rows(session: &Session<'_>, layer: usize) -> Result<LayerRows, Failure> {
    let n_features = session.vindex.n_features(layer)?;
    let ids: Vec<(usize, usize)> = (0..n_features).map(|feature| (layer, feature)).collect();
    let labels = session.labels_of(&ids)?.into_iter().enumerate();
    let features: Vec<FeatureRow> =
        labels.filter_map(|(feature, label)| Some(FeatureRow { feature, label: label? })).collect();
    if features.is_empty() {
        return Err(none_yet(session.vindex.path()).into());
    }
    Ok(LayerRows { layer, features })
}

impl Report for LayerRows {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.heading(&format!("Labels of layer {}", self.layer))?;
        let mut table = Table::new([
            Column::number("feature"),
            Column::text("+ writes"),
            Column::text("- writes"),
        ]);
        for row in &self.features {
            let tokens = |negative| tokens_of(Some(&row.label), negative, 4);
            table.row([row.feature.to_string(), tokens(false), tokens(true)]);
        }
        page.table(&table)
    }
}
