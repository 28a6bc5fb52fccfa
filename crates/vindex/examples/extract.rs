//! A model becomes a vindex, in the fewest lines:
//! `cargo run --release -p larql-vindex --example extract -- MODEL NAME.vindex [DTYPE]`.

use std::path::Path;

use larql_compute::Dtype;
use larql_vindex::{ExtractOptions, NoProgress, Vindex, extract};

#[allow(clippy::print_stdout, reason = "an example")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, model, target, rest @ ..] = &args[..] else {
        return Err("usage: extract MODEL NAME.vindex [DTYPE]".into());
    };
    let dtype =
        rest.first().map(|name| Dtype::from_name(name).ok_or("no such dtype")).transpose()?;
    let options = ExtractOptions { dtype, ..Default::default() };
    let report = extract(Path::new(model), Path::new(target), &options, &NoProgress)?;
    println!("{} tensors, weights {}, {:.2} s", report.n_tensors, report.weights, report.seconds);

    let started = std::time::Instant::now();
    let vindex = Vindex::open(target)?;
    println!("opened in {:?}: {} layers", started.elapsed(), vindex.config().n_layers);
    Ok(())
}
