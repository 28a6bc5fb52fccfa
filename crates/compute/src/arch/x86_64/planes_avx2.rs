//! Estimates from the planes of an LM head: the scalar twin in the registers of AVX2.

use crate::head::{self, Estimates, PlanesQuery};

#[target_feature(enable = "avx2,fma")]
fn estimate_256(block: &[u8], query: &PlanesQuery, out: &mut Estimates) {
    head::estimate(block, query, out);
}

/// The kernel as a plain function.
pub(crate) fn estimate(block: &[u8], query: &PlanesQuery, out: &mut Estimates) {
    // SAFETY: `planes_kernel` hands this function out only where AVX2 and FMA were detected.
    unsafe { estimate_256(block, query, out) }
}
