//! `larql convert quantize DTYPE SOURCE -o VINDEX`: matrices in another dtype, with the error.

use std::io;
use std::time::Duration;

use larql_vindex::{QuantizeOptions, QuantizeReport, quantize};

use crate::args::Quantize;
use crate::commands::{fallbacks, files_table};
use crate::context::Context;
use crate::error::Failure;
use crate::progress::Bars;
use crate::render::{Column, Page, Report, Table, units};

pub(crate) fn run(args: &Quantize, context: &Context) -> Result<(), Failure> {
    let options = QuantizeOptions {
        dtype: args.dtype,
        feature_major_down: args.feature_major_down,
        force: args.force,
        threads: context.threads(),
    };
    let bars = Bars::new(context);
    let report = quantize(&args.source, &args.output, &options, &bars)?;
    drop(bars);
    context.emit(&report)
}

impl Report for QuantizeReport {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.fields(&[
            ("vindex", self.path.display().to_string()),
            ("time", units::duration(Duration::from_secs_f64(self.seconds))),
        ])?;
        page.heading("Size and error by role")?;
        let mut table = Table::new([
            Column::text("role"),
            Column::number("tensors"),
            Column::number("before"),
            Column::number("after"),
            Column::number("rmse"),
            Column::number("relative"),
        ]);
        for role in &self.roles {
            table.row([
                role.role.clone(),
                role.tensors.to_string(),
                units::bytes(role.source_bytes),
                units::bytes(role.bytes),
                format!("{:.3e}", role.rmse),
                units::percent(role.relative),
            ]);
        }
        page.table(&table)?;
        fallbacks(page, &self.fallbacks)?;
        page.heading("Files")?;
        page.table(&files_table(&self.files))?;
        page.note("relative: the norm of the difference over the norm of the source's values.")
    }
}
