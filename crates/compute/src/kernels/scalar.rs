//! The scalar twin: every kernel in plain Rust, written to be read. The other instruction sets
//! are tested against it bit for bit.

use super::integers::{Integers, SubScales};
use super::{LANES, Q8_LANES, reduce, reduce_q8};
use crate::Dtype;
use crate::activation::{BLOCK, Q8Vector, ToQuantize};
use crate::blocks::{self, SUPER, as_blocks};

/// Calls `each(first element, values)` for pieces of at most 256 elements of a row. A piece starts
/// at a multiple of 256.
fn for_each_piece(dtype: Dtype, row: &[u8], mut each: impl FnMut(usize, &[f32])) {
    let mut values = [0.0; SUPER];
    let piece_bytes = SUPER / dtype.block_len() * dtype.block_bytes();
    for (i, bytes) in row.chunks(piece_bytes).enumerate() {
        let values = &mut values[..bytes.len() / dtype.block_bytes() * dtype.block_len()];
        blocks::dequantize_row(dtype, bytes, values);
        each(i * SUPER, values);
    }
}

/// The canonical dot product.
pub(crate) fn dot(dtype: Dtype, row: &[u8], x: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    for_each_piece(dtype, row, |first, values| {
        for (i, (value, x)) in values.iter().zip(&x[first..][..values.len()]).enumerate() {
            let lane = &mut lanes[i % LANES];
            *lane = value.mul_add(*x, *lane);
        }
    });
    reduce(&lanes)
}

/// Dequantises a row.
pub(crate) fn row(dtype: Dtype, row: &[u8], out: &mut [f32]) {
    blocks::dequantize_row(dtype, row, out);
}

/// `y[i] = fma(a, row[i], y[i])`.
pub(crate) fn axpy(dtype: Dtype, row: &[u8], a: f32, y: &mut [f32]) {
    for_each_piece(dtype, row, |first, values| {
        for (value, y) in values.iter().zip(&mut y[first..]) {
            *y = a.mul_add(*value, *y);
        }
    });
}

/// The integer dot products of `y.len()` rows of a block format, one after the other in `rows`.
pub(crate) fn dots_q8(dtype: Dtype, rows: &[u8], x: Q8Vector<'_>, y: &mut [f32]) {
    let row_bytes = rows.len() / y.len().max(1);
    for (row, y) in rows.chunks_exact(row_bytes.max(1)).zip(y) {
        *y = dot_q8(dtype, row, x);
    }
}

/// The integer dot product of a row of a block format.
fn dot_q8(dtype: Dtype, row: &[u8], x: Q8Vector<'_>) -> f32 {
    match dtype {
        Dtype::F32 | Dtype::F16 | Dtype::BF16 => panic!("{dtype} has no integers"),
        Dtype::Q4_0 => dot_integers::<blocks::BlockQ4_0>(row, x),
        Dtype::Q4_1 => dot_integers::<blocks::BlockQ4_1>(row, x),
        Dtype::Q5_0 => dot_integers::<blocks::BlockQ5_0>(row, x),
        Dtype::Q5_1 => dot_integers::<blocks::BlockQ5_1>(row, x),
        Dtype::Q8_0 => dot_integers::<blocks::BlockQ8_0>(row, x),
        Dtype::Q2K => dot_integers::<blocks::BlockQ2K>(row, x),
        Dtype::Q3K => dot_integers::<blocks::BlockQ3K>(row, x),
        Dtype::Q4K => dot_integers::<blocks::BlockQ4K>(row, x),
        Dtype::Q5K => dot_integers::<blocks::BlockQ5K>(row, x),
        Dtype::Q6K => dot_integers::<blocks::BlockQ6K>(row, x),
    }
}

/// Every integer sum is exact, in i32 and as a float32 (below 2^24), so only the fused
/// multiply-adds round.
fn dot_integers<B: Integers>(row: &[u8], x: Q8Vector<'_>) -> f32 {
    let mut products = [0.0; Q8_LANES];
    let mut minimums = [0.0; 8];
    let sub_blocks = B::LEN / BLOCK;
    for (i, block) in as_blocks::<B>(row).iter().enumerate() {
        let (d, dmin) = block.factors();
        let SubScales { scales, mins } = block.sub_scales();
        for s in 0..sub_blocks {
            let b = i * sub_blocks + s;
            let quants = block.quants(s);
            let (x_scale, x_quants) = (x.scales[b], &x.quants[b]);
            for j in 0..8 {
                let sum: i32 =
                    (4 * j..4 * j + 4).map(|e| i32::from(quants[e]) * i32::from(x_quants[e])).sum();
                let lane = &mut products[8 * (b % 2) + j];
                *lane = (d * x_scale).mul_add((scales[2 * s + j / 4] * sum) as f32, *lane);
            }
            let [first, last] = x.half_sums[b].map(i32::from);
            let sum = mins[2 * s] * first + mins[2 * s + 1] * last;
            let lane = &mut minimums[b % 8];
            *lane = (dmin * x_scale).mul_add(sum as f32, *lane);
        }
    }
    reduce_q8(&products, &minimums)
}

/// Quantises a vector to int8, block by block (`Activations::set` says how). No branch and no
/// library call inside a block: each instruction set compiles this for its own registers.
#[inline(always)]
pub(crate) fn quantize(vector: &mut ToQuantize<'_>) {
    let (whole, rest) = vector.values.as_chunks::<BLOCK>();
    let mut last = [0.0; BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    let values = whole.iter().chain((!rest.is_empty()).then_some(&last));
    let places = vector.quants.iter_mut().zip(&mut *vector.scales).zip(&mut *vector.half_sums);
    let mut finite = true;
    for (values, ((quants, scale), half_sums)) in values.zip(places) {
        // As integers, NaN is above infinity, and that above everything else.
        let largest = values.iter().fold(0, |max, v| v.abs().to_bits().max(max));
        finite &= largest < f32::INFINITY.to_bits();
        *scale = f32::from_bits(largest) / 127.0;
        // Of zeros, all quotients are zero whatever they are divided by.
        let divisor = if *scale > 0.0 { *scale } else { 1.0 };
        for (quant, value) in quants.iter_mut().zip(values) {
            // A subnormal scale has few bits and may leave the quotient beyond 127.
            let quotient = (value / divisor).clamp(-127.0, 127.0);
            // Adding 1.5 * 2^23 rounds to the nearest, ties to even, and leaves the integer in the
            // low bits.
            *quant = (quotient + 12_582_912.0).to_bits() as i8;
        }
        let sum = |half: &[i8]| half.iter().map(|&q| i16::from(q)).sum();
        *half_sums = [sum(&quants[..16]), sum(&quants[16..])];
    }
    vector.finite = finite;
}
