//! Coarse planes of an LM head: a copy of its rows at about 4.5 bits an element with a proven bound
//! on its error, so that the best rows are found **exactly** while most of the head stays unread.
//!
//! Of each row the mean row is taken off (it shifts all scores alike); the columns are sorted by
//! how large the hidden state usually is there, and cut into uneven segments. The hottest 32
//! columns are kept at 8 bits, the others at 4 bits by a code of 16 levels, with a scale and the
//! length of the error for each row and segment. docs/NUMERICS.md has the proof of the bound.

mod build;
mod scan;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub use build::{ColumnOrder, build_planes, mean_row};
pub use scan::{HeadPlanes, PlanesTopK};

/// Rows that stand together in a block, one to a lane.
pub(crate) const LANES: usize = 16;
/// Columns of a word of the kernels: four products, summed.
pub(crate) const WORD: usize = 4;
/// Columns kept at 8 bits.
const HOT: usize = 32;
/// Widest segment: the sums of its products fit 32 bits.
const WIDEST: usize = 512;
/// What is subtracted from a code of 8 bits, and from the level of a code of 4 bits.
pub(crate) const HOT_OFFSET: i32 = 128;
pub(crate) const LEVEL_OFFSET: i32 = 64;
/// The levels of the 4-bit code, plus [`LEVEL_OFFSET`]: the best 16 for normally distributed values
/// (Lloyd and Max), of which 23 stand for one standard deviation.
pub(crate) const LEVELS: [u8; 16] =
    [1, 16, 27, 35, 42, 49, 55, 61, 67, 73, 79, 86, 93, 101, 112, 127];
/// A stored error is this often the scale and the root of the segment's columns, for each of its
/// 255 steps: no rounding to a level is off by more than 8, none to 8 bits by more than 0.6.
const COLD_ERROR: f64 = 8.0 / 255.0;
const HOT_ERROR: f64 = 0.6 / 255.0;

/// Where everything stands in the planes of a head of some width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanesLayout {
    cols: usize,
    padded: usize,
    /// Ranges of the sorted columns; the first `n_hot` at 8 bits.
    segments: Vec<Range<usize>>,
    n_hot: usize,
}

impl PlanesLayout {
    /// The layout for rows of `cols` elements.
    pub fn new(cols: usize) -> Self {
        let padded = cols.next_multiple_of(2 * WORD);
        let mut ends = vec![8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024];
        while ends[ends.len() - 1] < padded {
            ends.push(ends[ends.len() - 1] + WIDEST);
        }
        let (mut segments, mut start) = (Vec::new(), 0);
        for end in ends {
            let end = end.min(padded);
            if start < end {
                segments.push(start..end);
                start = end;
            }
        }
        let n_hot = segments.iter().filter(|segment| segment.end <= HOT).count();
        Self { cols, padded, segments, n_hot }
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Blocks for `rows` rows.
    pub fn n_blocks(rows: usize) -> usize {
        rows.div_ceil(LANES)
    }

    /// Bytes of the codes, scales and errors of 16 rows.
    pub fn block_bytes(&self) -> usize {
        (self.errors() + LANES * self.segments.len()).next_multiple_of(64)
    }

    /// Columns at 8 bits.
    pub(crate) fn hot(&self) -> usize {
        self.segments[..self.n_hot].last().map_or(0, |segment| segment.end)
    }

    /// Bytes before the 4-bit codes.
    fn cold_codes(&self) -> usize {
        LANES * self.hot()
    }

    /// Bytes before the scales: a bfloat16 for each segment and row.
    pub(crate) fn scales(&self) -> usize {
        self.cold_codes() + LANES * (self.padded - self.hot()) / 2
    }

    /// Bytes before the errors: a byte for each segment and row.
    pub(crate) fn errors(&self) -> usize {
        self.scales() + 2 * LANES * self.segments.len()
    }

    /// The unit of the stored error of segment `s`, in scales.
    fn error_unit(&self, s: usize) -> f64 {
        let unit = if s < self.n_hot { HOT_ERROR } else { COLD_ERROR };
        unit * (self.segments[s].len() as f64).sqrt()
    }
}

/// What the kernels know of a query.
pub(crate) struct PlanesQuery {
    /// The sorted vector is `scale * (128 * high + low)`, in words of four columns.
    pub(crate) high: Vec<i32>,
    pub(crate) low: Vec<i32>,
    pub(crate) segments: Vec<QuerySegment>,
    pub(crate) scales_at: usize,
    pub(crate) errors_at: usize,
}

/// One segment of a query.
#[derive(Debug, Clone)]
pub(crate) struct QuerySegment {
    /// Words of columns.
    pub(crate) words: Range<usize>,
    /// Where the codes begin in a block.
    pub(crate) codes_at: usize,
    /// Whether the codes have 8 bits.
    pub(crate) hot: bool,
    /// What the offset of the codes adds to the sums, negated.
    pub(crate) start_high: i32,
    pub(crate) start_low: i32,
    /// Factor of the products.
    pub(crate) scale: f32,
    /// Factor of the stored errors.
    pub(crate) error: f32,
}

/// The estimates of 16 rows, and how far off they can be but for rounding.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Estimates {
    pub(crate) score: [f32; LANES],
    pub(crate) error: [f32; LANES],
}

/// Estimates of a block; the same bits on every instruction set.
pub(crate) type PlanesKernel = fn(&[u8], &PlanesQuery, &mut Estimates);

/// The scalar twin of the kernels.
#[inline]
pub(crate) fn estimate(block: &[u8], query: &PlanesQuery, out: &mut Estimates) {
    *out = Estimates::default();
    for (s, segment) in query.segments.iter().enumerate() {
        let (mut high, mut low) = ([segment.start_high; LANES], [segment.start_low; LANES]);
        let codes = &block[segment.codes_at..];
        let mut add = |word: usize, level: &dyn Fn(usize) -> i32| {
            let (h, l) = (query.high[word].to_le_bytes(), query.low[word].to_le_bytes());
            for lane in 0..LANES {
                for j in 0..WORD {
                    let code = level(WORD * lane + j);
                    high[lane] += code * i32::from(h[j].cast_signed());
                    low[lane] += code * i32::from(l[j].cast_signed());
                }
            }
        };
        if segment.hot {
            for (word, codes) in segment.words.clone().zip(codes.as_chunks::<64>().0) {
                add(word, &|i| i32::from(codes[i]));
            }
        } else {
            for (pair, codes) in
                codes.as_chunks::<64>().0[..segment.words.len() / 2].iter().enumerate()
            {
                let word = segment.words.start + 2 * pair;
                add(word, &|i| i32::from(LEVELS[usize::from(codes[i] & 15)]));
                add(word + 1, &|i| i32::from(LEVELS[usize::from(codes[i] >> 4)]));
            }
        }
        for lane in 0..LANES {
            let at = query.scales_at + 2 * (LANES * s + lane);
            let scale =
                f32::from_bits(u32::from(u16::from_le_bytes([block[at], block[at + 1]])) << 16);
            let error = f32::from(block[query.errors_at + LANES * s + lane]);
            let sum = ((high[lane] << 7) + low[lane]) as f32;
            out.score[lane] = sum.mul_add(scale * segment.scale, out.score[lane]);
            out.error[lane] = error.mul_add(scale * segment.error, out.error[lane]);
        }
    }
}
