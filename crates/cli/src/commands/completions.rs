//! `larql completions SHELL`: prints the script that completes commands and flags.

use std::io::{self, Write};

use clap::CommandFactory;

use crate::args::{Cli, Completions};
use crate::error::Failure;

pub(crate) fn run(args: &Completions) -> Result<(), Failure> {
    // Written to memory first: the generator does not report a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "larql", &mut script);
    let mut out = io::stdout().lock();
    out.write_all(&script)?;
    Ok(out.flush()?)
}
