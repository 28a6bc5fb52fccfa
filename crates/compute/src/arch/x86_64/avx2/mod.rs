//! AVX2 + FMA + F16C.
//!
//! `unpack_*` turn a row into groups of 32 float32 in four registers, one register for each eight
//! lanes of the canonical dot product; the float kernels below are written once over them. The
//! integer dot product has a file of its own.

mod integers;
mod memory;
mod planes;
mod unpack_32;
mod unpack_float;
mod unpack_k;

use std::arch::x86_64::{__m256, _mm256_fmadd_ps, _mm256_set1_ps, _mm256_setzero_ps};

pub(super) use integers::dots_q8;
use memory::{load_f32, store_f32};
pub(super) use planes::estimate;

use crate::Dtype;
use crate::activation::ToQuantize;
use crate::blocks;
use crate::kernels::{LANES, reduce, scalar};

/// 32 consecutive elements.
type Group = [__m256; 4];

/// Expands to `$kernel!(unpack function, $args)` for the format of `$dtype`.
macro_rules! for_dtype {
    ($dtype:expr, $kernel:ident, $($args:tt)*) => {
        match $dtype {
            Dtype::F32 => $kernel!(unpack_float::f32, $($args)*),
            Dtype::F16 => $kernel!(unpack_float::f16, $($args)*),
            Dtype::BF16 => $kernel!(unpack_float::bf16, $($args)*),
            Dtype::Q4_0 => $kernel!(unpack_32::q4_0, $($args)*),
            Dtype::Q4_1 => $kernel!(unpack_32::q4_1, $($args)*),
            Dtype::Q5_0 => $kernel!(unpack_32::q5_0, $($args)*),
            Dtype::Q5_1 => $kernel!(unpack_32::q5_1, $($args)*),
            Dtype::Q8_0 => $kernel!(unpack_32::q8_0, $($args)*),
            Dtype::Q2K => $kernel!(unpack_k::q2_k, $($args)*),
            Dtype::Q3K => $kernel!(unpack_k::q3_k, $($args)*),
            Dtype::Q4K => $kernel!(unpack_k::q4_k, $($args)*),
            Dtype::Q5K => $kernel!(unpack_k::q5_k, $($args)*),
            Dtype::Q6K => $kernel!(unpack_k::q6_k, $($args)*),
        }
    };
}

/// Calls `$each(group index, group)` for every whole group of 32 elements of a row. A macro, so
/// that the closure is compiled into each format's loop.
macro_rules! for_each_group {
    ($unpack:path, $row:expr, $each:expr) => {
        $unpack($row, $each)
    };
}

/// The lanes of the canonical dot product over the whole groups of a row. A function for each
/// format, never inlined: in one function for all, the compiler keeps an accumulator on the stack,
/// which doubles the time.
macro_rules! dot_groups {
    ($unpack:path, $row:expr, $x:expr) => {{
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn lanes(row: &[u8], x: &[[f32; LANES]]) -> [f32; LANES] {
            let mut acc = [_mm256_setzero_ps(); 4];
            $unpack(row, |g: usize, group: Group| {
                for ((acc, values), x) in acc.iter_mut().zip(group).zip(x[g].as_chunks().0) {
                    *acc = _mm256_fmadd_ps(values, load_f32(x), *acc);
                }
            });
            let mut lanes = [0.0; LANES];
            for (lanes, acc) in lanes.as_chunks_mut().0.iter_mut().zip(acc) {
                store_f32(lanes, acc);
            }
            lanes
        }
        lanes($row, $x)
    }};
}

/// [`crate::bandwidth::sum`] in the registers of this instruction set.
#[target_feature(enable = "avx2")]
pub(super) fn sum(words: &[u64]) -> u64 {
    crate::bandwidth::sum(words)
}

/// [`scalar::quantize`] in the registers of this instruction set.
#[target_feature(enable = "avx2,fma")]
pub(super) fn quantize(vector: &mut ToQuantize<'_>) {
    scalar::quantize(vector);
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
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot(dtype: Dtype, row: &[u8], x: &[f32]) -> f32 {
    let (groups, rest) = x.as_chunks::<LANES>();
    let mut lanes = for_dtype!(dtype, dot_groups, row, groups);
    let (values, _) = tail(dtype, row, x.len());
    for ((lane, value), x) in lanes.iter_mut().zip(values).zip(rest) {
        *lane = value.mul_add(*x, *lane);
    }
    reduce(&lanes)
}

/// Dequantises a row.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn row(dtype: Dtype, row: &[u8], out: &mut [f32]) {
    let (values, n) = tail(dtype, row, out.len());
    let (groups, rest) = out.as_chunks_mut::<LANES>();
    for_dtype!(dtype, for_each_group, row, |g: usize, group: Group| {
        for (values, out) in group.into_iter().zip(groups[g].as_chunks_mut().0) {
            store_f32(out, values);
        }
    });
    rest.copy_from_slice(&values[..n]);
}

/// `y[i] = fma(a, row[i], y[i])`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn axpy(dtype: Dtype, row: &[u8], a: f32, y: &mut [f32]) {
    let (values, _) = tail(dtype, row, y.len());
    let (groups, rest) = y.as_chunks_mut::<LANES>();
    let factor = _mm256_set1_ps(a);
    for_dtype!(dtype, for_each_group, row, |g: usize, group: Group| {
        for (values, y) in group.into_iter().zip(groups[g].as_chunks_mut().0) {
            store_f32(y, _mm256_fmadd_ps(factor, values, load_f32(y)));
        }
    });
    for (y, value) in rest.iter_mut().zip(values) {
        *y = a.mul_add(value, *y);
    }
}
