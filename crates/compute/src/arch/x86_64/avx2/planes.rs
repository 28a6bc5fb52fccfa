//! Estimates from the planes of an LM head, for AVX2: as for AVX-512, with a register for each half
//! of the 16 rows.
//!
//! `vpmaddubsw` saturates at 16 bits, which cannot happen to levels: two of at most 127 times a
//! digit of at most 127 are 32,258. Low digits are at most 64, so even four products fit. Codes of
//! 8 bits would saturate; they are few, and take the long way over 16 bits.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _MM_HINT_T0, _mm_loadl_epi64, _mm_loadu_si128, _mm_prefetch,
    _mm_set1_epi32, _mm256_add_epi16, _mm256_add_epi32, _mm256_and_si256,
    _mm256_broadcastsi128_si256, _mm256_castsi256_ps, _mm256_cvtepi8_epi16, _mm256_cvtepi32_ps,
    _mm256_cvtepu8_epi16, _mm256_cvtepu8_epi32, _mm256_cvtepu16_epi32, _mm256_fmadd_ps,
    _mm256_hadd_epi32, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps,
    _mm256_permute4x64_epi64, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_setzero_ps, _mm256_shuffle_epi8, _mm256_slli_epi32, _mm256_srli_epi16,
    _mm256_storeu_ps,
};

use crate::head::{Estimates, LANES, LEVELS, PlanesQuery};

/// As for AVX-512.
const AHEAD: usize = 8192;

#[inline]
#[target_feature(enable = "avx2")]
fn load_32(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the reference covers the 32 bytes read; alignment is not needed.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the reference covers the 16 bytes read.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_8(bytes: &[u8; 8]) -> __m128i {
    // SAFETY: the reference covers the eight bytes read.
    unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) }
}

/// `sums` and what four columns of 8 bits of eight rows give.
#[inline]
#[target_feature(enable = "avx2")]
fn add_hot(sums: __m256i, codes: &[u8; 32], digits: i32) -> __m256i {
    let (first, last) = codes.as_chunks::<16>().0.split_at(1);
    let digits = _mm256_cvtepi8_epi16(_mm_set1_epi32(digits));
    let first = _mm256_madd_epi16(_mm256_cvtepu8_epi16(load_16(&first[0])), digits);
    let last = _mm256_madd_epi16(_mm256_cvtepu8_epi16(load_16(&last[0])), digits);
    // Pairs of each half of the two registers: rows 0 1 4 5 2 3 6 7.
    let rows = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_hadd_epi32(first, last));
    _mm256_add_epi32(sums, rows)
}

#[inline(never)]
#[target_feature(enable = "avx2,fma")]
fn estimate_256(block: &[u8], query: &PlanesQuery, out: &mut Estimates) {
    let levels = _mm256_broadcastsi128_si256(load_16(&LEVELS));
    let (low_half, ones) = (_mm256_set1_epi8(15), _mm256_set1_epi16(1));
    let mut score = [_mm256_setzero_ps(); 2];
    let mut error = [_mm256_setzero_ps(); 2];
    for (s, segment) in query.segments.iter().enumerate() {
        let mut high = [_mm256_set1_epi32(segment.start_high); 2];
        let mut low = [_mm256_set1_epi32(segment.start_low); 2];
        let codes = block[segment.codes_at..].as_chunks::<32>().0.as_chunks::<2>().0;
        let (highs, lows) = (&query.high[segment.words.clone()], &query.low[segment.words.clone()]);
        if segment.hot {
            for (codes, (&h, &l)) in codes.iter().zip(highs.iter().zip(lows)) {
                for (half, codes) in codes.iter().enumerate() {
                    high[half] = add_hot(high[half], codes, h);
                    low[half] = add_hot(low[half], codes, l);
                }
            }
        } else {
            let words = highs.as_chunks::<2>().0.iter().zip(lows.as_chunks::<2>().0);
            for (codes, (h, l)) in codes.iter().zip(words) {
                let [h_even, h_odd] = h.map(|word| _mm256_set1_epi32(word));
                let [l_even, l_odd] = l.map(|word| _mm256_set1_epi32(word));
                _mm_prefetch::<_MM_HINT_T0>(codes.as_ptr().cast::<i8>().wrapping_add(AHEAD));
                for (half, codes) in codes.iter().enumerate() {
                    let codes = load_32(codes);
                    let even = _mm256_shuffle_epi8(levels, _mm256_and_si256(codes, low_half));
                    let odd = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), low_half);
                    let odd = _mm256_shuffle_epi8(levels, odd);
                    let sums = _mm256_madd_epi16(_mm256_maddubs_epi16(even, h_even), ones);
                    high[half] = _mm256_add_epi32(high[half], sums);
                    let sums = _mm256_madd_epi16(_mm256_maddubs_epi16(odd, h_odd), ones);
                    high[half] = _mm256_add_epi32(high[half], sums);
                    let even = _mm256_maddubs_epi16(even, l_even);
                    let sums = _mm256_add_epi16(even, _mm256_maddubs_epi16(odd, l_odd));
                    low[half] = _mm256_add_epi32(low[half], _mm256_madd_epi16(sums, ones));
                }
            }
        }
        let scales = block[query.scales_at + 2 * LANES * s..].as_chunks::<16>().0;
        let errors = block[query.errors_at + LANES * s..].as_chunks::<8>().0;
        for half in 0..2 {
            let sum = _mm256_add_epi32(_mm256_slli_epi32::<7>(high[half]), low[half]);
            let scale = _mm256_cvtepu16_epi32(load_16(&scales[half]));
            let scale = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(scale));
            let factor = _mm256_mul_ps(scale, _mm256_set1_ps(segment.scale));
            score[half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), factor, score[half]);
            let factor = _mm256_mul_ps(scale, _mm256_set1_ps(segment.error));
            let steps = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_8(&errors[half])));
            error[half] = _mm256_fmadd_ps(steps, factor, error[half]);
        }
    }
    store(&mut out.score, score);
    store(&mut out.error, error);
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(to: &mut [f32; LANES], halves: [__m256; 2]) {
    for (to, half) in to.as_chunks_mut::<8>().0.iter_mut().zip(halves) {
        // SAFETY: the reference covers the eight float32 written.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), half) }
    }
}

/// The kernel as a plain function.
pub(crate) fn estimate(block: &[u8], query: &PlanesQuery, out: &mut Estimates) {
    // SAFETY: `planes_kernel` hands this function out only where AVX2 and FMA were detected.
    unsafe { estimate_256(block, query, out) }
}
