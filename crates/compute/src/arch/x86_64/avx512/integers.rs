//! The integer dot product of several rows, four at a time so that they share the loads of the
//! activations.
//!
//! A register holds two neighbouring blocks of 32 quants: its 16 sums of four products are the 16
//! lanes of the definition. `vpdpbusd` multiplies unsigned by signed bytes and adds four products
//! in 32 bits, where nothing saturates. A signed quant enters as `quant + offset`, and `offset`
//! times the sum of the activations is taken off again. Rare formats have AVX2's kernel.

use std::arch::x86_64::{
    __m512, __m512i, _mm256_permutexvar_epi16, _mm256_set1_epi32, _mm512_and_si512,
    _mm512_broadcast_i32x4, _mm512_castsi256_si512, _mm512_cvtepi32_ps, _mm512_cvtph_ps,
    _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_inserti64x4, _mm512_mask_add_epi8,
    _mm512_mask_blend_ps, _mm512_mask_broadcast_i32x4, _mm512_mask3_fmadd_ps, _mm512_mul_ps,
    _mm512_set1_epi8, _mm512_set1_ps, _mm512_setr_epi64, _mm512_setzero_ps, _mm512_setzero_si512,
    _mm512_srlv_epi16, _mm512_sub_epi32, _mm512_xor_si512,
};
use std::array;

use super::super::avx2;
use super::integers_k::{dots_k, q4_k, q5_k, q6_k};
use super::memory::{load_16, load_32, load_i8_twice, load_i16, prefetch, store_f32};
use crate::Dtype;
use crate::activation::Q8Vector;
use crate::blocks::{Block, BlockQ4_0, BlockQ5_0, BlockQ8_0, Half, as_blocks};
use crate::kernels::{Q8_LANES, reduce_q8};

/// Rows that share the loads of the activations.
pub(super) const ROWS: usize = 4;

/// The integer dot products of `y.len()` rows of a block format, one after the other in `rows`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
pub(in super::super) fn dots_q8(dtype: Dtype, rows: &[u8], x: Q8Vector<'_>, y: &mut [f32]) {
    match dtype {
        Dtype::Q4_0 => dots_32::<BlockQ4_0, 8>(rows, x, y, |b| b.d, |pair| q4_0(pair)),
        Dtype::Q5_0 => dots_32::<BlockQ5_0, 16>(rows, x, y, |b| b.d, |pair| q5_0(pair)),
        Dtype::Q8_0 => dots_32::<BlockQ8_0, -128>(rows, x, y, |b| b.d, |pair| q8_0(pair)),
        Dtype::Q4K => dots_k::<_, 0>(rows, x, y, |block| q4_k(block)),
        Dtype::Q5K => dots_k::<_, 0>(rows, x, y, |block| q5_k(block)),
        Dtype::Q6K => dots_k::<_, 32>(rows, x, y, |block| q6_k(block)),
        _ => avx2::dots_q8(dtype, rows, x, y),
    }
}

/// A format of 32 elements without minimums: `d` gives a block's factor, `quants` those of two
/// blocks, each with `OFFSET` added.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn dots_32<B: Block, const OFFSET: i8>(
    rows: &[u8],
    x: Q8Vector<'_>,
    y: &mut [f32],
    d: impl Fn(&B) -> Half + Copy,
    quants: impl Fn(&[B; 2]) -> __m512i + Copy,
) {
    let blocks = as_blocks::<B>(rows);
    let n = blocks.len() / y.len().max(1);
    let row = |r: usize| &blocks[r * n..(r + 1) * n];
    let (fours, rest) = y.as_chunks_mut::<ROWS>();
    let first = fours.len() * ROWS;
    for (i, y) in fours.iter_mut().enumerate() {
        let rows = array::from_fn(|r| row(ROWS * i + r));
        *y = rows_32::<B, OFFSET, ROWS>(rows, x, d, quants);
    }
    for (r, y) in rest.iter_mut().enumerate() {
        [*y] = rows_32::<B, OFFSET, 1>([row(first + r)], x, d, quants);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn rows_32<B: Block, const OFFSET: i8, const R: usize>(
    rows: [&[B]; R],
    x: Q8Vector<'_>,
    d: impl Fn(&B) -> Half,
    quants: impl Fn(&[B; 2]) -> __m512i,
) -> [f32; R] {
    let n = rows[0].len();
    let (x_quants, x_last) = x.quants[..n].as_chunks::<2>();
    let (x_scales, x_last_scale) = x.scales[..n].as_chunks::<2>();
    let rows = rows.map(|row| row.as_chunks::<2>());
    let mut acc = [_mm512_setzero_ps(); R];
    for (p, (x, x_scales)) in x_quants.iter().zip(x_scales).enumerate() {
        let x = load_i8_twice(x);
        let offset = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(OFFSET), x);
        let x_scales =
            _mm512_mask_blend_ps(ODD, _mm512_set1_ps(x_scales[0]), _mm512_set1_ps(x_scales[1]));
        for ((pairs, _), acc) in rows.iter().zip(&mut acc) {
            let pair = &pairs[p];
            prefetch(pair);
            let sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), quants(pair), x);
            let sums = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums, offset));
            let scale = _mm512_mul_ps(two_halves([d(&pair[0]), d(&pair[1])]), x_scales);
            *acc = _mm512_fmadd_ps(scale, sums, *acc);
        }
    }
    if let ([x], [x_scale]) = (x_last, x_last_scale) {
        let x = load_i8_twice(&[*x, [0; 32]]);
        let offset = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(OFFSET), x);
        for ((_, last), acc) in rows.iter().zip(&mut acc) {
            let pair = [last[0], last[0]];
            let sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), quants(&pair), x);
            let sums = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums, offset));
            let scale = _mm512_mul_ps(two_halves([d(&last[0]); 2]), _mm512_set1_ps(*x_scale));
            *acc = _mm512_mask3_fmadd_ps(scale, sums, *acc, !ODD);
        }
    }
    acc.map(|acc| {
        let mut products = [0.0; Q8_LANES];
        store_f32(&mut products, acc);
        reduce_q8(&products, &[0.0; 8])
    })
}

/// The lanes of the second of two blocks.
pub(super) const ODD: u16 = 0xff00;

/// The first number in the lanes of the first block, the second in those of the second.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn two_halves(halves: [Half; 2]) -> __m512 {
    const PLACES: [i16; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];
    let both = u32::from(halves[0].to_bits()) | u32::from(halves[1].to_bits()) << 16;
    let both = _mm256_set1_epi32(both.cast_signed());
    _mm512_cvtph_ps(_mm256_permutexvar_epi16(load_i16(&PLACES), both))
}

/// The four-bit quants of two blocks: of each the low halves, then the high halves.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn four_bits(packed: [&[u8; 16]; 2]) -> __m512i {
    let both = _mm512_broadcast_i32x4(load_16(packed[0]));
    let both = _mm512_mask_broadcast_i32x4(both, ODD, load_16(packed[1]));
    let high = 0x0004_0004_0004_0004;
    let shifts = _mm512_setr_epi64(0, 0, high, high, 0, 0, high, high);
    _mm512_and_si512(_mm512_srlv_epi16(both, shifts), _mm512_set1_epi8(15))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn q4_0(pair: &[BlockQ4_0; 2]) -> __m512i {
    four_bits([&pair[0].qs, &pair[1].qs])
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn q5_0(pair: &[BlockQ5_0; 2]) -> __m512i {
    let low = four_bits([&pair[0].qs, &pair[1].qs]);
    let [first, second] = [&pair[0], &pair[1]].map(|b| u64::from(u32::from_le_bytes(b.qh)));
    _mm512_mask_add_epi8(low, first | second << 32, low, _mm512_set1_epi8(16))
}

/// Flipping the sign bit adds 128.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn q8_0(pair: &[BlockQ8_0; 2]) -> __m512i {
    let [first, second] = [&pair[0], &pair[1]].map(|b| load_32(zerocopy::transmute_ref!(&b.qs)));
    let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second);
    _mm512_xor_si512(both, _mm512_set1_epi8(-128))
}
