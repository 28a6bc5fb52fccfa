//! Where the lines of a chat come from.

use std::io::{self, BufRead, IsTerminal, Read};

use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};

use crate::context::Context;
use crate::error::{Diagnostic, Failure};

const PROMPT: &str = "> ";
/// Bytes of a line: far above every context, and an endless one ends here.
const MAX_LINE: u64 = 64 << 20;

/// The source of lines.
pub(super) enum Input {
    /// A person, who edits lines.
    Terminal(Box<DefaultEditor>),
    /// A file or a pipe; the number of lines read.
    Lines(usize),
}

/// What came.
pub(super) enum Next {
    Line(String),
    /// Ctrl-C while nothing is being said.
    Interrupt,
    End,
}

impl Input {
    /// A person's input where both streams are terminals and the output is for people.
    pub(super) fn new(context: &Context) -> Result<Input, Failure> {
        let person = io::stdin().is_terminal() && io::stdout().is_terminal() && !context.json();
        if !person {
            return Ok(Input::Lines(0));
        }
        let config = Config::builder().auto_add_history(true).build();
        let editor = DefaultEditor::with_config(config).map_err(|error| unreadable(&error))?;
        Ok(Input::Terminal(Box::new(editor)))
    }

    /// Whether a person types.
    pub(super) fn is_person(&self) -> bool {
        matches!(self, Input::Terminal(_))
    }

    /// The next line, without its end.
    pub(super) fn next(&mut self) -> Result<Next, Failure> {
        match self {
            Input::Terminal(editor) => loop {
                return match editor.readline(PROMPT) {
                    Ok(line) => Ok(Next::Line(line)),
                    Err(ReadlineError::Eof) => Ok(Next::End),
                    Err(ReadlineError::Interrupted) => Ok(Next::Interrupt),
                    // The window has another size.
                    Err(ReadlineError::Signal(_)) => continue,
                    Err(error) => Err(unreadable(&error)),
                };
            },
            Input::Lines(number) => {
                *number += 1;
                let told = |what: String| Diagnostic::new(what).at(format!("stdin, line {number}"));
                let mut line = Vec::new();
                let mut stdin = io::stdin().lock().take(MAX_LINE);
                let read = stdin.read_until(b'\n', &mut line);
                read.map_err(|error| told(format!("it cannot be read: {error}")))?;
                if line.len() as u64 == MAX_LINE {
                    let what = format!("more than {MAX_LINE} bytes are too many for a line");
                    return Err(told(what).into());
                }
                if line.is_empty() {
                    return Ok(Next::End);
                }
                let line = String::from_utf8(line)
                    .map_err(|error| told(format!("it is not UTF-8: {}", error.utf8_error())))?;
                let line = line.strip_suffix('\n').unwrap_or(&line);
                Ok(Next::Line(line.strip_suffix('\r').unwrap_or(line).to_owned()))
            }
        }
    }
}

fn unreadable(error: &ReadlineError) -> Failure {
    Diagnostic::new(format!("the terminal cannot be read: {error}")).into()
}
