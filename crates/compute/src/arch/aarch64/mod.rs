//! Kernels of aarch64.

use super::Kernels;

/// The NEON kernels: every aarch64 has NEON.
pub(super) fn neon() -> Option<Kernels> {
    None
}
