//! Kernels of aarch64.

pub(super) mod gemm16;
mod neon;

use super::{Isa, Kernels};

/// The NEON kernels: every aarch64 has NEON.
pub(super) fn neon() -> Option<Kernels> {
    Some(Kernels {
        isa: Isa::Neon,
        dot: neon::dot,
        dots_q8: neon::dots_q8,
        quantize: neon::quantize,
        row: neon::row,
        axpy: neon::axpy,
        sum: crate::bandwidth::sum,
    })
}
