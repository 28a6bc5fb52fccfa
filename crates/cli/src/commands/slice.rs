//! `larql slice VINDEX -o VINDEX`: a smaller vindex with only some roles or layers of another.

use std::io;

use larql_vindex::{SliceOptions, SliceReport, Vindex, slice};

use crate::args;
use crate::commands::files_table;
use crate::context::Context;
use crate::error::Failure;
use crate::progress::Bars;
use crate::render::{Page, Report};

pub(crate) fn run(args: &args::Slice, context: &Context) -> Result<(), Failure> {
    let layers = match args.layers {
        Some(range) => Some(range.resolve(Vindex::open(&args.vindex)?.config().n_layers)),
        None => None,
    };
    let options = SliceOptions {
        level: args.level,
        groups: args.roles.clone(),
        layers,
        force: args.force,
        threads: context.threads(),
    };
    let bars = Bars::new(context);
    let report = slice(&args.vindex, &args.output, &options, &bars)?;
    drop(bars);
    context.emit(&report)
}

impl Report for SliceReport {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.fields(&[
            ("vindex", self.path.display().to_string()),
            ("level", self.level.to_string()),
        ])?;
        page.heading("Files")?;
        page.table(&files_table(&self.files))?;
        for file in &self.left_out {
            page.note(&format!("{file}: left out, it does not fit the slice"))?;
        }
        Ok(())
    }
}
