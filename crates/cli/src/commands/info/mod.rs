//! `larql info [PATH]`: what a model file holds, or what this machine offers.

mod machine;
mod model;

use crate::args::Info;
use crate::context::Context;
use crate::error::Failure;

pub(crate) fn run(args: &Info, context: &Context) -> Result<(), Failure> {
    match &args.path {
        None => machine::run(context),
        Some(path) => model::run(path, args.tensors, context),
    }
}
