//! An exact top-k scan of many queries against many rows, most of it in 16-bit integers.
//!
//! Both sides are vectors of length at most 1, rounded to a grid of [`GRID`] steps per unit and
//! multiplied as i16 x i16 -> i32 by a blocked kernel, which an AVX2 core does
//! faster than in float32 (measured on Zen 3: 59 to 66 against 45 to 47 GMAC/s for such a tile). The integer product is exact; what was lost is only the rounding of the
//! two vectors, and that is known:
//!
//! ```text
//! |q·r - q̂·r̂ / GRID²|  <=  |q| |r - r̂/GRID| + |r̂/GRID| |q - q̂/GRID|     (Cauchy-Schwarz)
//! ```
//!
//! So a row whose integer product lies more than twice that bound below the k-th best integer
//! product cannot be among the k best, and every other row is scored again by the caller in
//! float32. The answer therefore equals a brute force in that float32 score, ties by lower row,
//! whatever the data; only the number of rows that are scored twice depends on it. The products
//! are compared as they leave the kernel and never stored.
//!
//! **No overflow.** A vector of length <= 1 (+ [`UNIT_SLACK`]) has integer length at most
//! `GRID (1 + UNIT_SLACK) + sqrt(cols) / 2`, and a product of two vectors is at most the product
//! of their lengths: below 2³¹ for every `cols` up to [`MAX_COLS`]. Sums over a part of the columns obey the
//! same bound, so no accumulator wraps. An element is at most `GRID` + 1, so it fits an i16.

mod best;
mod pack;
mod scan;

pub use pack::{Queries, RowPanel};
pub use scan::{CoarseScan, Extremes, Found, Rescore};

use crate::Isa;

/// Steps of the integer grid per unit of length.
pub(crate) const GRID: f32 = 32000.0;

/// How far above 1 the length of a "unit" vector may lie through float rounding.
pub(crate) const UNIT_SLACK: f64 = 1e-5;

/// Widest vectors for which the proof above holds: `32000.32 + sqrt(2^24) / 2 < sqrt(2^31)`.
pub(crate) const MAX_COLS: usize = 1 << 24;

/// Queries in one register tile.
pub(crate) const TILE_QUERIES: usize = 6;

/// Rows in one register tile: two AVX2 vectors of i32.
pub(crate) const TILE_ROWS: usize = 16;

/// The products of one register tile, one line per query.
pub(crate) type Tile = [[i32; TILE_ROWS]; TILE_QUERIES];

/// `tile (+)= a · bᵀ` over some columns. A word holds two neighbouring columns as i16, the first
/// in the low half. `a` holds `TILE_QUERIES` words and `b` `TILE_ROWS` words per pair of columns;
/// the shorter of the two decides. The flag says whether to add to `tile` or to overwrite it.
pub(crate) type TileKernel = fn(a: &[i32], b: &[i32], tile: &mut Tile, add: bool);

/// The i16 x i16 -> i32 tile kernel of an instruction set. All of them give the same integers.
#[derive(Clone, Copy)]
pub(crate) struct Gemm16 {
    tile: TileKernel,
}

impl Gemm16 {
    /// The kernel for `isa`; the scalar twin where that has none of its own.
    pub(crate) fn new(isa: Isa) -> Self {
        Self { tile: crate::arch::tile_i16(isa).unwrap_or(tile_scalar) }
    }
}

/// The truth that every other tile kernel is tested against.
pub(crate) fn tile_scalar(a: &[i32], b: &[i32], tile: &mut Tile, add: bool) {
    if !add {
        *tile = [[0; TILE_ROWS]; TILE_QUERIES];
    }
    let (a, b) = (a.as_chunks::<TILE_QUERIES>().0, b.as_chunks::<TILE_ROWS>().0);
    for (a, b) in a.iter().zip(b) {
        for (line, &word) in tile.iter_mut().zip(a) {
            let (first, second) = split(word);
            for (sum, &word) in line.iter_mut().zip(b) {
                let (left, right) = split(word);
                *sum += first * left + second * right;
            }
        }
    }
}

/// The two columns of a word.
fn split(word: i32) -> (i32, i32) {
    (i32::from(word as i16), word >> 16)
}

/// One word of two neighbouring columns.
fn join(first: i16, second: i16) -> i32 {
    i32::from(second) << 16 | i32::from(first as u16)
}

#[cfg(test)]
mod tests;
