//! The formats of 32 elements: their quants, and each block as one group.
//!
//! Products of a half and a few bits are exact in float32, so `d * q - m` by one fused operation
//! has the single rounding that the two separate ones have.

use std::arch::aarch64::{
    float32x4_t, int8x16_t, uint8x16_t, vandq_u8, vcombine_u8, vcvtq_f32_s32, vdup_n_u8,
    vdupq_n_f32, vdupq_n_u8, vfmaq_f32, vget_high_s8, vget_high_s16, vget_low_s8, vget_low_s16,
    vmovl_s8, vmovl_s16, vmulq_f32, vorrq_u8, vreinterpretq_s8_u8, vshrq_n_u8, vsubq_u8, vtstq_u8,
};

use super::Group;
use super::memory::{load_i8, load_u8};
use crate::blocks::{BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0, as_blocks};

/// 16 quants.
pub(super) type Quants = int8x16_t;

/// Sixteen integers as float32.
#[inline]
#[target_feature(enable = "neon")]
fn floats(q: Quants) -> [float32x4_t; 4] {
    let (low, high) = (vmovl_s8(vget_low_s8(q)), vmovl_s8(vget_high_s8(q)));
    [
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
        vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
        vcvtq_f32_s32(vmovl_s16(vget_high_s16(high))),
    ]
}

/// `d * q`.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn scaled(q: Quants, d: f32) -> [float32x4_t; 4] {
    let (d, [a, b, c, e]) = (vdupq_n_f32(d), floats(q));
    [vmulq_f32(d, a), vmulq_f32(d, b), vmulq_f32(d, c), vmulq_f32(d, e)]
}

/// `d * q - min`.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn affine(q: Quants, d: f32, min: f32) -> [float32x4_t; 4] {
    let (d, m, [a, b, c, e]) = (vdupq_n_f32(d), vdupq_n_f32(-min), floats(q));
    [vfmaq_f32(m, d, a), vfmaq_f32(m, d, b), vfmaq_f32(m, d, c), vfmaq_f32(m, d, e)]
}

/// Joins the two halves of a group.
#[inline]
pub(super) fn join([a, b, c, d]: [float32x4_t; 4], [e, f, g, h]: [float32x4_t; 4]) -> Group {
    [a, b, c, d, e, f, g, h]
}

/// The low and the high four bits of each byte.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn nibbles(bytes: uint8x16_t) -> [uint8x16_t; 2] {
    [vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes)]
}

/// `quants - offset`.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn less(quants: uint8x16_t, offset: u8) -> Quants {
    vreinterpretq_s8_u8(vsubq_u8(quants, vdupq_n_u8(offset)))
}

/// Adds the fifth bits, 16 of them in two bytes.
#[inline]
#[target_feature(enable = "neon")]
fn with_fifth(four: uint8x16_t, bits: [u8; 2]) -> uint8x16_t {
    let own = load_u8(&[1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128]);
    let spread = vcombine_u8(vdup_n_u8(bits[0]), vdup_n_u8(bits[1]));
    vorrq_u8(four, vandq_u8(vtstq_u8(spread, own), vdupq_n_u8(16)))
}

#[inline]
#[target_feature(enable = "neon")]
fn five_bits(low: &[u8; 16], [a, b, c, d]: [u8; 4], offset: u8) -> [Quants; 2] {
    let [first, last] = nibbles(load_u8(low));
    [less(with_fifth(first, [a, b]), offset), less(with_fifth(last, [c, d]), offset)]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn quants_q4_0(block: &BlockQ4_0) -> [Quants; 2] {
    let [first, last] = nibbles(load_u8(&block.qs));
    [less(first, 8), less(last, 8)]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn quants_q4_1(block: &BlockQ4_1) -> [Quants; 2] {
    let [first, last] = nibbles(load_u8(&block.qs));
    [vreinterpretq_s8_u8(first), vreinterpretq_s8_u8(last)]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn quants_q5_0(block: &BlockQ5_0) -> [Quants; 2] {
    five_bits(&block.qs, block.qh, 16)
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn quants_q5_1(block: &BlockQ5_1) -> [Quants; 2] {
    five_bits(&block.qs, block.qh, 0)
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn quants_q8_0(block: &BlockQ8_0) -> [Quants; 2] {
    let halves = block.qs.as_chunks::<16>().0;
    [load_i8(&halves[0]), load_i8(&halves[1])]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q4_0(row: &[u8], mut each: impl FnMut(usize, Group)) {
    for (g, block) in as_blocks::<BlockQ4_0>(row).iter().enumerate() {
        let (d, [a, b]) = (block.d.to_f32(), quants_q4_0(block));
        each(g, join(scaled(a, d), scaled(b, d)));
    }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q4_1(row: &[u8], mut each: impl FnMut(usize, Group)) {
    for (g, block) in as_blocks::<BlockQ4_1>(row).iter().enumerate() {
        let (d, m, [a, b]) = (block.d.to_f32(), -block.m.to_f32(), quants_q4_1(block));
        each(g, join(affine(a, d, m), affine(b, d, m)));
    }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q5_0(row: &[u8], mut each: impl FnMut(usize, Group)) {
    for (g, block) in as_blocks::<BlockQ5_0>(row).iter().enumerate() {
        let (d, [a, b]) = (block.d.to_f32(), quants_q5_0(block));
        each(g, join(scaled(a, d), scaled(b, d)));
    }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q5_1(row: &[u8], mut each: impl FnMut(usize, Group)) {
    for (g, block) in as_blocks::<BlockQ5_1>(row).iter().enumerate() {
        let (d, m, [a, b]) = (block.d.to_f32(), -block.m.to_f32(), quants_q5_1(block));
        each(g, join(affine(a, d, m), affine(b, d, m)));
    }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q8_0(row: &[u8], mut each: impl FnMut(usize, Group)) {
    for (g, block) in as_blocks::<BlockQ8_0>(row).iter().enumerate() {
        let (d, [a, b]) = (block.d.to_f32(), quants_q8_0(block));
        each(g, join(scaled(a, d), scaled(b, d)));
    }
}
