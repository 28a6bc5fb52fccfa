//! The scan of the planes, and the rows that it could not rule out.

use std::sync::{Mutex, PoisonError};

use super::{
    ColumnOrder, Estimates, HOT_OFFSET, LANES, LEVEL_OFFSET, PlanesLayout, PlanesQuery,
    QuerySegment, WORD,
};
use crate::arch::planes_kernel;
use crate::pool::Ranges;
use crate::{ComputeError, Cpu, Matrix, Order, Scored, TopK};

/// Blocks that one worker takes at a time.
const GRAIN: usize = 64;
/// Rows that are scored first beyond the `k` asked for: on real heads the best rows are among the
/// `2 k` best estimates.
const EXTRA: usize = 24;
/// A share of the rows, one in so many, from which on reading them one by one is slower than
/// reading all.
const WORTH: usize = 8;
/// Products of lengths from which on a float32 sum might overflow.
const HUGE: f32 = 1e30;
/// Hidden states shorter than this lose too much to underflow.
const TINY: f64 = 1e-20;
/// More than all that underflow can take away from a score of any width.
const UNDERFLOW: f64 = 1e-27;
/// Half the distance of float32 from 1 to the next number.
const ROUNDING: f64 = 1.0 / 16_777_216.0;

/// The planes of a head.
#[derive(Debug, Clone, Copy)]
pub struct HeadPlanes<'a> {
    layout: &'a PlanesLayout,
    order: &'a ColumnOrder,
    mean: &'a [f32],
    norms: &'a [f32],
    blocks: &'a [u8],
}

/// What a scan of the planes found.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanesTopK {
    /// The best rows, best first, ties by lower row.
    pub rows: Vec<Scored>,
    /// Rows of the head that were read.
    pub rescored: usize,
}

impl<'a> HeadPlanes<'a> {
    /// Planes as [`build_planes`](super::build_planes) made them.
    ///
    /// # Errors
    /// Lengths that do not fit each other.
    pub fn new(
        layout: &'a PlanesLayout,
        order: &'a ColumnOrder,
        mean: &'a [f32],
        norms: &'a [f32],
        blocks: &'a [u8],
    ) -> Result<Self, ComputeError> {
        crate::cpu::check_len("the column order", layout.cols, order.columns().len())?;
        crate::cpu::check_len("the mean row", layout.cols, mean.len())?;
        crate::cpu::check_len("the planes", norms.len() * layout.block_bytes(), blocks.len())?;
        Ok(Self { layout, order, mean, norms, blocks })
    }

    /// Bytes that every scan reads.
    pub fn bytes(&self) -> usize {
        self.blocks.len() + size_of_val(self.norms)
    }

    /// The rows of `m`, the head that the planes were made from, with the `k` highest dot products
    /// with `h` (`[cols]`): those of [`Cpu::top_k_rows`], to the bit. `None` where the planes
    /// cannot tell or too many rows are left: the head must be read then.
    ///
    /// `uppers` is scratch, `[rows]`.
    ///
    /// # Errors
    /// Wrong lengths.
    pub fn top_k(
        &self,
        cpu: &Cpu,
        m: Matrix<'_>,
        h: &[f32],
        k: usize,
        uppers: &mut Vec<f32>,
    ) -> Result<Option<PlanesTopK>, ComputeError> {
        crate::cpu::check_len("the vector", self.layout.cols, h.len())?;
        crate::cpu::check_len("the norms", PlanesLayout::n_blocks(m.rows()), self.norms.len())?;
        crate::cpu::check_len("the columns", self.layout.cols, m.cols())?;
        if k == 0 || k.saturating_add(EXTRA) >= m.rows() / WORTH {
            return Ok(None);
        }
        let Some((query, slack)) = self.query(h) else { return Ok(None) };
        let seeds = self.estimates(cpu, m.rows(), &query, slack, 2 * k + EXTRA, uppers);
        let Some(best) = rescore(cpu, m, h, k, &seeds) else { return Ok(None) };
        // Scores and estimates differ by what the mean row gives, the same for all.
        let mean: f64 = self.mean.iter().zip(h).map(|(m, h)| f64::from(*m) * f64::from(*h)).sum();
        let left_out = f64::from(best.threshold()) - mean - slack.fixed;
        let threshold = (left_out as f32).next_down();
        // Scored already, and below every threshold that leaves a row out.
        seeds.iter().for_each(|&row| uppers[row] = f32::NEG_INFINITY);
        let mut left: Vec<usize> = Vec::new();
        for (i, uppers) in uppers.chunks(LANES).enumerate() {
            // Written so that NaN stays in.
            if uppers.iter().all(|upper| *upper < threshold) {
                continue;
            }
            let rows = uppers
                .iter()
                .enumerate()
                .filter(|(_, upper)| upper.is_nan() || **upper >= threshold);
            left.extend(rows.map(|(lane, _)| LANES * i + lane));
            if left.len() > m.rows() / WORTH {
                return Ok(None);
            }
        }
        let Some(mut all) = rescore(cpu, m, h, k, &left) else { return Ok(None) };
        let rescored = seeds.len() + left.len();
        all.merge(best);
        Ok(Some(PlanesTopK { rows: all.into_sorted(), rescored }))
    }

    /// The rows with the `n` best estimates; fills `uppers` with a bound of every row's score.
    fn estimates(
        &self,
        cpu: &Cpu,
        rows: usize,
        query: &PlanesQuery,
        slack: Slack,
        n: usize,
        uppers: &mut Vec<f32>,
    ) -> Vec<usize> {
        uppers.resize(rows, 0.0);
        let kernel = planes_kernel(cpu.isa()).unwrap_or(super::estimate);
        let best = Mutex::new(TopK::new(n, Order::Signed));
        let size = self.layout.block_bytes();
        let chunks: Vec<Mutex<&mut [f32]>> =
            uppers.chunks_mut(GRAIN * LANES).map(Mutex::new).collect();
        let ranges = Ranges::new(chunks.len(), 1);
        cpu.pool().run(|_, _| {
            let mut top = TopK::new(n, Order::Signed);
            let mut out = Estimates::default();
            while let Some(range) = ranges.next() {
                let chunk = range.start;
                let mut uppers = chunks[chunk].lock().unwrap_or_else(PoisonError::into_inner);
                for (i, uppers) in uppers.chunks_mut(LANES).enumerate() {
                    let block = chunk * GRAIN + i;
                    let norm = self.norms[block];
                    let lengths = norm * slack.length;
                    if lengths.is_nan() || lengths >= HUGE {
                        uppers.fill(f32::INFINITY);
                        continue;
                    }
                    kernel(&self.blocks[block * size..][..size], query, &mut out);
                    let slack = norm * slack.relative;
                    let bounds = out.score.iter().zip(&out.error);
                    for (upper, (score, error)) in uppers.iter_mut().zip(bounds) {
                        *upper = score + error + slack;
                    }
                    let threshold = top.threshold();
                    if out.score.iter().any(|score| *score >= threshold) {
                        for (lane, score) in out.score[..uppers.len()].iter().enumerate() {
                            // Below HUGE nothing is NaN.
                            let _ = top.push(LANES * block + lane, *score);
                        }
                    }
                }
            }
            best.lock().unwrap_or_else(PoisonError::into_inner).merge(top);
        });
        let best = best.into_inner().unwrap_or_else(PoisonError::into_inner);
        best.into_sorted().into_iter().map(|scored| scored.row).collect()
    }

    /// `h` as the kernels want it, and how far off estimates are on account of it and of rounding.
    /// `None` where it is not finite or too large.
    fn query(&self, h: &[f32]) -> Option<(PlanesQuery, Slack)> {
        let layout = self.layout;
        let mut sorted = vec![0.0_f64; layout.padded];
        for (to, &column) in sorted.iter_mut().zip(self.order.columns()) {
            *to = f64::from(h[column as usize]);
        }
        let length = sorted.iter().map(|v| v * v).sum::<f64>().sqrt();
        if !(TINY..f64::from(HUGE)).contains(&length) {
            return None;
        }
        let (mut high, mut low) = (vec![0_i8; layout.padded], vec![0_i8; layout.padded]);
        let mut segments = Vec::with_capacity(layout.segments.len());
        let mut off = 0.0;
        for (s, segment) in layout.segments.iter().enumerate() {
            let values = &sorted[segment.clone()];
            let largest = values.iter().fold(0.0_f64, |m, v| m.max(v.abs()));
            // 16,191 = 127 * 127 + 62: the high digit stays within a byte.
            let scale = (largest / 16_191.0) as f32;
            let usable = scale > 1e-30;
            let scale = if usable { scale } else { 0.0 };
            let (mut sum_high, mut sum_low) = (0, 0);
            for (i, value) in values.iter().enumerate() {
                let q = if usable {
                    ((value / f64::from(scale)).round() as i32).clamp(-16_191, 16_191)
                } else {
                    0
                };
                let digit = (q + 64) >> 7;
                let rest = q - (digit << 7);
                high[segment.start + i] = digit as i8;
                low[segment.start + i] = rest as i8;
                sum_high += digit;
                sum_low += rest;
                off += (value - f64::from(scale) * f64::from(q)).powi(2);
            }
            let hot = s < layout.n_hot;
            let offset = if hot { HOT_OFFSET } else { LEVEL_OFFSET };
            let own = values.iter().map(|v| v * v).sum::<f64>().sqrt();
            let codes_at = if hot {
                LANES * segment.start
            } else {
                layout.cold_codes() + LANES * (segment.start - layout.hot()) / 2
            };
            segments.push(QuerySegment {
                words: segment.start / WORD..segment.end / WORD,
                codes_at,
                hot,
                start_high: -offset * sum_high,
                start_low: -offset * sum_low,
                scale,
                // The factor covers every rounding of the sum of errors.
                error: (own * layout.error_unit(s) * (1.0 + 1.0 / 65_536.0)) as f32,
            });
        }
        let words = |digits: &[i8]| -> Vec<i32> {
            let words = digits.as_chunks::<WORD>().0.iter();
            words.map(|w| i32::from_le_bytes(w.map(i8::cast_unsigned))).collect()
        };
        let roundings = (layout.cols / 32 + 2 * segments.len() + 48) as f64;
        let relative = off.sqrt() * 1.001 + roundings * 2.0 * ROUNDING * length;
        // Blocks of infinite norm never get here, so the product of two mean lengths is enough.
        let mean = self.mean.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        let slack = Slack {
            length: (length * 1.001) as f32,
            relative: relative as f32,
            fixed: UNDERFLOW + mean * length * (layout.cols as f64) * f64::EPSILON,
        };
        let query = PlanesQuery {
            high: words(&high),
            low: words(&low),
            segments,
            scales_at: layout.scales(),
            errors_at: layout.errors(),
        };
        Some((query, slack))
    }
}

#[cfg(test)]
impl HeadPlanes<'_> {
    pub(super) fn query_for_test(&self, h: &[f32]) -> PlanesQuery {
        self.query(h).expect("a finite query").0
    }
}

/// How far estimates may be off besides the stored errors.
#[derive(Debug, Clone, Copy)]
struct Slack {
    /// No less than the length of the hidden state.
    length: f32,
    /// For each unit of a block's norm.
    relative: f32,
    /// For every row.
    fixed: f64,
}

/// The best `k` of these rows, by the canonical dot product; `None` where one is NaN.
fn rescore(cpu: &Cpu, m: Matrix<'_>, h: &[f32], k: usize, rows: &[usize]) -> Option<TopK> {
    let best = Mutex::new(Some(TopK::new(k, Order::Signed)));
    cpu.pool().parallel_for(rows.len(), 32, |range| {
        let mut top = TopK::new(k, Order::Signed);
        let scored = rows[range]
            .iter()
            .try_for_each(|&r| top.push(r, cpu.kernels().dot(m.dtype(), m.row_bytes(r), h)));
        let mut best = best.lock().unwrap_or_else(PoisonError::into_inner);
        match scored {
            Ok(()) => best.iter_mut().for_each(|best| best.merge(top.clone())),
            Err(_) => *best = None,
        }
    });
    best.into_inner().unwrap_or_else(PoisonError::into_inner)
}
