//! The one place where rows become text.
//!
//! Every command builds a `Report`: a serialisable struct of rows. With `--json` it is printed
//! as it is; otherwise it draws itself on a `Page`. Nothing is formatted anywhere else.

mod page;
mod style;
pub(crate) mod svg;
mod table;
pub(crate) mod units;

pub(crate) use page::Page;
pub(crate) use style::Style;
pub(crate) use table::{Column, Table};

use std::io::{self, Write};

use serde::Serialize;

/// What a command found: rows for a program, and a drawing of the same rows for a person.
pub(crate) trait Report: Serialize {
    /// Draws the rows.
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()>;
}

/// Prints a report to `out`, as indented JSON or as text.
pub(crate) fn emit(
    report: &impl Report,
    out: &mut dyn Write,
    json: bool,
    style: Style,
) -> io::Result<()> {
    if json {
        serde_json::to_writer_pretty(&mut *out, report)?;
        writeln!(out)?;
    } else {
        report.draw(&mut Page::new(out, style))?;
    }
    out.flush()
}
