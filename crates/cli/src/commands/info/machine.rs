//! `larql info` without a path: version, kernels, threads.

use std::io;

use larql_compute::Isa;
use serde::Serialize;

use crate::context::Context;
use crate::error::Failure;
use crate::render::{Page, Report};

#[derive(Serialize)]
struct Machine {
    version: &'static str,
    /// Architecture and operating system of this build.
    platform: String,
    /// The kernels in use.
    kernels: &'static str,
    /// The kernels that `--cpu` can choose here.
    kernels_available: Vec<&'static str>,
    threads: usize,
}

pub(crate) fn run(context: &Context) -> Result<(), Failure> {
    let cpu = context.cpu()?;
    context.emit(&Machine {
        version: env!("CARGO_PKG_VERSION"),
        platform: format!("{} {}", std::env::consts::ARCH, std::env::consts::OS),
        kernels: cpu.isa().name(),
        kernels_available: Isa::available().into_iter().map(Isa::name).collect(),
        threads: cpu.threads(),
    })
}

impl Report for Machine {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.fields(&[
            ("larql", self.version.to_owned()),
            ("platform", self.platform.clone()),
            ("kernels", self.kernels.to_owned()),
            ("available", self.kernels_available.join(", ")),
            ("threads", self.threads.to_string()),
        ])
    }
}
