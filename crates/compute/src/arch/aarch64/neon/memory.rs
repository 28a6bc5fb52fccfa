//! Loads, stores and the one instruction without a stable intrinsic: the only unsafe code of
//! these kernels.

use std::arch::aarch64::{
    float32x4_t, int8x16_t, uint8x16_t, uint16x4_t, vld1_u16, vld1q_f32, vld1q_s8, vld1q_u8,
    vst1q_f32,
};
use std::arch::asm;

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_f32(values: &[f32; 4]) -> float32x4_t {
    // SAFETY: the reference covers the 16 bytes read.
    unsafe { vld1q_f32(values.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn store_f32(values: &mut [f32; 4], register: float32x4_t) {
    // SAFETY: the reference covers the 16 bytes written.
    unsafe { vst1q_f32(values.as_mut_ptr(), register) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_u8(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: the reference covers the 16 bytes read.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_i8(values: &[i8; 16]) -> int8x16_t {
    // SAFETY: the reference covers the 16 bytes read.
    unsafe { vld1q_s8(values.as_ptr()) }
}

/// Four numbers of 16 bits from eight bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_u16(bytes: &[u8; 8]) -> uint16x4_t {
    // SAFETY: the reference covers the eight bytes read; the load needs no alignment.
    unsafe { vld1_u16(bytes.as_ptr().cast()) }
}

/// Four halves as float32, exactly.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn widen_halves(halves: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: one instruction of the base architecture, registers to register.
    unsafe {
        asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) halves, options(pure, nomem, nostack, preserves_flags));
    }
    wide
}
