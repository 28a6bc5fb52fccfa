//! `larql extract-index SOURCE -o VINDEX`, also as `larql convert gguf-to-vindex`.

use std::io;

use larql_checkpoint::Checkpoint;
use larql_vindex::labels::LabelReport;
use larql_vindex::{ExtractOptions, ExtractReport, FileSize, Level, Vindex, extract, narrow};
use serde::Serialize;

use crate::args::{Extract, LabelsWhen};
use crate::commands::labels;
use crate::commands::{fallbacks, files_table};
use crate::context::Context;
use crate::error::Failure;
use crate::progress::Bars;
use crate::render::{Page, Report, units};

#[derive(Serialize)]
struct Extracted {
    #[serde(flatten)]
    report: ExtractReport,
    /// The labels computed, with `--labels eager`.
    labels: Option<LabelReport>,
}

pub(crate) fn run(args: &Extract, context: &Context) -> Result<(), Failure> {
    let cpu = context.cpu()?;
    let bars = Bars::new(context);
    if args.resume {
        let vindex = Vindex::open(&args.output)?;
        let report = labels::compute(&vindex, &cpu, &args.label_flags, false, &bars)?;
        if args.level < vindex.level() {
            narrow(&args.output, args.level, context.threads(), &bars)?;
        }
        drop(bars);
        return context.emit(&report);
    }
    let mut report = extract(&args.source, &args.output, &options(args, context)?, &bars)?;
    let vindex = Vindex::open(&args.output)?;
    let labels = match args.labels {
        LabelsWhen::Eager => Some(labels::compute(&vindex, &cpu, &args.label_flags, true, &bars)?),
        LabelsWhen::Lazy => {
            labels::begin(&vindex, &cpu, &args.label_flags)?;
            None
        }
        LabelsWhen::None => None,
    };
    if args.level < vindex.level() {
        narrow(&args.output, args.level, context.threads(), &bars)?;
    }
    drop(bars);
    // Labels are a file more, and narrowing may have taken some away.
    let vindex = Vindex::open(&args.output)?;
    report.level = vindex.level();
    report.files = vindex
        .manifest()
        .files
        .iter()
        .map(|file| FileSize { name: file.name.clone(), kind: file.kind, size: file.size })
        .collect();
    context.emit(&Extracted { report, labels })
}

fn options(args: &Extract, context: &Context) -> Result<ExtractOptions, Failure> {
    let layers = match args.label_flags.layers {
        // Only the model knows where an open range ends.
        Some(range) => Some(range.resolve(Checkpoint::open(&args.source)?.config().n_layers)),
        None => None,
    };
    // Labels need the down projections while they are computed, and no more afterwards.
    let level = match args.labels {
        LabelsWhen::Eager => args.level.max(Level::Inference),
        LabelsWhen::Lazy | LabelsWhen::None => args.level,
    };
    Ok(ExtractOptions {
        level,
        layers,
        copy: args.copy,
        dtype: args.dtype,
        split: args.split,
        feature_major_down: args.feature_major_down,
        force: args.force,
        threads: context.threads(),
    })
}

impl Report for Extracted {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        self.report.draw(page)?;
        match &self.labels {
            Some(labels) => labels.draw(page),
            None => Ok(()),
        }
    }
}

impl Report for ExtractReport {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.fields(&[
            ("vindex", self.path.display().to_string()),
            ("level", self.level.to_string()),
            ("tensors", units::count(self.n_tensors as u64)),
            ("weights", self.weights.to_string()),
            ("time", units::duration(std::time::Duration::from_secs_f64(self.seconds))),
        ])?;
        page.heading("Files")?;
        page.table(&files_table(&self.files))?;
        fallbacks(page, &self.fallbacks)?;
        for name in &self.unknown_tensors {
            page.note(&format!("{name}: larql has no role for this tensor; it is kept as it is"))?;
        }
        for path in &self.removed_leftovers {
            page.note(&format!(
                "{}: an interrupted extraction's leftover, removed",
                path.display()
            ))?;
        }
        Ok(())
    }
}
