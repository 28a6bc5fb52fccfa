//! What a line of a chat means: something said, or a command.

use std::path::PathBuf;

use crate::error::{Diagnostic, Failure};

/// The commands, for `/help`.
pub(super) const HELP: &str = "\
/system TEXT   tell the model how to behave (without TEXT: no longer)
/reset         forget the conversation, but not what /system said
/save FILE     write the conversation as JSON
/exit          end the chat (also Ctrl-D)
//TEXT         say something that begins with a slash";

/// A line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// White space.
    Nothing,
    Say(String),
    System(String),
    Reset,
    Save(PathBuf),
    Help,
    Exit,
}

impl Line {
    /// Reads a line. Only a slash at its very beginning makes it a command.
    pub(super) fn read(line: &str) -> Result<Line, Failure> {
        if line.trim().is_empty() {
            return Ok(Line::Nothing);
        }
        let Some(command) = line.strip_prefix('/') else { return Ok(Line::Say(line.to_owned())) };
        if command.starts_with('/') {
            return Ok(Line::Say(command.to_owned()));
        }
        let command = command.trim_end();
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        let wrong = |what: String| Err(Diagnostic::new(what).help("/help lists them").into());
        match (name, rest) {
            ("system", text) => Ok(Line::System(text.to_owned())),
            ("save", "") => wrong("/save needs the name of a file".to_owned()),
            ("save", file) => Ok(Line::Save(PathBuf::from(file))),
            ("reset", "") => Ok(Line::Reset),
            ("help", "") => Ok(Line::Help),
            ("exit", "") => Ok(Line::Exit),
            ("reset" | "help" | "exit", rest) => wrong(format!("/{name} takes no {rest:?}")),
            _ => wrong(format!("there is no command /{name}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_makes_a_command_and_two_make_a_slash() {
        let read = |line: &str| Line::read(line).ok();
        let say = |text: &str| Some(Line::Say(text.to_owned()));
        assert_eq!(read(" \t"), Some(Line::Nothing));
        assert_eq!(read("a /reset"), say("a /reset"));
        assert_eq!(read(" /reset"), say(" /reset"));
        assert_eq!(read("//etc/hosts "), say("/etc/hosts "));
        assert_eq!(read("/system  Be brief. "), Some(Line::System("Be brief.".to_owned())));
        assert_eq!(read("/system"), Some(Line::System(String::new())));
        assert_eq!(read("/save a b.json"), Some(Line::Save(PathBuf::from("a b.json"))));
        assert_eq!(read("/exit "), Some(Line::Exit));
        for wrong in ["/", "/save", "/exits", "/reset now", "/Help"] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }
}
