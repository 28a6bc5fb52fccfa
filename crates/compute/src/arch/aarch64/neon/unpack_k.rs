//! The formats of 256 elements: their quants, and each block as eight groups.
//!
//! As in `unpack_32`, products of scale, sub-scale and quant are exact in float32 (at most 11, 7
//! and 5 bits), so the fused `scale * q - min` rounds once, as the separate operations do.

use std::arch::aarch64::{
    uint8x16_t, vandq_u8, vdupq_n_s8, vdupq_n_u8, vorrq_u8, vshlq_n_u8, vshlq_u8,
};

use super::Group;
use super::memory::load_u8;
use super::unpack_32::{Quants, affine, join, less, nibbles, scaled};
use crate::blocks::{BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, as_blocks};
use crate::kernels::integers::{Integers, SubScales};

/// `bytes >> shift`, masked.
#[inline]
#[target_feature(enable = "neon")]
fn field(bytes: uint8x16_t, shift: usize, mask: u8) -> uint8x16_t {
    vandq_u8(vshlq_u8(bytes, vdupq_n_s8(-(shift as i8))), vdupq_n_u8(mask))
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn quants_q2_k(block: &BlockQ2K, s: usize) -> [Quants; 2] {
    let parts = block.qs.as_chunks::<16>().0;
    let two = |h: usize| field(load_u8(&parts[2 * (s / 4) + h]), 2 * (s % 4), 3);
    [less(two(0), 0), less(two(1), 0)]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn quants_q3_k(block: &BlockQ3K, s: usize) -> [Quants; 2] {
    let (parts, high) = (block.qs.as_chunks::<16>().0, block.hmask.as_chunks::<16>().0);
    let three = |h: usize| {
        let two = field(load_u8(&parts[2 * (s / 4) + h]), 2 * (s % 4), 3);
        vorrq_u8(two, vshlq_n_u8::<2>(field(load_u8(&high[h]), s, 1)))
    };
    [less(three(0), 4), less(three(1), 4)]
}

/// The four-bit fields of sub-block `s`, placed as in Q4_K and Q5_K.
#[inline]
#[target_feature(enable = "neon")]
fn four_bits(qs: &[u8; 128], s: usize, h: usize) -> uint8x16_t {
    nibbles(load_u8(&qs.as_chunks::<16>().0[2 * (s / 2) + h]))[s % 2]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn quants_q4_k(block: &BlockQ4K, s: usize) -> [Quants; 2] {
    [less(four_bits(&block.qs, s, 0), 0), less(four_bits(&block.qs, s, 1), 0)]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn quants_q5_k(block: &BlockQ5K, s: usize) -> [Quants; 2] {
    let high = block.qh.as_chunks::<16>().0;
    let five = |h: usize| {
        let fifth = vshlq_n_u8::<4>(field(load_u8(&high[h]), s, 1));
        vorrq_u8(four_bits(&block.qs, s, h), fifth)
    };
    [less(five(0), 0), less(five(1), 0)]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn quants_q6_k(block: &BlockQ6K, s: usize) -> [Quants; 2] {
    let (low, high) = (block.ql.as_chunks::<16>().0, block.qh.as_chunks::<16>().0);
    let (half, part) = (s / 4, s % 4);
    let six = |h: usize| {
        let four = nibbles(load_u8(&low[4 * half + 2 * (part % 2) + h]))[part / 2];
        let two = field(load_u8(&high[2 * half + h]), 2 * part, 3);
        vorrq_u8(four, vshlq_n_u8::<4>(two))
    };
    [less(six(0), 32), less(six(1), 32)]
}

/// A format without minimums: every group of every block.
macro_rules! scaled_groups {
    ($name:ident, $block:ty, $quants:ident) => {
        #[inline]
        #[target_feature(enable = "neon")]
        pub(super) fn $name(row: &[u8], mut each: impl FnMut(usize, Group)) {
            for (i, block) in as_blocks::<$block>(row).iter().enumerate() {
                let (d, _) = block.factors();
                let scales = block.sub_scales().scales.map(|scale| d * scale as f32);
                for s in 0..8 {
                    let [a, b] = $quants(block, s);
                    let group = join(scaled(a, scales[2 * s]), scaled(b, scales[2 * s + 1]));
                    each(8 * i + s, group);
                }
            }
        }
    };
}

/// A format with minimums: every group of every block.
macro_rules! affine_groups {
    ($name:ident, $block:ty, $quants:ident) => {
        #[inline]
        #[target_feature(enable = "neon")]
        pub(super) fn $name(row: &[u8], mut each: impl FnMut(usize, Group)) {
            for (i, block) in as_blocks::<$block>(row).iter().enumerate() {
                let (d, dmin) = block.factors();
                let SubScales { scales, mins } = block.sub_scales();
                let scales = scales.map(|scale| d * scale as f32);
                let mins = mins.map(|min| dmin * min as f32);
                for s in 0..8 {
                    let [a, b] = $quants(block, s);
                    let (first, last) = (2 * s, 2 * s + 1);
                    let a = affine(a, scales[first], mins[first]);
                    each(8 * i + s, join(a, affine(b, scales[last], mins[last])));
                }
            }
        }
    };
}

affine_groups!(q2_k, BlockQ2K, quants_q2_k);
scaled_groups!(q3_k, BlockQ3K, quants_q3_k);
affine_groups!(q4_k, BlockQ4K, quants_q4_k);
affine_groups!(q5_k, BlockQ5K, quants_q5_k);
scaled_groups!(q6_k, BlockQ6K, quants_q6_k);
