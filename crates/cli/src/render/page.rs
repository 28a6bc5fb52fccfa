//! A page of text output: headings, fields, tables and notes, written to one stream.

use std::io::{self, Write};

use super::{Style, Table};

/// Where a report draws itself.
pub(crate) struct Page<'a> {
    out: &'a mut dyn Write,
    style: Style,
    /// Whether anything was written yet: sections are set apart by one blank line.
    begun: bool,
}

impl<'a> Page<'a> {
    pub(crate) fn new(out: &'a mut dyn Write, style: Style) -> Page<'a> {
        Page { out, style, begun: false }
    }

    /// A bold line that opens a section.
    pub(crate) fn heading(&mut self, text: &str) -> io::Result<()> {
        self.gap()?;
        writeln!(self.out, "{}", self.style.bold(text))
    }

    /// A plain line.
    pub(crate) fn line(&mut self, text: &str) -> io::Result<()> {
        self.begun = true;
        writeln!(self.out, "{text}")
    }

    /// Name and value, one pair a line, values aligned.
    pub(crate) fn fields(&mut self, fields: &[(&str, String)]) -> io::Result<()> {
        self.begun = true;
        let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, value) in fields {
            let pad = " ".repeat(width - name.len());
            writeln!(self.out, "  {}{pad}  {value}", self.style.cyan(name))?;
        }
        Ok(())
    }

    /// A table: ruled and fitted to the width on a terminal, bare columns elsewhere.
    pub(crate) fn table(&mut self, table: &Table) -> io::Result<()> {
        self.begun = true;
        for line in table.lines(self.style) {
            writeln!(self.out, "{line}")?;
        }
        Ok(())
    }

    /// A remark about the result: faint, after a blank line.
    pub(crate) fn note(&mut self, text: &str) -> io::Result<()> {
        self.gap()?;
        for line in text.lines() {
            writeln!(self.out, "{}", self.style.dim(line))?;
        }
        Ok(())
    }

    fn gap(&mut self) -> io::Result<()> {
        if self.begun {
            writeln!(self.out)?;
        }
        self.begun = true;
        Ok(())
    }
}
