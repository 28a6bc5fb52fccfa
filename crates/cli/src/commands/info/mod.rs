//! `larql info [PATH]`: what a model file holds, or what this machine offers.

mod machine;

use crate::args::Info;
use crate::context::Context;
use crate::error::{Diagnostic, Failure};

pub(crate) fn run(args: &Info, context: &Context) -> Result<(), Failure> {
    match &args.path {
        None => machine::run(context),
        Some(path) => Err(Diagnostic::new("cannot look at models yet").at_path(path).into()),
    }
}
