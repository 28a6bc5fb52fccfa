//! How a stream is written to: whether it is a terminal, and whether it may have colour.

use std::io::IsTerminal;

use crate::args::ColorChoice;
use crate::environment;

/// Properties of one output stream, decided once at start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    /// Whether escape sequences are welcome.
    pub(crate) color: bool,
    /// Whether a person looks at it: tables are then ruled and fitted to the width.
    pub(crate) terminal: bool,
}

impl Style {
    /// The style of a stream under `--color`.
    pub(crate) fn of(stream: &impl IsTerminal, choice: ColorChoice) -> Style {
        let terminal = stream.is_terminal();
        let color = match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => terminal && !environment::no_color(),
        };
        Style { color, terminal }
    }

    /// Bold, where colour is on.
    pub(crate) fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    /// Faint, where colour is on.
    pub(crate) fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    /// Bold red, where colour is on.
    pub(crate) fn red(self, text: &str) -> String {
        self.wrap("1;31", text)
    }

    /// Cyan, where colour is on.
    pub(crate) fn cyan(self, text: &str) -> String {
        self.wrap("36", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
