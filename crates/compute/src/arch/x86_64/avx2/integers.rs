//! The integer dot product.
//!
//! `maddubs` multiplies unsigned by signed bytes and adds pairs in 16 bits with saturation. It
//! never saturates here: activations stay within ±127, quants are at most 63 (or 128, for Q8_0's
//! magnitudes), so a pair stays within 2 * 128 * 127 = 32,512.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _mm_add_epi8, _mm_and_si128, _mm_set1_epi8, _mm_setr_epi8,
    _mm_shuffle_epi8, _mm_srli_epi16, _mm_unpacklo_epi8, _mm256_abs_epi8, _mm256_and_si256,
    _mm256_cvtepi8_epi16, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi16, _mm256_fmadd_ps,
    _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_or_si256,
    _mm256_permute2x128_si256, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_ps,
    _mm256_setzero_ps, _mm256_setzero_si256, _mm256_sign_epi8, _mm256_slli_epi16,
    _mm256_srli_epi16, _mm256_sub_epi16,
};

use super::memory::{
    half, load_8, load_16, load_32, load_f32, load_i8, load_i16, load_twice, store_f32,
};
use super::unpack_32::{fifth_bits, nibbles};
use super::unpack_k::{one_bit, two_bits};
use crate::Dtype;
use crate::activation::{BLOCK, Q8Vector};
use crate::blocks::{
    Block, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K,
    BlockQ6K, BlockQ8_0, Half, as_blocks,
};
use crate::kernels::{Q8_LANES, reduce_q8};

/// The integer dot products of `y.len()` rows of a block format, one after the other in `rows`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn dots_q8(dtype: Dtype, rows: &[u8], x: Q8Vector<'_>, y: &mut [f32]) {
    let row_bytes = rows.len() / y.len().max(1);
    for (row, y) in rows.chunks_exact(row_bytes.max(1)).zip(y) {
        *y = dot_q8(dtype, row, x);
    }
}

/// The integer dot product of a row of a block format.
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_q8(dtype: Dtype, row: &[u8], x: Q8Vector<'_>) -> f32 {
    match dtype {
        Dtype::F32 | Dtype::F16 | Dtype::BF16 => panic!("{dtype} has no integers"),
        Dtype::Q4_0 => dot_32(as_blocks(row), x, |b: &BlockQ4_0| (b.d, None), |b, x| q4_0(b, x)),
        Dtype::Q4_1 => {
            dot_32(as_blocks(row), x, |b: &BlockQ4_1| (b.d, Some(b.m)), |b, x| q4_1(b, x))
        }
        Dtype::Q5_0 => dot_32(as_blocks(row), x, |b: &BlockQ5_0| (b.d, None), |b, x| q5_0(b, x)),
        Dtype::Q5_1 => {
            dot_32(as_blocks(row), x, |b: &BlockQ5_1| (b.d, Some(b.m)), |b, x| q5_1(b, x))
        }
        Dtype::Q8_0 => dot_32(as_blocks(row), x, |b: &BlockQ8_0| (b.d, None), |b, x| q8_0(b, x)),
        Dtype::Q2K => dot_k(as_blocks(row), x, |b, x| q2_k(b, x)),
        Dtype::Q3K => dot_k(as_blocks(row), x, |b, x| q3_k(b, x)),
        Dtype::Q4K => dot_k(as_blocks(row), x, |b, x| q4_k(b, x)),
        Dtype::Q5K => dot_k(as_blocks(row), x, |b, x| q5_k(b, x)),
        Dtype::Q6K => dot_k(as_blocks(row), x, |b, x| q6_k(b, x)),
    }
}

/// Adds the lanes of a row up in the order that all instruction sets share.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn finish(acc: [__m256; 2], minimums: &[f32; 8]) -> f32 {
    let mut products = [0.0; Q8_LANES];
    for (lanes, acc) in products.as_chunks_mut().0.iter_mut().zip(acc) {
        store_f32(lanes, acc);
    }
    reduce_q8(&products, minimums)
}

/// A format of 32 elements: `factors` gives its `d` and `m` (the value of quant 0), `pairs` the
/// sums of products of neighbours.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_32<B: Block>(
    blocks: &[B],
    x: Q8Vector<'_>,
    factors: impl Fn(&B) -> (Half, Option<Half>),
    pairs: impl Fn(&B, __m256i) -> __m256i,
) -> f32 {
    let n = blocks.len();
    let (quants, scales, half_sums) = (&x.quants[..n], &x.scales[..n], &x.half_sums[..n]);
    let mut minimums = [0.0; 8];
    let mut step = |b: usize, block: &B, acc: __m256| {
        let sums = _mm256_madd_epi16(pairs(block, load_i8(&quants[b])), _mm256_set1_epi16(1));
        let (d, m) = factors(block);
        if let Some(m) = m {
            let [first, last] = half_sums[b].map(i32::from);
            let lane = &mut minimums[b % 8];
            *lane = (-half(m) * scales[b]).mul_add((first + last) as f32, *lane);
        }
        let scale = _mm256_set1_ps(half(d) * scales[b]);
        _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sums), acc)
    };
    let mut acc = [_mm256_setzero_ps(); 2];
    let (twos, rest) = blocks.as_chunks::<2>();
    for (p, [even, odd]) in twos.iter().enumerate() {
        acc[0] = step(2 * p, even, acc[0]);
        acc[1] = step(2 * p + 1, odd, acc[1]);
    }
    for block in rest {
        acc[0] = step(n - 1, block, acc[0]);
    }
    finish(acc, &minimums)
}

/// `maddubs` of quants that stand for `quant - offset`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn offset_pairs(quants: __m256i, x: __m256i, offset: i8) -> __m256i {
    let excess = _mm256_maddubs_epi16(_mm256_set1_epi8(offset), x);
    _mm256_sub_epi16(_mm256_maddubs_epi16(quants, x), excess)
}

/// The 32 four-bit quants of 16 bytes in order: low halves, then high halves.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn four_bits(packed: &[u8; 16]) -> __m256i {
    let [low, high] = nibbles(load_twice(packed));
    _mm256_permute2x128_si256::<0x20>(low, high)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q4_0(block: &BlockQ4_0, x: __m256i) -> __m256i {
    offset_pairs(four_bits(&block.qs), x, 8)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q4_1(block: &BlockQ4_1, x: __m256i) -> __m256i {
    _mm256_maddubs_epi16(four_bits(&block.qs), x)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q5_0(block: &BlockQ5_0, x: __m256i) -> __m256i {
    offset_pairs(_mm256_or_si256(four_bits(&block.qs), fifth_bits(block.qh)), x, 16)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q5_1(block: &BlockQ5_1, x: __m256i) -> __m256i {
    _mm256_maddubs_epi16(_mm256_or_si256(four_bits(&block.qs), fifth_bits(block.qh)), x)
}

/// Magnitudes times activations that took over the signs.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q8_0(block: &BlockQ8_0, x: __m256i) -> __m256i {
    let quants = load_i8(&block.qs);
    _mm256_maddubs_epi16(_mm256_abs_epi8(quants), _mm256_sign_epi8(x, quants))
}

/// What a block of 256 contributes, in integers.
struct Products {
    d: Half,
    /// Lane `j` of sub-block `s`: the products of its elements `4j..4j + 4`, sub-scale included.
    sums: [__m256i; 8],
    /// `dmin` and the 16 minimums in 16 bits, each for 16 elements.
    mins: Option<(Half, __m256i)>,
}

/// The activations of a block of 256.
type Quants = [[i8; BLOCK]; 8];

#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_k<B: Block>(
    blocks: &[B],
    x: Q8Vector<'_>,
    products: impl Fn(&B, &Quants) -> Products,
) -> f32 {
    let n = blocks.len();
    let quants = &x.quants.as_chunks::<8>().0[..n];
    let scales = &x.scales.as_chunks::<8>().0[..n];
    let half_sums = &x.half_sums.as_flattened().as_chunks::<16>().0[..n];
    let mut acc = [_mm256_setzero_ps(); 2];
    let mut minimum = _mm256_setzero_ps();
    for (i, block) in blocks.iter().enumerate() {
        let Products { d, sums, mins } = products(block, &quants[i]);
        let x_scales = load_f32(&scales[i]);
        let mut scales = [0.0; 8];
        store_f32(&mut scales, _mm256_mul_ps(_mm256_set1_ps(half(d)), x_scales));
        for ([even, odd], [even_scale, odd_scale]) in
            sums.as_chunks::<2>().0.iter().zip(scales.as_chunks::<2>().0)
        {
            let [even, odd] = [_mm256_cvtepi32_ps(*even), _mm256_cvtepi32_ps(*odd)];
            acc[0] = _mm256_fmadd_ps(_mm256_set1_ps(*even_scale), even, acc[0]);
            acc[1] = _mm256_fmadd_ps(_mm256_set1_ps(*odd_scale), odd, acc[1]);
        }
        if let Some((dmin, mins)) = mins {
            let sums = _mm256_cvtepi32_ps(_mm256_madd_epi16(mins, load_i16(&half_sums[i])));
            let scale = _mm256_mul_ps(_mm256_set1_ps(half(dmin)), x_scales);
            minimum = _mm256_fmadd_ps(scale, sums, minimum);
        }
    }
    let mut minimums = [0.0; 8];
    store_f32(&mut minimums, minimum);
    finish(acc, &minimums)
}

/// Scales `2 * s` (for elements 0..16 of a sub-block) and `2 * s + 1` of sixteen bytes, in 16
/// bits, as the pair sums of sub-block `s` need them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn two_scales(scales: __m128i, s: usize) -> __m256i {
    let places = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    let places = _mm_add_epi8(places, _mm_set1_epi8(2 * s as i8));
    _mm256_cvtepi8_epi16(_mm_shuffle_epi8(scales, places))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q2_k(block: &BlockQ2K, x: &Quants) -> Products {
    let packed = load_16(&block.scales);
    let scales = _mm_and_si128(packed, _mm_set1_epi8(15));
    let mins = _mm_and_si128(_mm_srli_epi16::<4>(packed), _mm_set1_epi8(15));
    let parts = block.qs.as_chunks::<32>().0;
    let mut sums = [_mm256_setzero_si256(); 8];
    for (s, sums) in sums.iter_mut().enumerate() {
        let quants = two_bits(load_32(&parts[s / 4]), 2 * (s % 4));
        let pairs = _mm256_maddubs_epi16(quants, load_i8(&x[s]));
        *sums = _mm256_madd_epi16(pairs, two_scales(scales, s));
    }
    Products { d: block.d, sums, mins: Some((block.dmin, _mm256_cvtepu8_epi16(mins))) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q3_k(block: &BlockQ3K, x: &Quants) -> Products {
    let scales = load_16(&block.scales().map(i8::cast_unsigned));
    let (parts, high) = (block.qs.as_chunks::<32>().0, load_32(&block.hmask));
    let mut sums = [_mm256_setzero_si256(); 8];
    for (s, sums) in sums.iter_mut().enumerate() {
        let low = two_bits(load_32(&parts[s / 4]), 2 * (s % 4));
        let third = _mm256_slli_epi16::<2>(one_bit(high, s));
        let pairs = offset_pairs(_mm256_or_si256(low, third), load_i8(&x[s]), 4);
        *sums = _mm256_madd_epi16(pairs, two_scales(scales, s));
    }
    Products { d: block.d, sums, mins: None }
}

/// The minimums of Q4_K and Q5_K, each twice, for both halves of its sub-block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn eight_mins(mins: &[u8; 8]) -> __m256i {
    let mins = load_8(mins);
    _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(mins, mins))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q4_k(block: &BlockQ4K, x: &Quants) -> Products {
    let (scales, mins) = block.scales.unpack();
    let mut sums = [_mm256_setzero_si256(); 8];
    for (pair, bytes) in block.qs.as_chunks::<32>().0.iter().enumerate() {
        let [even, odd] = nibbles(load_32(bytes));
        for (s, quants) in [(2 * pair, even), (2 * pair + 1, odd)] {
            let pairs = _mm256_maddubs_epi16(quants, load_i8(&x[s]));
            sums[s] = _mm256_madd_epi16(pairs, _mm256_set1_epi16(i16::from(scales[s])));
        }
    }
    Products { d: block.d, sums, mins: Some((block.dmin, eight_mins(&mins))) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q5_k(block: &BlockQ5K, x: &Quants) -> Products {
    let (scales, mins) = block.scales.unpack();
    let high = load_32(&block.qh);
    let mut sums = [_mm256_setzero_si256(); 8];
    for (pair, bytes) in block.qs.as_chunks::<32>().0.iter().enumerate() {
        let [even, odd] = nibbles(load_32(bytes));
        for (s, low) in [(2 * pair, even), (2 * pair + 1, odd)] {
            let quants = _mm256_or_si256(low, _mm256_slli_epi16::<4>(one_bit(high, s)));
            let pairs = _mm256_maddubs_epi16(quants, load_i8(&x[s]));
            sums[s] = _mm256_madd_epi16(pairs, _mm256_set1_epi16(i16::from(scales[s])));
        }
    }
    Products { d: block.d, sums, mins: Some((block.dmin, eight_mins(&mins))) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q6_k(block: &BlockQ6K, x: &Quants) -> Products {
    let scales = load_16(&block.scales.map(i8::cast_unsigned));
    let mut sums = [_mm256_setzero_si256(); 8];
    let halves = block.ql.as_chunks::<64>().0.iter().zip(block.qh.as_chunks::<32>().0);
    for (n, (low, high)) in halves.enumerate() {
        let (low, high) = (low.as_chunks::<32>().0, load_32(high));
        let [low_0, low_2] = nibbles(load_32(&low[0]));
        let [low_1, low_3] = nibbles(load_32(&low[1]));
        let quants = [
            six_bits(low_0, _mm256_slli_epi16::<4>(high)),
            six_bits(low_1, _mm256_slli_epi16::<2>(high)),
            six_bits(low_2, high),
            six_bits(low_3, _mm256_srli_epi16::<2>(high)),
        ];
        for (part, quants) in quants.into_iter().enumerate() {
            let s = 4 * n + part;
            let pairs = offset_pairs(quants, load_i8(&x[s]), 32);
            sums[s] = _mm256_madd_epi16(pairs, two_scales(scales, s));
        }
    }
    Products { d: block.d, sums, mins: None }
}

/// Four low bits and, in bits 4 and 5 of `high`, the upper two.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn six_bits(low: __m256i, high: __m256i) -> __m256i {
    _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(0x30)))
}
