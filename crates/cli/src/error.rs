//! What a command can fail with, and how that is told: what, where, what to do.
//!
//! ```text
//! error: layer 99 is outside the model, which has layers 0 to 17
//!   --> gemma-3-270m.vindex
//!    = help: larql stats gemma-3-270m.vindex
//! ```

use std::io;
use std::path::Path;

use larql_checkpoint::CheckpointError;
use larql_compute::ComputeError;
use larql_inference::InferenceError;
use larql_vindex::VindexError;

use crate::render::Style;

/// Why a command stops.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The reader of our output closed it.
    BrokenPipe,
    /// Ctrl-C; what is left behind.
    Cancelled(String),
    /// Anything else.
    Told(Box<Diagnostic>),
}

/// An error message in parts.
#[derive(Debug)]
pub(crate) struct Diagnostic {
    what: String,
    place: Option<String>,
    notes: Vec<String>,
    help: Option<String>,
}

impl Diagnostic {
    /// A message that says what is wrong.
    pub(crate) fn new(what: impl Into<String>) -> Diagnostic {
        Diagnostic { what: what.into(), place: None, notes: Vec::new(), help: None }
    }

    /// The file, offset or argument that it is about.
    pub(crate) fn at(mut self, place: impl Into<String>) -> Diagnostic {
        self.place = Some(place.into());
        self
    }

    /// The file that it is about.
    pub(crate) fn at_path(self, path: &Path) -> Diagnostic {
        self.at(path.display().to_string())
    }

    /// A further fact.
    pub(crate) fn note(mut self, note: impl Into<String>) -> Diagnostic {
        self.notes.push(note.into());
        self
    }

    /// What to do.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help = Some(help.into());
        self
    }

    /// A library's error with the chain of its causes. Causes that the message repeats already
    /// are left out.
    pub(crate) fn from_error(error: &dyn std::error::Error) -> Diagnostic {
        let mut diagnostic = Diagnostic::new(error.to_string());
        let mut told = diagnostic.what.clone();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !told.contains(&text) {
                diagnostic = diagnostic.note(format!("because: {text}"));
                told = text;
            }
            source = cause.source();
        }
        diagnostic
    }

    fn render(&self, style: Style) -> String {
        let mut text =
            format!("{}{}\n", style.red("error"), style.bold(&format!(": {}", self.what)));
        if let Some(place) = &self.place {
            text += &format!("  {} {place}\n", style.cyan("-->"));
        }
        for note in &self.notes {
            text += &format!("   {} {note}\n", style.cyan("="));
        }
        if let Some(help) = &self.help {
            text += &format!("   {} help: {help}\n", style.cyan("="));
        }
        text
    }
}

impl Failure {
    /// 1 for a failure, 130 for Ctrl-C (128 + SIGINT). Wrong usage is 2, and clap's.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::BrokenPipe => 0,
            Failure::Cancelled(_) => 130,
            Failure::Told(_) => 1,
        }
    }

    /// Prints the failure to stderr.
    pub(crate) fn report(&self, style: Style) {
        use std::io::Write;
        let text = match self {
            Failure::BrokenPipe => return,
            Failure::Cancelled(left) => format!("{}: {left}\n", style.bold("interrupted")),
            Failure::Told(diagnostic) => diagnostic.render(style),
        };
        // Where even stderr is gone, the exit code has to do.
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }
}

impl From<Diagnostic> for Failure {
    fn from(diagnostic: Diagnostic) -> Failure {
        Failure::Told(Box::new(diagnostic))
    }
}

/// The libraries' messages end with the remedy, set off by a semicolon; it is told as help.
impl From<VindexError> for Failure {
    fn from(error: VindexError) -> Failure {
        match error {
            VindexError::Cancelled { left } => Failure::Cancelled(left),
            VindexError::Checkpoint(error) => error.into(),
            VindexError::Compute(error) => error.into(),
            error => remedied(&error),
        }
    }
}

impl From<InferenceError> for Failure {
    fn from(error: InferenceError) -> Failure {
        match error {
            InferenceError::Vindex(error) => error.into(),
            InferenceError::Checkpoint(error) => error.into(),
            InferenceError::Compute(error) => error.into(),
            error => remedied(&error),
        }
    }
}

/// A message whose end, after a semicolon, is the remedy.
fn remedied(error: &dyn std::error::Error) -> Failure {
    let mut told = Diagnostic::from_error(error);
    if let Some((what, help)) = told.what.clone().split_once("; ") {
        told.what = what.to_owned();
        told.help = Some(help.to_owned());
    }
    told.into()
}

impl From<CheckpointError> for Failure {
    fn from(error: CheckpointError) -> Failure {
        let told = Diagnostic::from_error(&error);
        match error.help() {
            Some(help) => told.help(help).into(),
            None => told.into(),
        }
    }
}

impl From<ComputeError> for Failure {
    fn from(error: ComputeError) -> Failure {
        Diagnostic::from_error(&error).into()
    }
}

/// Only output is written with bare `io::Result`; files carry their path in their own errors.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::BrokenPipe;
        }
        Diagnostic::new("the output cannot be written").note(error.to_string()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Style = Style { color: false, terminal: false };

    #[test]
    fn a_message_says_what_where_and_what_to_do() {
        let diagnostic = Diagnostic::new("not a vindex")
            .at("a/b")
            .note("it has no index.json")
            .help("larql extract-index MODEL -o a/b");
        let expected = "error: not a vindex\n  --> a/b\n   = it has no index.json\n   \
                        = help: larql extract-index MODEL -o a/b\n";
        assert_eq!(diagnostic.render(PLAIN), expected);
    }

    #[test]
    fn a_closed_pipe_is_quiet() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(matches!(failure, Failure::BrokenPipe));
        assert_eq!(failure.exit_code(), 0);
        assert_eq!(Failure::Cancelled(String::new()).exit_code(), 130);
    }
}
