//! Loads and stores: the only unsafe code of these kernels. Arrays in, registers out; unaligned
//! throughout, for rows begin anywhere.

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, __m256, __m256i, _mm_castsi128_ps, _mm_cvtsi32_si128, _mm_cvtss_f32, _mm_loadl_epi64,
    _mm_loadu_si128, _mm256_broadcastsi128_si256, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_storeu_ps,
};

use crate::blocks::Half;

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_f32(values: &[f32; 8]) -> __m256 {
    // SAFETY: the reference covers the 32 bytes read.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store_f32(values: &mut [f32; 8], register: __m256) {
    // SAFETY: the reference covers the 32 bytes written.
    unsafe { _mm256_storeu_ps(values.as_mut_ptr(), register) }
}

/// Eight bytes into the low half of a register.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_8(bytes: &[u8; 8]) -> __m128i {
    // SAFETY: the reference covers the eight bytes read.
    unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the reference covers the 16 bytes read.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// 16 bytes into both halves of a register.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_twice(bytes: &[u8; 16]) -> __m256i {
    _mm256_broadcastsi128_si256(load_16(bytes))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_32(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the reference covers the 32 bytes read.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// The first and the last 16 of 32 bytes, each into both halves of a register.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_halves_twice(values: &[i8; 32]) -> [__m256i; 2] {
    // SAFETY: the reference covers the two times 16 bytes read.
    let (a, b) = unsafe {
        let start = values.as_ptr().cast::<__m128i>();
        (_mm_loadu_si128(start), _mm_loadu_si128(start.add(1)))
    };
    [_mm256_broadcastsi128_si256(a), _mm256_broadcastsi128_si256(b)]
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_i8(values: &[i8; 32]) -> __m256i {
    // SAFETY: the reference covers the 32 bytes read.
    unsafe { _mm256_loadu_si256(values.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_i16(values: &[i16; 16]) -> __m256i {
    // SAFETY: the reference covers the 32 bytes read.
    unsafe { _mm256_loadu_si256(values.as_ptr().cast()) }
}

/// A half as a float32, exactly. In assembly, because the compiler sees that one lane of the
/// intrinsic's four is wanted and merges the half into a register of its choice: an accumulator,
/// and each block waits for the one before (measured: three times slower).
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn half(value: Half) -> f32 {
    let mut register = _mm_cvtsi32_si128(i32::from(value.to_bits()));
    // SAFETY: one instruction of F16C, register to register.
    unsafe {
        asm!(
            "vcvtph2ps {0}, {0}",
            inout(xmm_reg) register,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    _mm_cvtss_f32(_mm_castsi128_ps(register))
}
