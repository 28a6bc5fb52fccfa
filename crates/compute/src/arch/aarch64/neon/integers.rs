//! The integer dot product.
//!
//! Pairs of products fit in 16 bits: activations stay within ±127 and quants within -128..128, so
//! a pair stays within 2 * 128 * 127 = 32,512.

use std::arch::aarch64::{
    float32x4_t, int32x4_t, vcvtq_f32_s32, vdupq_n_f32, vfmaq_n_f32, vget_low_s8, vmull_high_s8,
    vmull_s8, vmulq_n_s32, vpaddlq_s16, vpaddq_s16,
};

use super::memory::{load_i8, store_f32};
use super::unpack_32::{Quants, quants_q4_0, quants_q4_1, quants_q5_0, quants_q5_1, quants_q8_0};
use super::unpack_k::{quants_q2_k, quants_q3_k, quants_q4_k, quants_q5_k, quants_q6_k};
use crate::Dtype;
use crate::activation::{BLOCK, Q8Vector};
use crate::blocks::as_blocks;
use crate::kernels::integers::{Integers, SubScales};
use crate::kernels::{Q8_LANES, reduce_q8};

/// The integer dot products of `y.len()` rows of a block format, one after the other in `rows`.
#[target_feature(enable = "neon")]
pub(in super::super) fn dots_q8(dtype: Dtype, rows: &[u8], x: Q8Vector<'_>, y: &mut [f32]) {
    let row_bytes = rows.len() / y.len().max(1);
    for (row, y) in rows.chunks_exact(row_bytes.max(1)).zip(y) {
        *y = dot_q8(dtype, row, x);
    }
}

/// The integer dot product of a row of a block format.
#[target_feature(enable = "neon")]
fn dot_q8(dtype: Dtype, row: &[u8], x: Q8Vector<'_>) -> f32 {
    match dtype {
        Dtype::F32 | Dtype::F16 | Dtype::BF16 => panic!("{dtype} has no integers"),
        Dtype::Q4_0 => dot(as_blocks(row), x, |block, _| quants_q4_0(block)),
        Dtype::Q4_1 => dot(as_blocks(row), x, |block, _| quants_q4_1(block)),
        Dtype::Q5_0 => dot(as_blocks(row), x, |block, _| quants_q5_0(block)),
        Dtype::Q5_1 => dot(as_blocks(row), x, |block, _| quants_q5_1(block)),
        Dtype::Q8_0 => dot(as_blocks(row), x, |block, _| quants_q8_0(block)),
        Dtype::Q2K => dot(as_blocks(row), x, |block, s| quants_q2_k(block, s)),
        Dtype::Q3K => dot(as_blocks(row), x, |block, s| quants_q3_k(block, s)),
        Dtype::Q4K => dot(as_blocks(row), x, |block, s| quants_q4_k(block, s)),
        Dtype::Q5K => dot(as_blocks(row), x, |block, s| quants_q5_k(block, s)),
        Dtype::Q6K => dot(as_blocks(row), x, |block, s| quants_q6_k(block, s)),
    }
}

/// The sums of four neighbouring products each.
#[inline]
#[target_feature(enable = "neon")]
fn sums_of_four(q: Quants, x: Quants) -> int32x4_t {
    let low = vmull_s8(vget_low_s8(q), vget_low_s8(x));
    vpaddlq_s16(vpaddq_s16(low, vmull_high_s8(q, x)))
}

/// As the scalar twin does it, `quants` being the quants of a sub-block.
#[inline(never)]
#[target_feature(enable = "neon")]
fn dot<B: Integers>(
    blocks: &[B],
    x: Q8Vector<'_>,
    quants: impl Fn(&B, usize) -> [Quants; 2],
) -> f32 {
    let mut acc: [[float32x4_t; 2]; 2] = [[vdupq_n_f32(0.0); 2]; 2];
    let mut minimums = [0.0; 8];
    let sub_blocks = B::LEN / BLOCK;
    for (i, block) in blocks.iter().enumerate() {
        let (d, dmin) = block.factors();
        let SubScales { scales, mins } = block.sub_scales();
        for s in 0..sub_blocks {
            let b = i * sub_blocks + s;
            let (scale, halves) = (x.scales[b], x.quants[b].as_chunks::<16>().0);
            for (h, q) in quants(block, s).into_iter().enumerate() {
                let sums = vmulq_n_s32(sums_of_four(q, load_i8(&halves[h])), scales[2 * s + h]);
                let lanes = &mut acc[b % 2][h];
                *lanes = vfmaq_n_f32(*lanes, vcvtq_f32_s32(sums), d * scale);
            }
            let [first, last] = x.half_sums[b].map(i32::from);
            let sum = mins[2 * s] * first + mins[2 * s + 1] * last;
            let lane: &mut f32 = &mut minimums[b % 8];
            *lane = (dmin * scale).mul_add(sum as f32, *lane);
        }
    }
    let mut products = [0.0; Q8_LANES];
    for (lanes, acc) in products.as_chunks_mut().0.iter_mut().zip(acc.as_flattened()) {
        store_f32(lanes, *acc);
    }
    reduce_q8(&products, &minimums)
}
