//! The formats of 256 elements, each block eight groups.
//!
//! As in `unpack_32`, products of scale, sub-scale and quant are exact in float32 (at most 11 + 7
//! + 5 bits), so the fused `scale * q - min` rounds once, as the separate operations do.

use std::arch::x86_64::{
    __m256i, _mm_cvtsi32_si128, _mm256_and_si256, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps,
    _mm256_cvtepu8_epi32, _mm256_mul_ps, _mm256_or_si256, _mm256_set1_epi8, _mm256_set1_ps,
    _mm256_slli_epi16, _mm256_srl_epi16, _mm256_srli_epi16, _mm256_sub_epi8,
};

use super::Group;
use super::integers::six_bits;
use super::memory::{half, load_8, load_twice, store_f32};
use super::unpack_32::{UNSHIFT, join, nibbles, signed, unsigned};
use crate::blocks::{BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, as_blocks};

/// `d` times each of eight unsigned bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn times_u8(d: f32, factors: &[u8; 8]) -> [f32; 8] {
    let wide = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_8(factors)));
    let mut out = [0.0; 8];
    store_f32(&mut out, _mm256_mul_ps(_mm256_set1_ps(d), wide));
    out
}

/// `d` times each of sixteen signed bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn times_i8(d: f32, factors: &[i8; 16]) -> [f32; 16] {
    let mut out = [0.0; 16];
    for (out, factors) in out.as_chunks_mut().0.iter_mut().zip(factors.as_chunks::<8>().0) {
        let wide =
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8(&factors.map(i8::cast_unsigned))));
        store_f32(out, _mm256_mul_ps(_mm256_set1_ps(d), wide));
    }
    out
}

/// The two-bit fields that start at bit `shift` of each byte.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn two_bits(bytes: __m256i, shift: usize) -> __m256i {
    let shifted = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(shift as i32));
    _mm256_and_si256(shifted, _mm256_set1_epi8(3))
}

/// Bit `bit` of each byte.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn one_bit(bytes: __m256i, bit: usize) -> __m256i {
    let shifted = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(bit as i32));
    _mm256_and_si256(shifted, _mm256_set1_epi8(1))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q2_k(row: &[u8], mut each: impl FnMut(usize, Group)) {
    for (i, block) in as_blocks::<BlockQ2K>(row).iter().enumerate() {
        let (d, dmin) = (half(block.d), half(block.dmin));
        let parts = block.qs.as_chunks::<16>().0;
        for s in 0..8 {
            let sixteen = |h: usize| {
                let packed = block.scales[2 * s + h];
                let scale = _mm256_set1_ps(d * f32::from(packed & 15));
                let min = _mm256_set1_ps(dmin * f32::from(packed >> 4));
                let q = two_bits(load_twice(&parts[2 * (s / 4) + h]), 2 * (s % 4));
                unsigned(q, scale, min)
            };
            each(8 * i + s, join(sixteen(0), sixteen(1)));
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q3_k(row: &[u8], mut each: impl FnMut(usize, Group)) {
    let offset = _mm256_set1_epi8(4);
    for (i, block) in as_blocks::<BlockQ3K>(row).iter().enumerate() {
        let scales = times_i8(half(block.d) * UNSHIFT, &block.scales());
        let (parts, high) = (block.qs.as_chunks::<16>().0, block.hmask.as_chunks::<16>().0);
        for s in 0..8 {
            let sixteen = |h: usize| {
                let low = two_bits(load_twice(&parts[2 * (s / 4) + h]), 2 * (s % 4));
                let third = _mm256_slli_epi16::<2>(one_bit(load_twice(&high[h]), s));
                let q = _mm256_sub_epi8(_mm256_or_si256(low, third), offset);
                signed(q, _mm256_set1_ps(scales[2 * s + h]))
            };
            each(8 * i + s, join(sixteen(0), sixteen(1)));
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_k(row: &[u8], mut each: impl FnMut(usize, Group)) {
    for (i, block) in as_blocks::<BlockQ4K>(row).iter().enumerate() {
        let (scales, mins) = block.scales.unpack();
        let (scales, mins) = (times_u8(half(block.d), &scales), times_u8(half(block.dmin), &mins));
        // 32 bytes hold two groups: one in the low, one in the high halves.
        for (pair, bytes) in block.qs.as_chunks::<32>().0.iter().enumerate() {
            let parts = bytes.as_chunks::<16>().0;
            let [a_even, a_odd] = nibbles(load_twice(&parts[0]));
            let [b_even, b_odd] = nibbles(load_twice(&parts[1]));
            let s = 2 * pair;
            let (scale, min) = (_mm256_set1_ps(scales[s]), _mm256_set1_ps(mins[s]));
            each(8 * i + s, join(unsigned(a_even, scale, min), unsigned(b_even, scale, min)));
            let (scale, min) = (_mm256_set1_ps(scales[s + 1]), _mm256_set1_ps(mins[s + 1]));
            each(8 * i + s + 1, join(unsigned(a_odd, scale, min), unsigned(b_odd, scale, min)));
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q5_k(row: &[u8], mut each: impl FnMut(usize, Group)) {
    for (i, block) in as_blocks::<BlockQ5K>(row).iter().enumerate() {
        let (scales, mins) = block.scales.unpack();
        let (scales, mins) = (times_u8(half(block.d), &scales), times_u8(half(block.dmin), &mins));
        let high = block.qh.as_chunks::<16>().0;
        let high = [load_twice(&high[0]), load_twice(&high[1])];
        for (pair, bytes) in block.qs.as_chunks::<32>().0.iter().enumerate() {
            let parts = bytes.as_chunks::<16>().0;
            let [a_even, a_odd] = nibbles(load_twice(&parts[0]));
            let [b_even, b_odd] = nibbles(load_twice(&parts[1]));
            for (s, a, b) in [(2 * pair, a_even, b_even), (2 * pair + 1, a_odd, b_odd)] {
                let (scale, min) = (_mm256_set1_ps(scales[s]), _mm256_set1_ps(mins[s]));
                let fifth = |h: usize| _mm256_slli_epi16::<4>(one_bit(high[h], s));
                let a = unsigned(_mm256_or_si256(a, fifth(0)), scale, min);
                let b = unsigned(_mm256_or_si256(b, fifth(1)), scale, min);
                each(8 * i + s, join(a, b));
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q6_k(row: &[u8], mut each: impl FnMut(usize, Group)) {
    for (i, block) in as_blocks::<BlockQ6K>(row).iter().enumerate() {
        let scales = times_i8(half(block.d) * UNSHIFT, &block.scales);
        let halves = block.ql.as_chunks::<64>().0.iter().zip(block.qh.as_chunks::<32>().0);
        for (n, (low, high)) in halves.enumerate() {
            let (low, high) = (low.as_chunks::<16>().0, high.as_chunks::<16>().0);
            // `a` for elements 0..16 of each group, `b` for 16..32.
            let [low_0a, low_2a] = nibbles(load_twice(&low[0]));
            let [low_0b, low_2b] = nibbles(load_twice(&low[1]));
            let [low_1a, low_3a] = nibbles(load_twice(&low[2]));
            let [low_1b, low_3b] = nibbles(load_twice(&low[3]));
            let (high_a, high_b) = (load_twice(&high[0]), load_twice(&high[1]));
            let mut part = |p: usize, low: [__m256i; 2], high: [__m256i; 2]| {
                let offset = _mm256_set1_epi8(32);
                let scale = |h: usize| _mm256_set1_ps(scales[8 * n + 2 * p + h]);
                let a = _mm256_sub_epi8(six_bits(low[0], high[0]), offset);
                let b = _mm256_sub_epi8(six_bits(low[1], high[1]), offset);
                each(8 * i + 4 * n + p, join(signed(a, scale(0)), signed(b, scale(1))));
            };
            let up_4 = [_mm256_slli_epi16::<4>(high_a), _mm256_slli_epi16::<4>(high_b)];
            let up_2 = [_mm256_slli_epi16::<2>(high_a), _mm256_slli_epi16::<2>(high_b)];
            let down_2 = [_mm256_srli_epi16::<2>(high_a), _mm256_srli_epi16::<2>(high_b)];
            part(0, [low_0a, low_0b], up_4);
            part(1, [low_1a, low_1b], up_2);
            part(2, [low_2a, low_2b], [high_a, high_b]);
            part(3, [low_3a, low_3b], down_2);
        }
    }
}
