//! The two normalisations that a query or a direction passes through.

use larql_checkpoint::ModelConfig;
use larql_checkpoint::config::NormKind;

/// Euclidean length, in float64: no value of float32 overflows or underflows there.
pub(crate) fn length(x: &[f32]) -> f64 {
    // Eight sums, so that additions need not wait for each other.
    let mut lanes = [0.0_f64; 8];
    let (chunks, rest) = x.as_chunks::<8>();
    for chunk in chunks {
        for (lane, &v) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(v) * f64::from(v);
        }
    }
    let rest: f64 = rest.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
    (lanes.iter().sum::<f64>() + rest).sqrt()
}

/// The same, rounded once.
pub(super) fn l2(x: &[f32]) -> f32 {
    length(x) as f32
}

/// What the model's RMS norm or LayerNorm makes of `x` with `weight`; statistics in f64.
pub(super) fn normalise(config: &ModelConfig, x: &mut [f32], weight: &[f32], bias: Option<&[f32]>) {
    let n = x.len() as f64;
    let mean = match config.norm.kind {
        NormKind::Rms => 0.0,
        NormKind::Layer => x.iter().map(|&v| f64::from(v)).sum::<f64>() / n,
    };
    let square = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
    let scale = 1.0 / (square + f64::from(config.norm.eps)).sqrt();
    for (i, v) in x.iter_mut().enumerate() {
        let shift = bias.map_or(0.0, |b| b[i]);
        *v = ((f64::from(*v) - mean) * scale) as f32 * weight[i] + shift;
    }
}
