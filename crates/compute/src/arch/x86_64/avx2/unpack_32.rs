//! The formats of 32 elements, each block one group.
//!
//! Products of a half and a few bits are exact in float32, so `d * q + m` by one fused operation
//! has the single rounding that the two separate ones have.

use std::arch::x86_64::{
    __m256, __m256i, _mm256_and_si256, _mm256_cmpeq_epi8, _mm256_cvtepi32_ps, _mm256_fmsub_ps,
    _mm256_mul_ps, _mm256_or_si256, _mm256_permute4x64_epi64, _mm256_set1_epi8, _mm256_set1_epi32,
    _mm256_set1_epi64x, _mm256_set1_ps, _mm256_setr_epi8, _mm256_setr_epi64x, _mm256_shuffle_epi8,
    _mm256_srli_epi16, _mm256_sub_epi8,
};

use super::Group;
use super::memory::{half, load_halves_twice, load_twice};
use crate::blocks::{BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0, as_blocks};

/// 2^-24: undoes the shift of [`signed`].
pub(super) const UNSHIFT: f32 = 1.0 / 16_777_216.0;

/// `d * q - m` for 16 unsigned bytes, which stand in both halves of `q`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unsigned(q: __m256i, d: __m256, m: __m256) -> [__m256; 2] {
    #[rustfmt::skip]
    let low = _mm256_setr_epi8(
        0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3, -1, -1, -1,
        4, -1, -1, -1, 5, -1, -1, -1, 6, -1, -1, -1, 7, -1, -1, -1,
    );
    #[rustfmt::skip]
    let high = _mm256_setr_epi8(
        8, -1, -1, -1, 9, -1, -1, -1, 10, -1, -1, -1, 11, -1, -1, -1,
        12, -1, -1, -1, 13, -1, -1, -1, 14, -1, -1, -1, 15, -1, -1, -1,
    );
    let low = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(q, low));
    let high = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(q, high));
    [_mm256_fmsub_ps(d, low, m), _mm256_fmsub_ps(d, high, m)]
}

/// `d * q` for 16 signed bytes, which stand in both halves of `q`; `d` comes multiplied by
/// [`UNSHIFT`]. Each byte becomes the top byte of an integer, which needs no sign extension; the
/// power of two changes no rounding.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn signed(q: __m256i, d: __m256) -> [__m256; 2] {
    #[rustfmt::skip]
    let low = _mm256_setr_epi8(
        -1, -1, -1, 0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3,
        -1, -1, -1, 4, -1, -1, -1, 5, -1, -1, -1, 6, -1, -1, -1, 7,
    );
    #[rustfmt::skip]
    let high = _mm256_setr_epi8(
        -1, -1, -1, 8, -1, -1, -1, 9, -1, -1, -1, 10, -1, -1, -1, 11,
        -1, -1, -1, 12, -1, -1, -1, 13, -1, -1, -1, 14, -1, -1, -1, 15,
    );
    let low = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(q, low));
    let high = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(q, high));
    [_mm256_mul_ps(d, low), _mm256_mul_ps(d, high)]
}

/// The low and the high four bits of each byte.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn nibbles(bytes: __m256i) -> [__m256i; 2] {
    let mask = _mm256_set1_epi8(15);
    [_mm256_and_si256(bytes, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask)]
}

/// Bit `i` of `bits` as 16 in byte `i`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn fifth_bits(bits: [u8; 4]) -> __m256i {
    const ONES: i64 = 0x0101_0101_0101_0101;
    let all = _mm256_set1_epi32(i32::from_le_bytes(bits));
    let spread = _mm256_shuffle_epi8(all, _mm256_setr_epi64x(0, ONES, 2 * ONES, 3 * ONES));
    let own = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    let set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, own), own);
    _mm256_and_si256(set, _mm256_set1_epi8(16))
}

/// The five-bit quants of a block: elements 0..16 and 16..32, each in both halves.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn five_bits(low: &[u8; 16], high: [u8; 4]) -> [__m256i; 2] {
    let ([a, b], fifth) = (nibbles(load_twice(low)), fifth_bits(high));
    let fifth_a = _mm256_permute4x64_epi64::<0b01_00_01_00>(fifth);
    let fifth_b = _mm256_permute4x64_epi64::<0b11_10_11_10>(fifth);
    [_mm256_or_si256(a, fifth_a), _mm256_or_si256(b, fifth_b)]
}

/// Joins the two halves of a group.
#[inline]
pub(super) fn join([a, b]: [__m256; 2], [c, d]: [__m256; 2]) -> Group {
    [a, b, c, d]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_0(row: &[u8], mut each: impl FnMut(usize, Group)) {
    let offset = _mm256_set1_epi8(8);
    for (g, block) in as_blocks::<BlockQ4_0>(row).iter().enumerate() {
        let d = _mm256_set1_ps(half(block.d) * UNSHIFT);
        let [a, b] = nibbles(load_twice(&block.qs));
        let (a, b) = (_mm256_sub_epi8(a, offset), _mm256_sub_epi8(b, offset));
        each(g, join(signed(a, d), signed(b, d)));
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_1(row: &[u8], mut each: impl FnMut(usize, Group)) {
    for (g, block) in as_blocks::<BlockQ4_1>(row).iter().enumerate() {
        let (d, m) = (_mm256_set1_ps(half(block.d)), _mm256_set1_ps(-half(block.m)));
        let [a, b] = nibbles(load_twice(&block.qs));
        each(g, join(unsigned(a, d, m), unsigned(b, d, m)));
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q5_0(row: &[u8], mut each: impl FnMut(usize, Group)) {
    let offset = _mm256_set1_epi8(16);
    for (g, block) in as_blocks::<BlockQ5_0>(row).iter().enumerate() {
        let d = _mm256_set1_ps(half(block.d) * UNSHIFT);
        let [a, b] = five_bits(&block.qs, block.qh);
        let (a, b) = (_mm256_sub_epi8(a, offset), _mm256_sub_epi8(b, offset));
        each(g, join(signed(a, d), signed(b, d)));
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q5_1(row: &[u8], mut each: impl FnMut(usize, Group)) {
    for (g, block) in as_blocks::<BlockQ5_1>(row).iter().enumerate() {
        let (d, m) = (_mm256_set1_ps(half(block.d)), _mm256_set1_ps(-half(block.m)));
        let [a, b] = five_bits(&block.qs, block.qh);
        each(g, join(unsigned(a, d, m), unsigned(b, d, m)));
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q8_0(row: &[u8], mut each: impl FnMut(usize, Group)) {
    for (g, block) in as_blocks::<BlockQ8_0>(row).iter().enumerate() {
        let d = _mm256_set1_ps(half(block.d) * UNSHIFT);
        let [a, b] = load_halves_twice(&block.qs);
        each(g, join(signed(a, d), signed(b, d)));
    }
}
