//! What every command needs: the global flags, and the two output streams.

use std::io::{self, BufWriter, Write};
use std::num::NonZeroUsize;

use larql_compute::{Cpu, Isa};
use serde::Serialize;

use crate::args::Global;
use crate::error::{Diagnostic, Failure};
use crate::render::{self, Report, Style};

/// The global flags, resolved once.
pub(crate) struct Context {
    global: Global,
    stdout: Style,
    stderr: Style,
}

impl Context {
    pub(crate) fn new(global: Global) -> Context {
        let stdout = Style::of(&io::stdout(), global.color);
        let stderr = Style::of(&io::stderr(), global.color);
        Context { global, stdout, stderr }
    }

    /// How errors may be written.
    pub(crate) fn style_of_stderr(&self) -> Style {
        self.stderr
    }

    /// Prints what a command found.
    pub(crate) fn emit(&self, report: &impl Report) -> Result<(), Failure> {
        let mut out = BufWriter::new(io::stdout().lock());
        Ok(render::emit(report, &mut out, self.global.json, self.stdout)?)
    }

    /// Prints one JSON object on a line of its own: of several, one after the other.
    pub(crate) fn emit_line(&self, row: &impl Serialize) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, row).map_err(io::Error::from)?;
        writeln!(out)?;
        Ok(out.flush()?)
    }

    /// A remark on stderr that `--quiet` silences.
    pub(crate) fn remark(&self, text: &str) {
        if !self.global.quiet {
            // A lost remark is not worth failing for.
            let _ = writeln!(io::stderr().lock(), "{}", self.stderr.dim(text));
        }
    }

    /// Whether results are printed as JSON.
    pub(crate) fn json(&self) -> bool {
        self.global.json
    }

    /// Whether progress may be drawn: on a terminal, unless `--quiet`.
    pub(crate) fn shows_progress(&self) -> bool {
        self.stderr.terminal && !self.global.quiet
    }

    /// `--threads`, where it was given.
    pub(crate) fn threads(&self) -> Option<usize> {
        self.global.threads.map(NonZeroUsize::get)
    }

    /// The CPU as `--cpu` and `--threads` ask for it.
    pub(crate) fn cpu(&self) -> Result<Cpu, Failure> {
        let isa = match self.global.cpu.as_deref() {
            None => None,
            Some(name) => Some(Isa::from_name(name).ok_or_else(|| {
                let known: Vec<_> = Isa::ALL.iter().map(|isa| isa.name()).collect();
                Diagnostic::new(format!("there are no kernels named {name:?}"))
                    .at("--cpu")
                    .help(format!("larql has {}", known.join(", ")))
            })?),
        };
        Ok(Cpu::new(isa, self.threads())?)
    }
}
