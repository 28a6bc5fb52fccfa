//! The integer dot product of the formats of 256 elements.
//!
//! Four products of quants of at most six bits fit in 16 bits, so `vpmaddwd` with the sub-scale in
//! the lower half of each lane, and 0 in the upper, multiplies all sixteen sums.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, __m512i, _mm_and_si128, _mm_or_si128, _mm_set1_epi16, _mm_setr_epi32,
    _mm_shuffle_epi32, _mm_srli_epi32, _mm_srlv_epi32, _mm256_castsi128_si256,
    _mm256_cvtepi8_epi16, _mm256_cvtepi32_ps, _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_madd_epi16,
    _mm256_maskz_permutexvar_epi8, _mm256_mul_ps, _mm256_setzero_ps, _mm512_and_si512,
    _mm512_broadcast_i64x4, _mm512_castps256_ps512, _mm512_castsi128_si512, _mm512_castsi256_si512,
    _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_madd_epi16,
    _mm512_mask_add_epi8, _mm512_maskz_permutexvar_epi8, _mm512_maskz_permutexvar_epi16,
    _mm512_or_si512, _mm512_permutexvar_ps, _mm512_set1_epi8, _mm512_setr_epi32, _mm512_setr_epi64,
    _mm512_setzero_ps, _mm512_setzero_si512, _mm512_sllv_epi16, _mm512_srli_epi16,
    _mm512_srlv_epi16, _mm512_srlv_epi64, _mm512_sub_epi32, _mm512_test_epi8_mask,
};
use std::array;

use super::integers::ROWS;
use super::memory::{
    load_16, load_32, load_64, load_f32, load_i8_twice, load_i16, prefetch, store_8, store_f32,
};
use crate::activation::Q8Vector;
use crate::blocks::{Block, BlockQ4K, BlockQ5K, BlockQ6K, Half, as_blocks};
use crate::kernels::{Q8_LANES, reduce_q8};

/// A block of 256, unpacked.
pub(super) struct Unpacked {
    d: Half,
    /// Register `p`: the quants of sub-blocks `2p` and `2p + 1`, with the offset added.
    quants: [__m512i; 4],
    /// Register `p`: in the lower half of each lane, the sub-scale of its four quants.
    scales: [__m512i; 4],
    /// `dmin` and the 16 minimums in 16 bits, each for 16 elements.
    mins: Option<(Half, __m256i)>,
}

/// A format of 256 elements, whose quants come with `OFFSET` added.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
pub(super) fn dots_k<B: Block, const OFFSET: i8>(
    rows: &[u8],
    x: Q8Vector<'_>,
    y: &mut [f32],
    unpack: impl Fn(&B) -> Unpacked + Copy,
) {
    let blocks = as_blocks::<B>(rows);
    let n = blocks.len() / y.len().max(1);
    let row = |r: usize| &blocks[r * n..(r + 1) * n];
    let (fours, rest) = y.as_chunks_mut::<ROWS>();
    let first = fours.len() * ROWS;
    for (i, y) in fours.iter_mut().enumerate() {
        let rows = array::from_fn(|r| row(ROWS * i + r));
        *y = rows_k::<B, OFFSET, ROWS>(rows, x, unpack);
    }
    for (r, y) in rest.iter_mut().enumerate() {
        [*y] = rows_k::<B, OFFSET, 1>([row(first + r)], x, unpack);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn rows_k<B: Block, const OFFSET: i8, const R: usize>(
    rows: [&[B]; R],
    x: Q8Vector<'_>,
    unpack: impl Fn(&B) -> Unpacked,
) -> [f32; R] {
    let n = rows[0].len();
    let rows = rows.map(|row| &row[..n]);
    let x_quants = &x.quants.as_chunks::<2>().0.as_chunks::<4>().0[..n];
    let x_scales = &x.scales.as_chunks::<8>().0[..n];
    let x_half_sums = &x.half_sums.as_flattened().as_chunks::<16>().0[..n];
    let mut acc = [_mm512_setzero_ps(); R];
    let mut minimums = [_mm256_setzero_ps(); R];
    let zero = _mm512_setzero_si512();
    for i in 0..n {
        let x = x_quants[i].each_ref().map(|pair| load_i8_twice(pair));
        let x_scales = load_f32(&x_scales[i]);
        for r in 0..R {
            let block = &rows[r][i];
            prefetch_block(block);
            let Unpacked { d, quants, scales, mins } = unpack(block);
            let factors = _mm256_mul_ps(all(d), x_scales);
            for p in 0..4 {
                let mut sums = _mm512_dpbusd_epi32(zero, quants[p], x[p]);
                if OFFSET != 0 {
                    let offset = _mm512_dpbusd_epi32(zero, _mm512_set1_epi8(OFFSET), x[p]);
                    sums = _mm512_sub_epi32(sums, offset);
                }
                let sums = _mm512_cvtepi32_ps(_mm512_madd_epi16(sums, scales[p]));
                let p = 2 * p as i32;
                let q = p + 1;
                #[rustfmt::skip]
                let places =
                    _mm512_setr_epi32(p, p, p, p, p, p, p, p, q, q, q, q, q, q, q, q);
                let factor = _mm512_permutexvar_ps(places, _mm512_castps256_ps512(factors));
                acc[r] = _mm512_fmadd_ps(factor, sums, acc[r]);
            }
            if let Some((dmin, mins)) = mins {
                let sums = _mm256_madd_epi16(mins, load_i16(&x_half_sums[i]));
                let factors = _mm256_mul_ps(all(dmin), x_scales);
                minimums[r] = _mm256_fmadd_ps(factors, _mm256_cvtepi32_ps(sums), minimums[r]);
            }
        }
    }
    array::from_fn(|r| {
        let (mut products, mut lanes) = ([0.0; Q8_LANES], [0.0; 8]);
        store_f32(&mut products, acc[r]);
        store_8(&mut lanes, minimums[r]);
        reduce_q8(&products, &lanes)
    })
}

/// Asks for every line of the block that stands some way ahead.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn prefetch_block<B: Block>(block: &B) {
    for line in block.as_bytes().chunks(64) {
        prefetch(&line[0]);
    }
}

/// A half in every lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn all(half: Half) -> __m256 {
    _mm256_cvtph_ps(_mm_set1_epi16(half.to_bits().cast_signed()))
}

/// The four-bit quants of Q4_K and Q5_K: of each 32 bytes the low halves, then the high halves.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn four_bits(packed: &[u8; 128]) -> [__m512i; 4] {
    let shifts = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
    let parts = packed.as_chunks::<32>().0;
    array::from_fn(|p| {
        let both = _mm512_broadcast_i64x4(load_32(&parts[p]));
        _mm512_and_si512(_mm512_srlv_epi64(both, shifts), _mm512_set1_epi8(15))
    })
}

/// The eight scales and the eight minimums that Q4_K and Q5_K pack into bytes 4..16 of a block:
/// `ScaleMins::unpack` in four lanes of 32 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn scales_and_mins(header: &[u8; 16]) -> __m128i {
    let header = load_16(header);
    // Scales 0..4 and 4..8, minimums 0..4 and 4..8.
    let low = _mm_shuffle_epi32::<0b11_10_11_01>(header);
    let low = _mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 0, 4));
    let low =
        _mm_and_si128(low, _mm_setr_epi32(0x3f3f_3f3f, 0x0f0f_0f0f, 0x3f3f_3f3f, 0x0f0f_0f0f));
    let high = _mm_srli_epi32::<2>(_mm_shuffle_epi32::<0b10_10_01_01>(header));
    _mm_or_si128(low, _mm_and_si128(high, _mm_setr_epi32(0, 0x3030_3030, 0, 0x3030_3030)))
}

/// Bytes `2p` and `2p + 1` of the scales, each in the lowest byte of its eight lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn scale_of_32(scales: __m128i) -> [__m512i; 4] {
    array::from_fn(|p| {
        let (p, q) = (2 * p as i32, 2 * p as i32 + 1);
        let places = _mm512_setr_epi32(p, p, p, p, p, p, p, p, q, q, q, q, q, q, q, q);
        let lowest = 0x1111_1111_1111_1111;
        _mm512_maskz_permutexvar_epi8(lowest, places, _mm512_castsi128_si512(scales))
    })
}

/// Bytes 8..16 in 16 bits, each twice.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn mins_of_16(mins: __m128i) -> __m256i {
    const PLACES: [i16; 16] = [8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15];
    _mm256_maskz_permutexvar_epi8(0x5555_5555, load_i16(&PLACES), _mm256_castsi128_si256(mins))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
pub(super) fn q4_k(block: &BlockQ4K) -> Unpacked {
    let packed = scales_and_mins(header(block));
    Unpacked {
        d: block.d,
        quants: four_bits(&block.qs),
        scales: scale_of_32(packed),
        mins: Some((block.dmin, mins_of_16(packed))),
    }
}

/// The first 16 bytes of a block.
fn header<B: Block>(block: &B) -> &[u8; 16] {
    &block.as_bytes().as_chunks().0[0]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
pub(super) fn q5_k(block: &BlockQ5K) -> Unpacked {
    let packed = scales_and_mins(header(block));
    let high = _mm512_broadcast_i64x4(load_32(&block.qh));
    let low = four_bits(&block.qs);
    let quants = array::from_fn(|p| {
        let (even, odd) = (0x0101_0101_0101_0101 << (2 * p), 0x0202_0202_0202_0202 << (2 * p));
        let bits = _mm512_setr_epi64(even, even, even, even, odd, odd, odd, odd);
        let fifth = _mm512_test_epi8_mask(high, bits);
        _mm512_mask_add_epi8(low[p], fifth, low[p], _mm512_set1_epi8(16))
    });
    Unpacked {
        d: block.d,
        quants,
        scales: scale_of_32(packed),
        mins: Some((block.dmin, mins_of_16(packed))),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
pub(super) fn q6_k(block: &BlockQ6K) -> Unpacked {
    let four = _mm512_set1_epi8(15);
    let two = _mm512_set1_epi8(0x30);
    // How far left, and right, the upper two bits of each sub-block stand from their place.
    let (left_4, left_2) = (0x0004_0004_0004_0004, 0x0002_0002_0002_0002);
    let left = _mm512_setr_epi64(left_4, left_4, left_4, left_4, left_2, left_2, left_2, left_2);
    let right = _mm512_setr_epi64(0, 0, 0, 0, left_2, left_2, left_2, left_2);
    let (lows, highs) = (block.ql.as_chunks::<64>().0, block.qh.as_chunks::<32>().0);
    let quants: [[__m512i; 2]; 2] = array::from_fn(|half| {
        let low = load_64(&lows[half]);
        let high = _mm512_broadcast_i64x4(load_32(&highs[half]));
        let first = _mm512_and_si512(_mm512_sllv_epi16(high, left), two);
        let second = _mm512_and_si512(_mm512_srlv_epi16(high, right), two);
        [
            _mm512_or_si512(_mm512_and_si512(low, four), first),
            _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16::<4>(low), four), second),
        ]
    });
    let scales = _mm256_cvtepi8_epi16(load_16(&block.scales.map(i8::cast_unsigned)));
    let scales = array::from_fn(|p| {
        let [a, b, c, d] = array::from_fn(|i| (4 * p + i) as i32);
        let places = _mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d);
        _mm512_maskz_permutexvar_epi16(0x5555_5555, places, _mm512_castsi256_si512(scales))
    });
    let [[a, b], [c, d]] = quants;
    Unpacked { d: block.d, quants: [a, b, c, d], scales, mins: None }
}
