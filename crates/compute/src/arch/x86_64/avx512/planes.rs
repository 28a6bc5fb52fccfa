//! Estimates from the planes of an LM head, for AVX-512 with VNNI: a register holds one word of
//! four columns for each of the 16 rows, so every lane is a row and nothing is summed across.

use std::arch::x86_64::{
    _mm512_add_epi32, _mm512_and_si512, _mm512_broadcast_i32x4, _mm512_castsi512_ps,
    _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtepu16_epi32, _mm512_dpbusd_epi32,
    _mm512_fmadd_ps, _mm512_mul_ps, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_setzero_si512, _mm512_shuffle_epi8, _mm512_slli_epi32,
    _mm512_srli_epi16,
};

use super::memory::{load_16, load_32, load_64, prefetch, store_f32};
use crate::head::{Estimates, LANES, LEVELS, PlanesQuery};

#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn estimate_512(block: &[u8], query: &PlanesQuery, out: &mut Estimates) {
    let levels = _mm512_broadcast_i32x4(load_16(&LEVELS));
    let low_half = _mm512_set1_epi8(15);
    let (mut score, mut error) = (_mm512_setzero_ps(), _mm512_setzero_ps());
    for (s, segment) in query.segments.iter().enumerate() {
        let mut high = [_mm512_set1_epi32(segment.start_high), _mm512_setzero_si512()];
        let mut low = [_mm512_set1_epi32(segment.start_low), _mm512_setzero_si512()];
        let codes = block[segment.codes_at..].as_chunks::<64>().0;
        let words = query.high[segment.words.clone()].iter().zip(&query.low[segment.words.clone()]);
        if segment.hot {
            for (codes, (&h, &l)) in codes.iter().zip(words) {
                let codes = load_64(codes);
                high[0] = _mm512_dpbusd_epi32(high[0], codes, _mm512_set1_epi32(h));
                low[0] = _mm512_dpbusd_epi32(low[0], codes, _mm512_set1_epi32(l));
            }
        } else {
            let highs = query.high[segment.words.clone()].as_chunks::<2>().0;
            let lows = query.low[segment.words.clone()].as_chunks::<2>().0;
            for (codes, (h, l)) in codes.iter().zip(highs.iter().zip(lows)) {
                prefetch(codes);
                let codes = load_64(codes);
                let even = _mm512_shuffle_epi8(levels, _mm512_and_si512(codes, low_half));
                let odd = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), low_half);
                let odd = _mm512_shuffle_epi8(levels, odd);
                high[0] = _mm512_dpbusd_epi32(high[0], even, _mm512_set1_epi32(h[0]));
                low[0] = _mm512_dpbusd_epi32(low[0], even, _mm512_set1_epi32(l[0]));
                high[1] = _mm512_dpbusd_epi32(high[1], odd, _mm512_set1_epi32(h[1]));
                low[1] = _mm512_dpbusd_epi32(low[1], odd, _mm512_set1_epi32(l[1]));
            }
        }
        let high = _mm512_slli_epi32::<7>(_mm512_add_epi32(high[0], high[1]));
        let sum = _mm512_add_epi32(high, _mm512_add_epi32(low[0], low[1]));
        let scales =
            _mm512_cvtepu16_epi32(load_32(first(&block[query.scales_at + 2 * LANES * s..])));
        let scales = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(scales));
        let errors = _mm512_cvtepu8_epi32(load_16(first(&block[query.errors_at + LANES * s..])));
        let factor = _mm512_mul_ps(scales, _mm512_set1_ps(segment.scale));
        score = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), factor, score);
        let factor = _mm512_mul_ps(scales, _mm512_set1_ps(segment.error));
        error = _mm512_fmadd_ps(_mm512_cvtepi32_ps(errors), factor, error);
    }
    store_f32(&mut out.score, score);
    store_f32(&mut out.error, error);
}

/// The first `N` bytes. Panics where there are fewer, as slices do.
fn first<const N: usize>(bytes: &[u8]) -> &[u8; N] {
    &bytes.as_chunks().0[0]
}

/// The kernel as a plain function.
pub(crate) fn estimate(block: &[u8], query: &PlanesQuery, out: &mut Estimates) {
    // SAFETY: `planes_kernel` hands this function out only where AVX-512 with VNNI was detected.
    unsafe { estimate_512(block, query, out) }
}
