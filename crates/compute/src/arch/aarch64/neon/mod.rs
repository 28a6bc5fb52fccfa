//! NEON, as every aarch64 has it.
//!
//! `unpack_*` turn a row into groups of 32 float32 in eight registers, one for each four lanes of
//! the canonical dot product; the float kernels below are written once over them. The integer dot
//! product has a file of its own.

mod integers;
mod memory;
mod unpack_32;
mod unpack_float;
mod unpack_k;

use std::arch::aarch64::{float32x4_t, vdupq_n_f32, vfmaq_f32, vfmaq_n_f32};

pub(super) use integers::dot_q8;
use memory::{load_f32, store_f32};

use crate::Dtype;
use crate::blocks::{self, as_blocks};
use crate::kernels::{LANES, reduce};

/// 32 consecutive elements.
type Group = [float32x4_t; 8];

/// Calls `$each(group index, group)` for every whole group of 32 elements of a row. A macro, so
/// that the closure is compiled into each format's loop.
macro_rules! for_each_group {
    ($dtype:expr, $row:expr, $each:expr) => {
        match $dtype {
            Dtype::F32 => unpack_float::f32($row, $each),
            Dtype::F16 => unpack_float::f16($row, $each),
            Dtype::BF16 => unpack_float::bf16($row, $each),
            Dtype::Q4_0 => unpack_32::q4_0(as_blocks($row), $each),
            Dtype::Q4_1 => unpack_32::q4_1(as_blocks($row), $each),
            Dtype::Q5_0 => unpack_32::q5_0(as_blocks($row), $each),
            Dtype::Q5_1 => unpack_32::q5_1(as_blocks($row), $each),
            Dtype::Q8_0 => unpack_32::q8_0(as_blocks($row), $each),
            Dtype::Q2K => unpack_k::q2_k(as_blocks($row), $each),
            Dtype::Q3K => unpack_k::q3_k(as_blocks($row), $each),
            Dtype::Q4K => unpack_k::q4_k(as_blocks($row), $each),
            Dtype::Q5K => unpack_k::q5_k(as_blocks($row), $each),
            Dtype::Q6K => unpack_k::q6_k(as_blocks($row), $each),
        }
    };
}

/// The last `cols % 32` elements of a row, which only the float types can have, at the front of
/// an array, and their number.
fn tail(dtype: Dtype, row: &[u8], cols: usize) -> ([f32; LANES], usize) {
    let mut values = [0.0; LANES];
    let n = cols % LANES;
    if n > 0 {
        let bytes = &row[row.len() - n * dtype.block_bytes()..];
        blocks::dequantize_row(dtype, bytes, &mut values[..n]);
    }
    (values, n)
}

/// The canonical dot product.
#[target_feature(enable = "neon")]
pub(super) fn dot(dtype: Dtype, row: &[u8], x: &[f32]) -> f32 {
    let (groups, rest) = x.as_chunks::<LANES>();
    let mut acc = [vdupq_n_f32(0.0); 8];
    for_each_group!(dtype, row, |g: usize, group: Group| {
        for ((acc, values), x) in acc.iter_mut().zip(group).zip(groups[g].as_chunks().0) {
            *acc = vfmaq_f32(*acc, values, load_f32(x));
        }
    });
    let mut lanes = [0.0; LANES];
    for (lanes, acc) in lanes.as_chunks_mut().0.iter_mut().zip(acc) {
        store_f32(lanes, acc);
    }
    let (values, _) = tail(dtype, row, x.len());
    for ((lane, value), x) in lanes.iter_mut().zip(values).zip(rest) {
        *lane = value.mul_add(*x, *lane);
    }
    reduce(&lanes)
}

/// Dequantises a row.
#[target_feature(enable = "neon")]
pub(super) fn row(dtype: Dtype, row: &[u8], out: &mut [f32]) {
    let (values, n) = tail(dtype, row, out.len());
    let (groups, rest) = out.as_chunks_mut::<LANES>();
    for_each_group!(dtype, row, |g: usize, group: Group| {
        for (values, out) in group.into_iter().zip(groups[g].as_chunks_mut().0) {
            store_f32(out, values);
        }
    });
    rest.copy_from_slice(&values[..n]);
}

/// `y[i] = fma(a, row[i], y[i])`.
#[target_feature(enable = "neon")]
pub(super) fn axpy(dtype: Dtype, row: &[u8], a: f32, y: &mut [f32]) {
    let (values, _) = tail(dtype, row, y.len());
    let (groups, rest) = y.as_chunks_mut::<LANES>();
    for_each_group!(dtype, row, |g: usize, group: Group| {
        for (values, y) in group.into_iter().zip(groups[g].as_chunks_mut().0) {
            store_f32(y, vfmaq_n_f32(load_f32(y), values, a));
        }
    });
    for (y, value) in rest.iter_mut().zip(values) {
        *y = a.mul_add(value, *y);
    }
}
