//! Kernels of x86-64.

mod avx2;
pub(super) mod gemm16;
mod planes_avx2;
mod planes_avx512;

use super::{Isa, Kernels};
use crate::head::PlanesKernel;

/// The kernels of an LM head's planes that this CPU runs, best last. AVX2 has been detected.
pub(super) fn planes_kernels() -> Vec<PlanesKernel> {
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vnni");
    let mut kernels: Vec<PlanesKernel> = vec![planes_avx2::estimate];
    if avx512 {
        kernels.push(planes_avx512::estimate);
    }
    kernels
}

/// The AVX2 kernels, where this CPU has AVX2, FMA and F16C.
pub(super) fn avx2() -> Option<Kernels> {
    let present = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    present.then_some(Kernels {
        isa: Isa::Avx2,
        dot: avx2::dot,
        dot_q8: avx2::dot_q8,
        quantize: avx2::quantize,
        row: avx2::row,
        axpy: avx2::axpy,
        sum: avx2::sum,
    })
}
