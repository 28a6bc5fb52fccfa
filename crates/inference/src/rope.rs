//! Rotary positions (Su et al. 2021, arXiv:2104.09864) and the ways in which their frequencies are
//! stretched for longer contexts.

use std::f64::consts::PI;

use larql_checkpoint::config::{ModelConfig, Rope, RopeLayout, RopeScaling};
use larql_checkpoint::{Role, TensorId};
use larql_vindex::Vindex;

use crate::InferenceError;

/// The frequencies of a model, for a context of some length.
#[derive(Debug)]
pub(crate) struct Rotary {
    layout: RopeLayout,
    /// Elements of a head that are rotated.
    dim: usize,
    /// For layers that see all positions, and for those with a window.
    frequencies: [Frequencies; 2],
}

/// Radians a position for each pair, and what sine and cosine are multiplied by.
#[derive(Debug, Clone)]
struct Frequencies {
    radians: Vec<f32>,
    amplitude: f32,
}

/// Cosines and sines of consecutive positions, `[n, dim / 2]`, for both kinds of layer.
#[derive(Debug, Default)]
pub(crate) struct Angles([Vec<(f32, f32)>; 2]);

impl Angles {
    /// Bytes of memory that they hold.
    pub(crate) fn memory(&self) -> usize {
        self.0.iter().map(|angles| angles.capacity() * size_of::<(f32, f32)>()).sum()
    }
}

impl Rotary {
    /// The frequencies of the model of `vindex`; `None` where it does not rotate.
    ///
    /// # Errors
    /// A tensor of factors that is missing.
    pub(crate) fn new(vindex: &Vindex, context: usize) -> Result<Option<Self>, InferenceError> {
        let Some(rope) = &vindex.config().rope else { return Ok(None) };
        let all = stretched(rope, vindex, context)?;
        let windowed = rope.theta_local.map(|theta| Frequencies {
            radians: plain(theta, rope.dim).map(|f| f as f32).collect(),
            amplitude: 1.0,
        });
        let windowed = windowed.unwrap_or_else(|| all.clone());
        let (layout, dim) = (rope.layout, rope.dim);
        Ok(Some(Self { layout, dim, frequencies: [all, windowed] }))
    }

    /// The angles of positions `first..first + n`.
    pub(crate) fn angles(&self, first: usize, n: usize, out: &mut Angles) {
        for (frequencies, out) in self.frequencies.iter().zip(&mut out.0) {
            out.clear();
            for position in first..first + n {
                out.extend(frequencies.radians.iter().map(|&radians| {
                    // Rounded to float32 as the models' own code does, then exact.
                    let (sin, cos) = f64::from(position as f32 * radians).sin_cos();
                    let amplitude = f64::from(frequencies.amplitude);
                    ((cos * amplitude) as f32, (sin * amplitude) as f32)
                }));
            }
        }
    }

    /// Rotates elements `offset..offset + dim` of every head of `x`, `[n, heads, width]`. The
    /// angles are those of a feed, of which `x` leaves out the first `skipped` positions.
    pub(crate) fn rotate(
        &self,
        angles: &Angles,
        windowed: bool,
        skipped: usize,
        x: &mut [f32],
        (heads, width): (usize, usize),
        offset: usize,
    ) {
        let half = self.dim / 2;
        let angles = angles.0[usize::from(windowed)].chunks_exact(half.max(1)).skip(skipped);
        for (x, angles) in x.chunks_exact_mut((heads * width).max(1)).zip(angles) {
            for head in x.chunks_exact_mut(width) {
                let head = &mut head[offset..offset + self.dim];
                for (i, &(cos, sin)) in angles.iter().enumerate() {
                    let (a, b) = match self.layout {
                        RopeLayout::Half => (i, i + half),
                        RopeLayout::Interleaved => (2 * i, 2 * i + 1),
                    };
                    let (x, y) = (head[a], head[b]);
                    head[a] = x * cos - y * sin;
                    head[b] = x * sin + y * cos;
                }
            }
        }
    }
}

/// Where the rotated elements of a head begin.
pub(crate) fn offset(config: &ModelConfig) -> usize {
    config.mla.as_ref().map_or(0, |mla| mla.qk_nope)
}

/// `theta^(-2i / dim)` for each pair.
fn plain(theta: f32, dim: usize) -> impl Iterator<Item = f64> {
    (0..dim / 2).map(move |i| f64::from(theta).powf(-2.0 * i as f64 / dim as f64))
}

fn stretched(rope: &Rope, vindex: &Vindex, context: usize) -> Result<Frequencies, InferenceError> {
    let plain: Vec<f64> = plain(rope.theta, rope.dim).collect();
    let divided = |role: Role| -> Result<Vec<f32>, InferenceError> {
        let factors = vindex.vector(TensorId::global(role))?;
        Ok(plain.iter().zip(factors).map(|(f, factor)| (f / f64::from(factor)) as f32).collect())
    };
    let (radians, amplitude) = match rope.scaling {
        RopeScaling::None => (plain.iter().map(|&f| f as f32).collect(), 1.0),
        RopeScaling::Linear { factor } => {
            (plain.iter().map(|f| (f / f64::from(factor)) as f32).collect(), 1.0)
        }
        RopeScaling::Factors => (divided(Role::RopeFreqs)?, 1.0),
        RopeScaling::LongRope { original_context, attention_factor } => {
            let long = context > original_context;
            let role = if long { Role::RopeFactorsLong } else { Role::RopeFactorsShort };
            (divided(role)?, attention_factor)
        }
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor } => {
            let range = (beta_fast, beta_slow);
            (yarn(rope, f64::from(factor), original_context, range), attention_factor)
        }
    };
    Ok(Frequencies { radians, amplitude })
}

/// `YaRN` (Peng et al. 2023, arXiv:2309.00071): frequencies that turn more than `beta_fast` times
/// over the original context stay, those that turn less than `beta_slow` times are divided by
/// `factor`, and between the two pairs there is a straight ramp.
fn yarn(rope: &Rope, factor: f64, original_context: usize, betas: (f32, f32)) -> Vec<f32> {
    let dim = rope.dim as f64;
    let pair = |turns: f32| {
        let wavelength = original_context as f64 / (f64::from(turns) * 2.0 * PI);
        dim * wavelength.ln() / (2.0 * f64::from(rope.theta).ln())
    };
    let low = pair(betas.0).floor().max(0.0);
    let high = pair(betas.1).ceil().min(dim - 1.0);
    let width = if high > low { high - low } else { 1e-3 };
    let ramped = plain(rope.theta, rope.dim).enumerate().map(|(i, f)| {
        let stretch = ((i as f64 - low) / width).clamp(0.0, 1.0);
        (f / factor * stretch + f * (1.0 - stretch)) as f32
    });
    ramped.collect()
}
