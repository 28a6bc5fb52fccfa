//! The product of a panel and eight vectors: `kernels::panel::multiply` with a row in each lane.
//!
//! A word of the panel is loaded once and multiplied by four quants of each vector, which the
//! instruction itself spreads to all lanes as it loads them.

use std::arch::x86_64::{
    __m512, __m512i, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_mul_ps,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
};
use std::array;

use super::memory::{load_64, load_lanes, store_f32};
use crate::Matrix;
use crate::kernels::panel::{self, Lanes, PANEL_VECTORS, Panel, PanelKernels, PanelVectors, Word};

/// The kernels as plain functions.
pub(in super::super) const PANEL: PanelKernels = PanelKernels { fill, multiply };

fn fill(rows: Matrix<'_>, panel: &mut Panel) {
    // SAFETY: `panel_kernels` hands this function out only where AVX-512 was detected.
    unsafe { fill_512(rows, panel) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn fill_512(rows: Matrix<'_>, panel: &mut Panel) {
    panel::fill(rows, panel);
}

fn multiply(panel: &Panel, vectors: &PanelVectors<'_>, out: &mut [Lanes; PANEL_VECTORS]) {
    // SAFETY: as in `fill`.
    unsafe {
        match (panel.granule, panel.mins.is_empty()) {
            (16, true) => multiply_512::<2, false>(panel, vectors, out),
            (16, false) => multiply_512::<2, true>(panel, vectors, out),
            (_, true) => multiply_512::<1, false>(panel, vectors, out),
            (_, false) => multiply_512::<1, true>(panel, vectors, out),
        }
    }
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn multiply_512<const GRANULES: usize, const MINS: bool>(
    panel: &Panel,
    vectors: &PanelVectors<'_>,
    out: &mut [Lanes; PANEL_VECTORS],
) {
    let words = panel.words.as_chunks::<8>().0;
    let n = words.len();
    let scales = &panel.scales.as_chunks::<GRANULES>().0[..n];
    let mins = if MINS { &panel.mins.as_chunks::<GRANULES>().0[..n] } else { &[] };
    let starts = &vectors.starts.as_chunks::<GRANULES>().0[..n];
    let x_mins = if MINS { &vectors.mins.as_chunks::<GRANULES>().0[..n] } else { &[] };
    let quants = vectors.quants.map(|quants| &quants[..n]);
    let x_scales = vectors.scales.map(|scales| &scales[..n]);
    let mut acc = [_mm512_setzero_ps(); PANEL_VECTORS];
    for b in 0..n {
        let mut t = [_mm512_setzero_ps(); PANEL_VECTORS];
        for g in 0..GRANULES {
            let mut sums: [__m512i; PANEL_VECTORS] =
                array::from_fn(|v| _mm512_set1_epi32(starts[b][g][v]));
            let in_granule = 8 / GRANULES;
            let places = g * in_granule..(g + 1) * in_granule;
            for (word, place) in words[b][places.clone()].iter().zip(places) {
                let rows = load_word(word);
                for v in 0..PANEL_VECTORS {
                    let four = quants[v][b].as_chunks::<4>().0[place];
                    let four = i32::from_le_bytes(four.map(i8::cast_unsigned));
                    sums[v] = _mm512_dpbusd_epi32(sums[v], rows, _mm512_set1_epi32(four));
                }
            }
            let scale = load_lanes(&scales[b][g]);
            for v in 0..PANEL_VECTORS {
                let sum = _mm512_cvtepi32_ps(sums[v]);
                t[v] = if g == 0 {
                    _mm512_mul_ps(sum, scale)
                } else {
                    _mm512_fmadd_ps(sum, scale, t[v])
                };
            }
        }
        for v in 0..PANEL_VECTORS {
            acc[v] = _mm512_fmadd_ps(t[v], _mm512_set1_ps(x_scales[v][b]), acc[v]);
        }
        if MINS {
            for g in 0..GRANULES {
                let min: __m512 = load_lanes(&mins[b][g]);
                for v in 0..PANEL_VECTORS {
                    acc[v] = _mm512_fmadd_ps(min, _mm512_set1_ps(x_mins[b][g][v]), acc[v]);
                }
            }
        }
    }
    for (out, acc) in out.iter_mut().zip(acc) {
        store_f32(out, acc);
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_word(word: &Word) -> __m512i {
    load_64(zerocopy::transmute_ref!(word))
}
