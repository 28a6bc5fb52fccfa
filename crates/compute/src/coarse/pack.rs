//! Rounding vectors to the integer grid, and the panels that the tile kernel reads.

use super::{GRID, MAX_COLS, TILE_QUERIES, TILE_ROWS, join};
use crate::ComputeError;

/// Elements rounded at a time; any even number would do.
const STEP: usize = 32;

/// Adding and subtracting this rounds a float below 2²² to the nearest integer, and after the
/// addition the low 16 bits of the float are that integer in two's complement. Unlike
/// `f32::round` it needs no instruction beyond the baseline, so the loop vectorises everywhere.
const ROUND: f32 = 12_582_912.0; // 1.5 · 2²³

/// Rounds `x * scale * GRID` and hands out one word per pair of columns. Returns an upper bound of
/// the distance between the rounded and the exact vector, in grid steps.
///
/// The caller promises that `x * scale` has length at most 1 + `UNIT_SLACK`.
fn quantize(x: &[f32], scale: f32, mut store: impl FnMut(usize, i32)) -> f64 {
    let factor = scale * GRID;
    let mut squares = [0.0_f32; STEP];
    let mut padded = [0.0_f32; STEP];
    for (i, chunk) in x.chunks(STEP).enumerate() {
        let chunk = chunk.first_chunk::<STEP>().unwrap_or_else(|| {
            padded = [0.0; STEP];
            padded[..chunk.len()].copy_from_slice(chunk);
            &padded
        });
        let mut whole = [0_i16; STEP];
        for ((&value, whole), square) in chunk.iter().zip(&mut whole).zip(&mut squares) {
            let exact = value * factor;
            let shifted = exact + ROUND;
            *whole = shifted.to_bits() as i16;
            let lost = exact - (shifted - ROUND);
            *square += lost * lost;
        }
        let pairs = (x.len() - i * STEP).div_ceil(2);
        for (j, pair) in whole.as_chunks::<2>().0.iter().enumerate().take(pairs) {
            store(i * STEP / 2 + j, join(pair[0], pair[1]));
        }
    }
    // The sums of squares are float32 themselves: `cols / STEP` additions a lane, each off by at
    // most 2⁻²⁴. The two products (`scale * GRID`, `value * factor`) each lose 2⁻²⁴ of the
    // vector's length, GRID at most.
    let sum: f64 = squares.iter().map(|&s| f64::from(s)).sum();
    let rounding = (x.len() / STEP + 4) as f64 * f64::from(f32::EPSILON);
    sum.sqrt() * (1.0 + rounding) + 2.0 * f64::from(GRID) * f64::from(f32::EPSILON)
}

/// `TILE_ROWS` rows on the integer grid, interleaved for the tile kernel.
#[derive(Debug, Clone)]
pub struct RowPanel {
    cols: usize,
    /// Rows in use; the others are zero.
    rows: usize,
    /// Upper bound of the rounding distance of every row, in grid steps.
    error: f64,
    words: Vec<i32>, // [cols / 2, TILE_ROWS]
}

impl RowPanel {
    /// Rows that a panel holds.
    pub const ROWS: usize = TILE_ROWS;

    /// An empty panel for rows of `cols` elements. Panics where `cols` exceeds 2²⁴,
    /// beyond which sums could overflow.
    pub fn new(cols: usize) -> Self {
        assert!(cols <= MAX_COLS, "{cols} columns");
        Self { cols, rows: 0, error: 0.0, words: vec![0; cols.div_ceil(2) * TILE_ROWS] }
    }

    /// Empties the panel, keeping its memory.
    pub fn clear(&mut self) {
        self.rows = 0;
        self.error = 0.0;
        self.words.fill(0);
    }

    /// Adds the row `x * scale`, whose length is at most 1. A row that is to count as zero takes
    /// `scale` 0.
    ///
    /// # Errors
    /// `x` of another length than `cols`; a value that is not finite.
    ///
    /// Panics where the panel is full.
    pub fn push(&mut self, x: &[f32], scale: f32) -> Result<(), ComputeError> {
        assert!(self.rows < TILE_ROWS, "the panel is full");
        check(x, self.cols)?;
        let (lane, words) = (self.rows, &mut self.words);
        let error = quantize(x, scale, |pair, word| words[pair * TILE_ROWS + lane] = word);
        self.error = self.error.max(error);
        self.rows += 1;
        Ok(())
    }

    /// Rows in use.
    pub fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn cols(&self) -> usize {
        self.cols
    }

    pub(super) fn error(&self) -> f64 {
        self.error
    }

    pub(super) fn words(&self) -> &[i32] {
        &self.words
    }
}

/// Any number of queries on the integer grid, in panels of `TILE_QUERIES`.
#[derive(Debug, Clone)]
pub struct Queries {
    cols: usize,
    words: Vec<i32>, // [panels, cols / 2, TILE_QUERIES]
    /// Upper bound of the rounding distance of each query, in grid steps.
    errors: Vec<f64>,
}

impl Queries {
    /// No queries yet, of `cols` elements each. Panics where `cols` exceeds 2²⁴,
    /// beyond which sums could overflow.
    pub fn new(cols: usize) -> Self {
        assert!(cols <= MAX_COLS, "{cols} columns");
        Self { cols, words: Vec::new(), errors: Vec::new() }
    }

    /// Bytes that one query takes.
    pub fn bytes_per_query(cols: usize) -> usize {
        cols.div_ceil(2) * size_of::<i32>()
    }

    /// Removes all queries, keeping the memory.
    pub fn clear(&mut self) {
        self.words.clear();
        self.errors.clear();
    }

    /// Adds the query `x * scale`, whose length is at most 1.
    ///
    /// # Errors
    /// `x` of another length than `cols`; a value that is not finite.
    pub fn push(&mut self, x: &[f32], scale: f32) -> Result<(), ComputeError> {
        check(x, self.cols)?;
        let lane = self.errors.len() % TILE_QUERIES;
        if lane == 0 {
            self.words.resize(self.words.len() + self.panel_words(), 0);
        }
        let first = self.words.len() - self.panel_words();
        let panel = &mut self.words[first..];
        let error = quantize(x, scale, |pair, word| panel[pair * TILE_QUERIES + lane] = word);
        self.errors.push(error);
        Ok(())
    }

    /// Number of queries.
    pub fn len(&self) -> usize {
        self.errors.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// Elements in a query.
    pub fn cols(&self) -> usize {
        self.cols
    }

    pub(super) fn error(&self, query: usize) -> f64 {
        self.errors[query]
    }

    /// Words of the panel of queries `TILE_QUERIES * panel ..`.
    pub(super) fn panel(&self, panel: usize) -> &[i32] {
        &self.words[panel * self.panel_words()..(panel + 1) * self.panel_words()]
    }

    fn panel_words(&self) -> usize {
        self.cols.div_ceil(2) * TILE_QUERIES
    }
}

/// The right length, and finite throughout.
fn check(x: &[f32], cols: usize) -> Result<(), ComputeError> {
    if x.len() != cols {
        return Err(ComputeError::VectorLength { what: "vector", expected: cols, found: x.len() });
    }
    // The sum of `0 * x` is zero exactly where everything is finite, and it vectorises.
    let mut lanes = [0.0_f32; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += value * 0.0;
        }
    }
    let sum: f32 = lanes.iter().sum::<f32>() + rest.iter().map(|v| v * 0.0).sum::<f32>();
    if sum == 0.0 {
        return Ok(());
    }
    let position = x.iter().position(|v| !v.is_finite()).unwrap_or(0);
    Err(ComputeError::NotFinite { what: "vector", position, value: x[position] })
}
