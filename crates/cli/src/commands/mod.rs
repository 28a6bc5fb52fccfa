//! The commands, one file each: flags in, one call into the libraries, rows out.

mod ablate;
mod bench;
mod chat;
mod completions;
mod describe;
mod extract;
mod feature;
mod generate;
mod head;
mod info;
mod knn;
mod labels;
mod look;
mod pull;
mod quantize;
mod residency;
mod run;
mod slice;
mod stats;
mod trace;
mod verify;
mod walk;
mod why;

use std::io;

use larql_vindex::{Fallback, FileSize};

use crate::args::{Command, Convert};
use crate::context::Context;
use crate::error::Failure;
use crate::render::{Column, Page, Table, units};

/// Runs a command.
pub(crate) fn run(command: Command, context: &Context) -> Result<(), Failure> {
    match command {
        Command::Info(args) => info::run(&args, context),
        Command::ExtractIndex(args) | Command::Convert(Convert::GgufToVindex(args)) => {
            extract::run(&args, context)
        }
        Command::Convert(Convert::Quantize(args)) => quantize::run(&args, context),
        Command::Verify(args) => verify::run(&args, context),
        Command::Slice(args) => slice::run(&args, context),
        Command::Run(args) => run::run(&args, context),
        Command::Chat(args) => chat::run(&args, context),
        Command::Bench(args) => bench::run(&args, context),
        Command::Stats(args) => stats::run(&args, context),
        Command::Knn(args) => knn::run(&args, context),
        Command::Walk(args) => walk::run(&args, context),
        Command::Trace(args) => trace::run(&args, context),
        Command::Why(args) => why::run(&args, context),
        Command::Describe(args) => describe::run(&args, context),
        Command::Feature(args) => feature::run(&args, context),
        Command::Labels(args) => labels::run(&args, context),
        Command::LmHead(args) => head::run(&args, context),
        Command::Residency(args) => residency::run(&args, context),
        Command::Pull(args) => pull::run(&args, context),
        Command::Completions(args) => completions::run(&args),
    }
}

/// The files that a command wrote.
fn files_table(files: &[FileSize]) -> Table {
    let mut table = Table::new([Column::text("file"), Column::number("size")]);
    for file in files {
        table.row([file.name.clone(), units::bytes(file.size)]);
    }
    table
}

/// The tensors that did not get the dtype asked for, where there are any.
fn fallbacks(page: &mut Page<'_>, fallbacks: &[Fallback]) -> io::Result<()> {
    if fallbacks.is_empty() {
        return Ok(());
    }
    page.heading("Stored in another dtype than asked for")?;
    let mut table =
        Table::new([Column::text("tensor"), Column::text("dtype"), Column::text("because")]);
    for fallback in fallbacks {
        table.row([fallback.tensor.clone(), fallback.got.clone(), fallback.why.clone()]);
    }
    page.table(&table)
}
