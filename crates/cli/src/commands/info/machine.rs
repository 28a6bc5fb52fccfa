//! `larql info` without a path: version, kernels, threads.

use std::io;

use serde::Serialize;

use crate::context::Context;
use crate::error::Failure;
use crate::render::{Page, Report};

#[derive(Serialize)]
struct Machine {
    version: &'static str,
    /// Architecture and operating system of this build.
    platform: String,
}

pub(crate) fn run(context: &Context) -> Result<(), Failure> {
    let platform = format!("{} {}", std::env::consts::ARCH, std::env::consts::OS);
    context.emit(&Machine { version: env!("CARGO_PKG_VERSION"), platform })
}

impl Report for Machine {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.fields(&[("larql", self.version.to_owned()), ("platform", self.platform.clone())])
    }
}
