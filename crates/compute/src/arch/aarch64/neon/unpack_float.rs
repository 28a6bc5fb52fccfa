//! F32, F16 and BF16 into groups of 32; a rest of fewer is left to the caller.

use std::arch::aarch64::{
    float32x4_t, vdupq_n_f32, vreinterpretq_f32_u8, vreinterpretq_f32_u32, vshll_n_u16,
};

use super::Group;
use super::memory::{load_u8, load_u16, widen_halves};

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn f32(row: &[u8], mut each: impl FnMut(usize, Group)) {
    for (g, bytes) in row.as_chunks::<128>().0.iter().enumerate() {
        let mut group = [vdupq_n_f32(0.0); 8];
        for (values, bytes) in group.iter_mut().zip(bytes.as_chunks().0) {
            *values = vreinterpretq_f32_u8(load_u8(bytes));
        }
        each(g, group);
    }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn f16(row: &[u8], mut each: impl FnMut(usize, Group)) {
    for (g, bytes) in row.as_chunks::<64>().0.iter().enumerate() {
        let mut group = [vdupq_n_f32(0.0); 8];
        for (values, bytes) in group.iter_mut().zip(bytes.as_chunks().0) {
            *values = widen_halves(load_u16(bytes));
        }
        each(g, group);
    }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn bf16(row: &[u8], mut each: impl FnMut(usize, Group)) {
    for (g, bytes) in row.as_chunks::<64>().0.iter().enumerate() {
        let mut group: [float32x4_t; 8] = [vdupq_n_f32(0.0); 8];
        for (values, bytes) in group.iter_mut().zip(bytes.as_chunks().0) {
            *values = vreinterpretq_f32_u32(vshll_n_u16::<16>(load_u16(bytes)));
        }
        each(g, group);
    }
}
