//! Writes the vindexes of `tests/format/vN`, which every later version must open:
//! `cargo run -p larql-vindex --example format_fixture -- tests/format/v1`. Run it once, when the
//! format's version goes up, and commit the result.

use std::path::Path;

use larql_compute::Cpu;
use larql_vindex::labels::{self, LabelOptions};
use larql_vindex::{ExtractOptions, NoProgress, Vindex, extract};

#[path = "../tests/support/mod.rs"]
mod support;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let target = std::env::args().nth(1).ok_or("usage: format_fixture DIRECTORY")?;
    let target = Path::new(&target);
    std::fs::create_dir_all(target)?;
    let dir = tempfile::tempdir()?;
    let model = dir.path().join("tiny.gguf");
    support::write_model(&model, larql_compute::Dtype::Q8_0);
    // A private copy: a checkout gives every file a new modification time.
    let whole = ExtractOptions { copy: true, feature_major_down: true, ..Default::default() };
    extract(&model, &target.join("tiny.vindex"), &whole, &NoProgress)?;
    let vindex = Vindex::open(target.join("tiny.vindex"))?;
    let cpu = Cpu::new(None, Some(1))?;
    let options = LabelOptions { top_tokens: 3, ..Default::default() };
    labels::compute(&vindex, &cpu, &options, &NoProgress)?;
    let split = ExtractOptions { split: true, ..Default::default() };
    extract(&model, &target.join("tiny-split.vindex"), &split, &NoProgress)?;
    Ok(())
}
