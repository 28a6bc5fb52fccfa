//! The commands, one file each: flags in, one call into the libraries, rows out.

mod completions;
mod info;

use crate::args::Command;
use crate::context::Context;
use crate::error::{Diagnostic, Failure};

/// Runs a command.
pub(crate) fn run(command: Command, context: &Context) -> Result<(), Failure> {
    match command {
        Command::Info(args) => info::run(&args, context),
        Command::Completions(args) => completions::run(&args),
        _ => Err(Diagnostic::new("this command is not built in yet").into()),
    }
}
