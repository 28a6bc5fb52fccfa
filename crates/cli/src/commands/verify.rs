//! `larql verify VINDEX`: recomputes every SHA-256.

use std::io;

use larql_vindex::{FileState, VerifyOptions, VerifyReport, verify};

use crate::args;
use crate::context::Context;
use crate::error::{Diagnostic, Failure};
use crate::progress::Bars;
use crate::render::{Column, Page, Report, Table, units};

pub(crate) fn run(args: &args::Verify, context: &Context) -> Result<(), Failure> {
    let options = VerifyOptions { threads: context.threads(), repair: args.repair };
    let bars = Bars::new(context);
    let report = verify(&args.vindex, &options, &bars)?;
    drop(bars);
    context.emit(&report)?;
    if report.is_sound() {
        return Ok(());
    }
    let touched = report.files.iter().all(|file| {
        matches!(file.state, FileState::Sound | FileState::Growing | FileState::Touched)
    });
    let told = Diagnostic::new("the vindex is not what its manifest says").at_path(&args.vindex);
    Err(if touched {
        told.note("every byte is right; only a linked file's modification time differs")
            .help(format!("larql verify {} --repair", args.vindex.display()))
    } else {
        told.help("extract it again with `larql extract-index … --force`")
    }
    .into())
}

impl Report for VerifyReport {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        let mut table =
            Table::new([Column::text("file"), Column::number("size"), Column::text("state")]);
        for file in &self.files {
            let mut state = match file.state {
                FileState::Sound => "sound",
                FileState::Touched => "sound, but touched",
                FileState::Growing => "still being filled, no hash yet",
                FileState::Missing => "MISSING",
                FileState::Absent => "not there, can be built again",
                FileState::Size => "WRONG SIZE",
                FileState::Damaged => "DAMAGED",
            }
            .to_owned();
            if let Some(detail) = &file.detail {
                state += &format!(": {detail}");
            }
            table.row([file.name.clone(), units::bytes(file.size), state]);
        }
        page.table(&table)?;
        for file in &self.extra_files {
            page.note(&format!("{file}: in the directory, but not of this vindex; never read"))?;
        }
        if self.repaired {
            page.note("The new modification times are recorded.")?;
        }
        Ok(())
    }
}
