//! Quantises float32 values: `quantize q4_k < values.f32 > blocks`, speed on standard error.
//!
//! `scripts/compare_quantizers.py` runs it against llama.cpp's quantisers.

use std::io::{Read, Write};
use std::time::Instant;

use larql_compute::{Dtype, dequantize_row, quantize_row};

#[allow(clippy::print_stderr, reason = "a program, not a library")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).ok_or("usage: quantize DTYPE < values.f32 > blocks")?;
    let dtype = Dtype::from_name(&name).ok_or_else(|| format!("no dtype is called {name}"))?;
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes)?;
    let mut values = vec![0.0; bytes.len() / 4];
    dequantize_row(Dtype::F32, &bytes, &mut values);

    let mut blocks = vec![0; dtype.row_bytes(values.len())?];
    let started = Instant::now();
    quantize_row(dtype, &values, &mut blocks)?;
    let seconds = started.elapsed().as_secs_f64();
    let rate = values.len() as f64 / seconds / 1e6;
    eprintln!("{dtype}: {} elements, {rate:.1} million a second", values.len());
    std::io::stdout().write_all(&blocks)?;
    Ok(())
}
