//! The i16 x i16 -> i32 tile of the coarse scan, for NEON.

use std::arch::aarch64::{
    int16x8x2_t, int32x4_t, vaddq_s32, vdupq_n_s32, vget_low_s16, vld1q_s32, vld2q_s16,
    vmlal_high_n_s16, vmlal_n_s16, vst1q_s32,
};

use crate::coarse::{TILE_QUERIES, TILE_ROWS, Tile};

/// See [`TileKernel`](crate::coarse::TileKernel). 24 accumulators and four vectors of rows; the
/// load takes the two columns of the words apart, `smlal` widens, multiplies and adds.
#[target_feature(enable = "neon")]
fn tile_neon(a: &[i32], b: &[i32], tile: &mut Tile, add: bool) {
    let mut sums = [[vdupq_n_s32(0); 4]; TILE_QUERIES];
    let (a, b) = (a.as_chunks::<TILE_QUERIES>().0, b.as_chunks::<TILE_ROWS>().0);
    for (a, b) in a.iter().zip(b) {
        let [low, high] = split_columns(b);
        for (sums, &word) in sums.iter_mut().zip(a) {
            let (first, second) = (word as i16, (word >> 16) as i16);
            sums[0] = vmlal_n_s16(sums[0], vget_low_s16(low.0), first);
            sums[0] = vmlal_n_s16(sums[0], vget_low_s16(low.1), second);
            sums[1] = vmlal_high_n_s16(sums[1], low.0, first);
            sums[1] = vmlal_high_n_s16(sums[1], low.1, second);
            sums[2] = vmlal_n_s16(sums[2], vget_low_s16(high.0), first);
            sums[2] = vmlal_n_s16(sums[2], vget_low_s16(high.1), second);
            sums[3] = vmlal_high_n_s16(sums[3], high.0, first);
            sums[3] = vmlal_high_n_s16(sums[3], high.1, second);
        }
    }
    for (line, sums) in tile.iter_mut().zip(sums) {
        for (four, sum) in line.as_chunks_mut::<4>().0.iter_mut().zip(sums) {
            store(four, if add { vaddq_s32(load(four), sum) } else { sum });
        }
    }
}

/// The first and the second columns of rows 0 to 7 and of rows 8 to 15.
#[target_feature(enable = "neon")]
#[inline]
fn split_columns(words: &[i32; TILE_ROWS]) -> [int16x8x2_t; 2] {
    let half = words.as_ptr().cast::<i16>();
    // SAFETY: `words` holds 32 i16, of which each load reads 16; alignment is that of an i16.
    unsafe { [vld2q_s16(half), vld2q_s16(half.add(16))] }
}

#[target_feature(enable = "neon")]
#[inline]
fn load(four: &[i32; 4]) -> int32x4_t {
    // SAFETY: the load reads the 4 i32 of the array.
    unsafe { vld1q_s32(four.as_ptr()) }
}

#[target_feature(enable = "neon")]
#[inline]
fn store(four: &mut [i32; 4], sums: int32x4_t) {
    // SAFETY: the store writes the 4 i32 of the array.
    unsafe { vst1q_s32(four.as_mut_ptr(), sums) }
}

/// The NEON tile as a plain function.
pub(crate) fn tile(a: &[i32], b: &[i32], tile: &mut Tile, add: bool) {
    // SAFETY: every aarch64 CPU that Rust's targets name has NEON.
    unsafe { tile_neon(a, b, tile, add) }
}
