//! F32, F16 and BF16 into groups of 32; a rest of fewer is left to the caller.

use std::arch::x86_64::{
    _mm256_castsi256_ps, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_loadu_ps, _mm256_slli_epi32,
};

use super::Group;
use super::memory::load_16;

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn f32(row: &[u8], mut each: impl FnMut(usize, Group)) {
    for (g, bytes) in row.as_chunks::<128>().0.iter().enumerate() {
        // SAFETY: `l < 4` eights of float32 lie within the 128 bytes; alignment is not needed.
        let load = |l: usize| unsafe { _mm256_loadu_ps(bytes.as_ptr().cast::<f32>().add(8 * l)) };
        each(g, [load(0), load(1), load(2), load(3)]);
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn f16(row: &[u8], mut each: impl FnMut(usize, Group)) {
    for (g, bytes) in row.as_chunks::<64>().0.iter().enumerate() {
        let eights = bytes.as_chunks::<16>().0;
        let load = |l: usize| _mm256_cvtph_ps(load_16(&eights[l]));
        each(g, [load(0), load(1), load(2), load(3)]);
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn bf16(row: &[u8], mut each: impl FnMut(usize, Group)) {
    for (g, bytes) in row.as_chunks::<64>().0.iter().enumerate() {
        let eights = bytes.as_chunks::<16>().0;
        let load = |l: usize| {
            let wide = _mm256_cvtepu16_epi32(load_16(&eights[l]));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        };
        each(g, [load(0), load(1), load(2), load(3)]);
    }
}
