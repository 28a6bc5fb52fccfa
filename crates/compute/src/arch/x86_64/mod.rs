//! Kernels of x86-64.

mod avx2;
mod avx512;
pub(super) mod gemm16;

use super::{Isa, Kernels};
use crate::head::PlanesKernel;
use crate::kernels::panel::PanelKernels;

/// The kernel of an LM head's planes that AVX2 has; it must have been detected.
pub(super) const PLANES_AVX2: PlanesKernel = avx2::estimate;

/// The kernel of an LM head's planes that AVX-512 has; it must have been detected.
pub(super) const PLANES_AVX512: PlanesKernel = avx512::estimate;

/// The product of panels that AVX-512 has; it must have been detected.
pub(super) const PANEL_AVX512: PanelKernels = avx512::PANEL;

/// The AVX2 kernels, where this CPU has AVX2, FMA and F16C.
pub(super) fn avx2() -> Option<Kernels> {
    let present = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    present.then_some(Kernels {
        isa: Isa::Avx2,
        dot: avx2::dot,
        dots_q8: avx2::dots_q8,
        quantize: avx2::quantize,
        row: avx2::row,
        axpy: avx2::axpy,
        sum: avx2::sum,
    })
}

/// The AVX-512 kernels, where this CPU has what they need.
pub(super) fn avx512() -> Option<Kernels> {
    let present = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("avx512vbmi");
    let avx2 = avx2().filter(|_| present)?;
    Some(Kernels { isa: Isa::Avx512, dots_q8: avx512::dots_q8, ..avx2 })
}
