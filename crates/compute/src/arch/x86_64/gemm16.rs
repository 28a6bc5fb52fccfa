//! The i16 x i16 -> i32 tile of the coarse scan, for AVX2.

use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_set1_epi32,
    _mm256_setzero_si256, _mm256_storeu_si256,
};

use crate::coarse::{TILE_QUERIES, TILE_ROWS, Tile};

/// See [`TileKernel`](crate::coarse::TileKernel). Twelve accumulators, two vectors of rows, one
/// broadcast query and one product: exactly the sixteen registers. `vpmaddwd` multiplies and adds
/// the two columns of a word: 16 products an instruction, where a float FMA has 8.
#[target_feature(enable = "avx2")]
fn tile_avx2(a: &[i32], b: &[i32], tile: &mut Tile, add: bool) {
    let mut sums = [[_mm256_setzero_si256(); 2]; TILE_QUERIES];
    let (a, b) = (a.as_chunks::<TILE_QUERIES>().0, b.as_chunks::<TILE_ROWS>().0);
    for (a, b) in a.iter().zip(b) {
        let rows = load(b);
        for (sums, &word) in sums.iter_mut().zip(a) {
            let query = _mm256_set1_epi32(word);
            sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(query, rows[0]));
            sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(query, rows[1]));
        }
    }
    for (line, mut sums) in tile.iter_mut().zip(sums) {
        if add {
            let before = load(line);
            sums[0] = _mm256_add_epi32(before[0], sums[0]);
            sums[1] = _mm256_add_epi32(before[1], sums[1]);
        }
        let half = line.as_mut_ptr();
        // SAFETY: `line` holds 16 i32, of which each store writes 8; unaligned stores are allowed.
        unsafe {
            _mm256_storeu_si256(half.cast(), sums[0]);
            _mm256_storeu_si256(half.add(8).cast(), sums[1]);
        }
    }
}

/// Sixteen i32 as two registers.
#[target_feature(enable = "avx2")]
#[inline]
fn load(words: &[i32; TILE_ROWS]) -> [__m256i; 2] {
    let half = words.as_ptr();
    // SAFETY: `words` holds 16 i32, of which each load reads 8; unaligned loads are allowed.
    unsafe { [_mm256_loadu_si256(half.cast()), _mm256_loadu_si256(half.add(8).cast())] }
}

/// The AVX2 tile as a plain function. The caller has checked that the CPU has AVX2.
pub(crate) fn tile(a: &[i32], b: &[i32], tile: &mut Tile, add: bool) {
    // SAFETY: `gemm16_tile` hands this function out only where AVX2 was detected.
    unsafe { tile_avx2(a, b, tile, add) }
}
