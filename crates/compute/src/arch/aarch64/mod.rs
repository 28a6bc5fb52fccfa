//! Kernels of aarch64.

pub(super) mod gemm16;

use super::Kernels;

/// The NEON kernels: every aarch64 has NEON.
pub(super) fn neon() -> Option<Kernels> {
    None
}
