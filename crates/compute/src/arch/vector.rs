//! `kernels::vector`, compiled for each instruction set.

use super::Isa;
use crate::kernels::vector as generic;

/// The two vectors of a layer norm.
type WeightAndBias<'a> = [&'a [f32]; 2];

/// The float32 arithmetic between products, of one instruction set. Lengths are the callers' to
/// check; what does not fit is cut to the shorter slice.
#[derive(Clone, Copy)]
pub(crate) struct VectorKernels {
    rms_norm: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    layer_norm: unsafe fn(&[f32], WeightAndBias<'_>, f32, &mut [f32]),
    silu: unsafe fn(&mut [f32]),
    gelu_tanh: unsafe fn(&mut [f32]),
    multiply: unsafe fn(&mut [f32], &[f32]),
    softcap: unsafe fn(&mut [f32], f32),
    max: unsafe fn(&[f32]) -> f32,
    exp_sum: unsafe fn(&mut [f32], f32) -> f32,
    scores: unsafe fn(&[f32], &[f32], &mut [f32]),
    weighted_sum: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
}

/// A table whose functions are `kernels::vector`'s, inlined into functions with `$features`.
macro_rules! table {
    ($(#[$features:meta])?) => {{
        $(#[$features])?
        fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
            generic::rms_norm(x, weight, eps, out);
        }
        $(#[$features])?
        fn layer_norm(x: &[f32], weight_and_bias: WeightAndBias<'_>, eps: f32, out: &mut [f32]) {
            generic::layer_norm(x, weight_and_bias, eps, out);
        }
        $(#[$features])?
        fn silu(x: &mut [f32]) {
            generic::silu(x);
        }
        $(#[$features])?
        fn gelu_tanh(x: &mut [f32]) {
            generic::gelu_tanh(x);
        }
        $(#[$features])?
        fn multiply(y: &mut [f32], x: &[f32]) {
            generic::multiply(y, x);
        }
        $(#[$features])?
        fn softcap(x: &mut [f32], cap: f32) {
            generic::softcap(x, cap);
        }
        $(#[$features])?
        fn max(x: &[f32]) -> f32 {
            generic::max(x)
        }
        $(#[$features])?
        fn exp_sum(x: &mut [f32], shift: f32) -> f32 {
            generic::exp_sum(x, shift)
        }
        $(#[$features])?
        fn scores(q: &[f32], keys: &[f32], scores: &mut [f32]) {
            generic::scores(q, keys, scores);
        }
        $(#[$features])?
        fn weighted_sum(weights: &[f32], values: &[f32], factor: f32, sum: &mut [f32]) {
            generic::weighted_sum(weights, values, factor, sum);
        }
        VectorKernels {
            rms_norm,
            layer_norm,
            silu,
            gelu_tanh,
            multiply,
            softcap,
            max,
            exp_sum,
            scores,
            weighted_sum,
        }
    }};
}

const BASELINE: VectorKernels = table!();
#[cfg(target_arch = "x86_64")]
const AVX2: VectorKernels = table!(#[target_feature(enable = "avx2,fma")]);

impl VectorKernels {
    /// Those of an instruction set that this CPU is known to have (`Kernels` is the proof).
    pub(super) fn of(isa: Isa) -> Self {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx512 => AVX2,
            _ => BASELINE,
        }
    }

    /// `out = x / sqrt(mean(x^2) + eps) * weight`.
    pub(crate) fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        // SAFETY: `of` is called only for instruction sets that this CPU has.
        unsafe { (self.rms_norm)(x, weight, eps, out) }
    }

    /// `out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias`.
    pub(crate) fn layer_norm(&self, x: &[f32], wb: WeightAndBias<'_>, eps: f32, out: &mut [f32]) {
        // SAFETY: as in `rms_norm`.
        unsafe { (self.layer_norm)(x, wb, eps, out) }
    }

    /// `x * sigmoid(x)` in place.
    pub(crate) fn silu(&self, x: &mut [f32]) {
        // SAFETY: as in `rms_norm`.
        unsafe { (self.silu)(x) }
    }

    /// GELU by its tanh approximation, in place.
    pub(crate) fn gelu_tanh(&self, x: &mut [f32]) {
        // SAFETY: as in `rms_norm`.
        unsafe { (self.gelu_tanh)(x) }
    }

    /// `y *= x`.
    pub(crate) fn multiply(&self, y: &mut [f32], x: &[f32]) {
        // SAFETY: as in `rms_norm`.
        unsafe { (self.multiply)(y, x) }
    }

    /// `cap * tanh(x / cap)` in place.
    pub(crate) fn softcap(&self, x: &mut [f32], cap: f32) {
        // SAFETY: as in `rms_norm`.
        unsafe { (self.softcap)(x, cap) }
    }

    /// The largest element.
    pub(crate) fn max(&self, x: &[f32]) -> f32 {
        // SAFETY: as in `rms_norm`.
        unsafe { (self.max)(x) }
    }

    /// `x[i] = e^(x[i] - shift)`; the sum of them.
    pub(crate) fn exp_sum(&self, x: &mut [f32], shift: f32) -> f32 {
        // SAFETY: as in `rms_norm`.
        unsafe { (self.exp_sum)(x, shift) }
    }

    /// `scores[t] = q · keys[t]`.
    pub(crate) fn scores(&self, q: &[f32], keys: &[f32], scores: &mut [f32]) {
        // SAFETY: as in `rms_norm`.
        unsafe { (self.scores)(q, keys, scores) }
    }

    /// `sum = factor * sum + weights · values`.
    pub(crate) fn weighted_sum(
        &self,
        weights: &[f32],
        values: &[f32],
        factor: f32,
        sum: &mut [f32],
    ) {
        // SAFETY: as in `rms_norm`.
        unsafe { (self.weighted_sum)(weights, values, factor, sum) }
    }
}
