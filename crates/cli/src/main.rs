//! The `larql` command: a language model's weights, opened as a database.
//!
//! This crate is glue. It reads flags, calls the libraries, and renders the rows that come back:
//! as tables for a person, as JSON with `--json`. It never touches a tensor itself.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod context;
mod environment;
mod error;
mod interrupt;
mod memory;
mod progress;
mod render;
mod session;
mod vector_file;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;
use crate::context::Context;
use crate::error::Failure;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let context = Context::new(cli.global);
    match commands::run(cli.command, &context) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has what it wanted (`| head`): that is no failure of ours.
        Err(Failure::BrokenPipe) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report(context.style_of_stderr());
            ExitCode::from(failure.exit_code())
        }
    }
}
