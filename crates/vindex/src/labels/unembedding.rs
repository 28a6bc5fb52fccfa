//! The unembedding rows as labels see them, and the score of a token for a direction.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use larql_compute::{
    CoarseScan, ComputeError, Cpu, Dtype, Extremes, Matrix, Order, Queries, RowPanel, TopK,
};
use zerocopy::IntoBytes;

use super::directions::{Direction, Directions};
use crate::search::norm::length;

/// Bytes of packed rows that are held at a time.
const PANEL_BYTES: usize = 4 << 20;

/// Rows that one worker takes at a time. Sums over rows are formed in blocks of this many, so that
/// they do not depend on the number of threads.
const GRAIN: usize = 1024;

/// Rows shorter than this count as zero: their scores would drown in the rounding of subnormals.
const SHORTEST: f64 = 1.0 / (1u128 << 100) as f64;

/// Rows longer than this are refused: their products leave the range of float32.
const LONGEST: f64 = (1u128 << 100) as f64;

/// How a token is scored for a feature's output direction `d`, given its unembedding row `u`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LabelScore {
    /// `u·d / (|u| |d|)`: which token points the same way. The default.
    #[default]
    Cosine,
    /// `u·d`: the logit that the feature adds, up to the norms' scalar factors. Long rows win.
    Dot,
    /// The cosine after the mean row was subtracted from every row: tokens that all directions
    /// resemble fall back.
    Centred,
}

impl LabelScore {
    /// Every score, in the order of their codes in `down_meta.bin`.
    pub const ALL: [Self; 3] = [Self::Cosine, Self::Dot, Self::Centred];

    /// The name used in flags and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cosine => "cosine",
            Self::Dot => "dot",
            Self::Centred => "centred",
        }
    }

    /// The score of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|score| score.name() == name)
    }

    /// Its number in `down_meta.bin`.
    pub(super) const fn code(self) -> u32 {
        self as u32
    }
}

impl std::fmt::Display for LabelScore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The rows of an unembedding, with what every score needs of them.
pub(super) struct Unembedding<'a> {
    cpu: &'a Cpu,
    rows: Matrix<'a>,
    score: LabelScore,
    /// Length of each row (less the mean row); 0 for rows that count as zero.
    lengths: Vec<f32>,
    /// The mean row; empty unless it is subtracted.
    mean: Vec<f32>,
    /// The greatest of `lengths`.
    longest: f32,
}

impl<'a> Unembedding<'a> {
    /// Reads all rows once.
    ///
    /// # Errors
    /// A row with a value that is not finite, or so long that its products would not be, named by
    /// its index as the position.
    pub(super) fn new(
        cpu: &'a Cpu,
        rows: Matrix<'a>,
        score: LabelScore,
    ) -> Result<Self, ComputeError> {
        let mean = match score {
            LabelScore::Centred => mean_row(cpu, rows)?,
            LabelScore::Cosine | LabelScore::Dot => Vec::new(),
        };
        let mut this = Self { cpu, rows, score, lengths: Vec::new(), mean, longest: 0.0 };
        let mut lengths = vec![0.0; rows.rows()];
        let outcome = Mutex::new(Ok(()));
        cpu.pool().for_each_chunk(&mut lengths, GRAIN, |first, lengths| {
            let mut row = vec![0.0; rows.cols()];
            let measured = lengths.iter_mut().enumerate().try_for_each(|(i, length)| {
                this.vector(first + i, &mut row)?;
                *length = row_length(&row, first + i)?;
                Ok(())
            });
            record(&outcome, measured);
        });
        outcome.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        this.longest = lengths.iter().fold(0.0, |a, &b| a.max(b));
        this.lengths = lengths;
        Ok(this)
    }

    /// Number of tokens.
    pub(super) fn n_tokens(&self) -> usize {
        self.rows.rows()
    }

    /// Elements of a row.
    pub(super) fn cols(&self) -> usize {
        self.rows.cols()
    }

    /// The row of a token as the score sees it, into `out`.
    fn vector(&self, token: usize, out: &mut [f32]) -> Result<(), ComputeError> {
        self.cpu.row(self.rows, token, out)?;
        // Without centring the mean is empty, and nothing happens here.
        out.iter_mut().zip(&self.mean).for_each(|(v, mean)| *v -= mean);
        Ok(())
    }

    /// What tokens are ranked by: the canonical dot product, divided by the two lengths where the
    /// score is a cosine. `direction` is scaled to a length in [1, 2), so nothing overflows.
    fn rank(&self, token: usize, direction: &Direction<'_>) -> Result<f32, ComputeError> {
        let length = self.lengths[token];
        if length == 0.0 || direction.length == 0.0 {
            return Ok(0.0);
        }
        let dot = if self.mean.is_empty() {
            self.cpu.dot_row(self.rows, token, direction.values)?
        } else {
            let mut row = vec![0.0_f32; self.cols()];
            self.vector(token, &mut row)?;
            let row = Matrix::new(Dtype::F32, 1, row.len(), row.as_bytes())?;
            self.cpu.dot_row(row, 0, direction.values)?
        };
        Ok(self.to_rank(dot, length, direction))
    }

    fn to_rank(&self, dot: f32, length: f32, direction: &Direction<'_>) -> f32 {
        match self.score {
            LabelScore::Dot => dot,
            LabelScore::Cosine | LabelScore::Centred => {
                (f64::from(dot) / (f64::from(length) * f64::from(direction.length))) as f32
            }
        }
    }

    /// Ranks to scores: undoes the scaling of the direction.
    fn to_scores(&self, extremes: &mut Extremes, direction: &Direction<'_>) {
        if self.score == LabelScore::Dot {
            for (_, score) in extremes.highest.iter_mut().chain(&mut extremes.lowest) {
                *score = (f64::from(*score) * direction.power) as f32;
            }
        }
    }

    /// The answer for a direction that writes nothing: all scores are 0, so the lowest ids.
    fn nothing(&self, k: usize) -> Extremes {
        let zeros: Vec<_> = (0..self.n_tokens().min(k) as u32).map(|t| (t, 0.0)).collect();
        Extremes { highest: zeros.clone(), lowest: zeros }
    }

    /// The `k` highest and lowest tokens of each direction by scoring every token: for a few
    /// directions, and the truth that [`Unembedding::scan`] is tested against.
    pub(super) fn score_all(
        &self,
        directions: &Directions,
        k: usize,
    ) -> Result<Vec<Extremes>, ComputeError> {
        let empty = || {
            let top = || TopK::new(k, Order::Signed);
            (0..directions.len()).map(|_| (top(), top())).collect::<Vec<_>>()
        };
        let best = Mutex::new(empty());
        let outcome = Mutex::new(Ok(()));
        self.cpu.pool().parallel_for(self.n_tokens(), GRAIN, |tokens| {
            let mut mine = empty();
            let scored = self.score_range(tokens, directions, &mut mine);
            let failed = scored.is_err();
            record(&outcome, scored);
            if !failed {
                let mut best = best.lock().unwrap_or_else(PoisonError::into_inner);
                for (best, (high, low)) in best.iter_mut().zip(mine) {
                    best.0.merge(high);
                    best.1.merge(low);
                }
            }
        });
        outcome.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        let best = best.into_inner().unwrap_or_else(PoisonError::into_inner);
        let pairs = |top: TopK, sign: f32| -> Vec<(u32, f32)> {
            // `+ 0.0` turns the -0 that a negated 0 is into 0.
            top.into_sorted().iter().map(|s| (s.row as u32, s.score * sign + 0.0)).collect()
        };
        Ok(best
            .into_iter()
            .enumerate()
            .map(|(i, (high, low))| {
                let mut extremes = Extremes { highest: pairs(high, 1.0), lowest: pairs(low, -1.0) };
                self.to_scores(&mut extremes, &directions.get(i));
                extremes
            })
            .collect())
    }

    fn score_range(
        &self,
        tokens: Range<usize>,
        directions: &Directions,
        best: &mut [(TopK, TopK)],
    ) -> Result<(), ComputeError> {
        let mut row = vec![0.0_f32; self.cols()];
        for token in tokens {
            self.vector(token, &mut row)?;
            let vector = Matrix::new(Dtype::F32, 1, row.len(), row.as_bytes())?;
            for (i, (high, low)) in best.iter_mut().enumerate() {
                let (direction, length) = (directions.get(i), self.lengths[token]);
                let rank = if length == 0.0 || direction.length == 0.0 {
                    0.0
                } else {
                    let dot = self.cpu.dot_row(vector, 0, direction.values)?;
                    self.to_rank(dot, length, &direction)
                };
                high.push(token, rank)?;
                low.push(token, -rank)?;
            }
        }
        Ok(())
    }

    /// The same answer for many directions through the coarse scan, and how many scores it took.
    /// `step` hears after each block how many tokens are done, and stops the scan by `false`; the
    /// answer is then `None`.
    pub(super) fn scan(
        &self,
        directions: &Directions,
        k: usize,
        mut step: impl FnMut(usize) -> bool,
    ) -> Result<Option<(Vec<Extremes>, u64)>, ComputeError> {
        let mut queries = Queries::new(self.cols());
        let mut live = Vec::with_capacity(directions.len());
        for (i, direction) in directions.iter().enumerate() {
            if direction.length > 0.0 {
                queries.push(direction.values, 1.0 / direction.length)?;
                live.push(i);
            }
        }
        let rescore = |query: usize, token: usize| self.rank(token, &directions.get(live[query]));
        // Rounding of the canonical dot product: chains of cols / 32 fused additions, then five
        // more, 2⁻²⁴ each; a few more for lengths and the division; doubled for good measure.
        let slack = (self.cols() as f64 / 32.0 + 16.0) * f64::from(f32::EPSILON);
        let mut scan = CoarseScan::new(self.cpu, &queries, k, &rescore, slack);
        let panel_bytes = RowPanel::ROWS * self.cols().div_ceil(2) * size_of::<i32>();
        let n_panels = (PANEL_BYTES / panel_bytes.max(1))
            .clamp(8, 4096)
            .min(self.n_tokens().div_ceil(RowPanel::ROWS));
        let mut panels = vec![RowPanel::new(self.cols()); n_panels];
        let mut done = 0;
        while done < self.n_tokens() {
            let n = (self.n_tokens() - done).min(n_panels * RowPanel::ROWS);
            let used = &mut panels[..n.div_ceil(RowPanel::ROWS)];
            self.pack(used, done..done + n)?;
            scan.scan(used)?;
            done += n;
            if !step(done) {
                return Ok(None);
            }
        }
        let found = scan.finish()?;
        let mut answers: Vec<_> = (0..directions.len()).map(|_| None).collect();
        for (&i, mut extremes) in live.iter().zip(found.extremes) {
            self.to_scores(&mut extremes, &directions.get(i));
            answers[i] = Some(extremes);
        }
        let answers = answers.into_iter().map(|a| a.unwrap_or_else(|| self.nothing(k))).collect();
        Ok(Some((answers, found.rescored)))
    }

    /// Rounds the rows of `tokens` into `panels`, in parallel.
    fn pack(&self, panels: &mut [RowPanel], tokens: Range<usize>) -> Result<(), ComputeError> {
        let outcome = Mutex::new(Ok(()));
        self.cpu.pool().for_each_chunk(panels, 4, |first, panels| {
            let mut row = vec![0.0; self.cols()];
            for (i, panel) in panels.iter_mut().enumerate() {
                panel.clear();
                let start = tokens.start + (first + i) * RowPanel::ROWS;
                let end = tokens.end.min(start + RowPanel::ROWS);
                let packed = (start..end).try_for_each(|token| {
                    self.vector(token, &mut row)?;
                    panel.push(&row, self.unit(token))
                });
                record(&outcome, packed);
            }
        });
        outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// The factor that brings a row to length 1, or all rows to length at most 1 where their
    /// lengths count.
    fn unit(&self, token: usize) -> f32 {
        match self.score {
            _ if self.lengths[token] == 0.0 => 0.0,
            LabelScore::Cosine | LabelScore::Centred => 1.0 / self.lengths[token],
            LabelScore::Dot => 1.0 / self.longest,
        }
    }
}

/// Keeps the first error that arrives.
fn record(outcome: &Mutex<Result<(), ComputeError>>, new: Result<(), ComputeError>) {
    if new.is_err() {
        let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
        if outcome.is_ok() {
            *outcome = new;
        }
    }
}

/// The mean of all rows. Sums are in float64 over fixed blocks of rows, then over the blocks.
fn mean_row(cpu: &Cpu, rows: Matrix<'_>) -> Result<Vec<f32>, ComputeError> {
    let n_blocks = rows.rows().div_ceil(GRAIN);
    let mut sums = vec![Ok(Vec::new()); n_blocks];
    cpu.pool().for_each_chunk(&mut sums, 1, |first, sums| {
        for (i, sum) in sums.iter_mut().enumerate() {
            let start = (first + i) * GRAIN;
            *sum = sum_rows(cpu, rows, start..rows.rows().min(start + GRAIN));
        }
    });
    let mut total = vec![0.0; rows.cols()];
    for sum in sums {
        total.iter_mut().zip(sum?).for_each(|(total, v)| *total += v);
    }
    let n = rows.rows().max(1) as f64;
    Ok(total.iter().map(|&v| (v / n) as f32).collect())
}

fn sum_rows(cpu: &Cpu, rows: Matrix<'_>, range: Range<usize>) -> Result<Vec<f64>, ComputeError> {
    let (mut sum, mut row) = (vec![0.0; rows.cols()], vec![0.0; rows.cols()]);
    for r in range {
        cpu.row(rows, r, &mut row)?;
        sum.iter_mut().zip(&row).for_each(|(sum, &v)| *sum += f64::from(v));
    }
    Ok(sum)
}

/// The length of row `index`; 0 where it counts as zero.
fn row_length(row: &[f32], index: usize) -> Result<f32, ComputeError> {
    let length = length(row);
    if length.is_nan() || length > LONGEST {
        return Err(ComputeError::NotFinite {
            what: "the unembedding",
            position: index,
            value: f32::NAN,
        });
    }
    Ok(if length < SHORTEST { 0.0 } else { length as f32 })
}
