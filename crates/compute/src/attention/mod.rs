//! Attention: one pass over the cached keys and values with an online softmax (Milakov and
//! Gimelshein 2018, arXiv:1805.02867; FlashAttention, arXiv:2205.14135).
//!
//! The work is cut into tasks of one key head, a block of queries and a span of positions, whose
//! borders do not depend on the number of threads; so neither does the result. All query heads
//! that share a key head are one task's rows: keys and values are unpacked once for all of them.

mod cache;
#[cfg(test)]
mod tests;

pub use cache::{KvBuffer, KvShape};

use cache::TILE;

use crate::arch::gemm;
use crate::{ComputeError, Cpu};

/// Query rows of a task, where there are that many queries.
const ROWS: usize = 64;

/// Rows from which a matrix product is quicker than one row at a time.
const GEMM_ROWS: usize = 12;

/// Positions of a task where a single query does not give every thread a task of its own.
const SPAN: usize = 2 * TILE;

/// What every query of a layer has in common.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Query heads, a multiple of the key heads.
    pub n_heads: usize,
    /// Scores are multiplied by this.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// How many of the latest positions, its own included, a query sees; `None` for all.
    pub window: Option<usize>,
}

/// One call's numbers.
struct Job<'a> {
    shape: AttentionShape,
    cache: &'a KvBuffer,
    /// Position of the first query.
    first: usize,
    /// Number of queries.
    n: usize,
    /// Queries of a task.
    block: usize,
    /// Positions of a task.
    span: usize,
    queries: &'a [f32],
}

/// What a task has found so far for its rows: per row the largest score, the sum of weights, and
/// the weighted sum of values.
struct Partial<'a> {
    max: &'a mut [f32],
    weight: &'a mut [f32],
    sum: &'a mut [f32],
}

impl Cpu {
    /// Causal attention of the `n` queries of positions `first..first + n`, whose keys and values
    /// are in `cache` already. `queries` is `[n, n_heads, head_dim]`, `out` is
    /// `[n, n_heads, head_dim_v]`.
    ///
    /// # Errors
    /// Wrong lengths, query heads that are not a multiple of the key heads, more positions within
    /// the window than the cache holds.
    pub fn attend(
        &self,
        shape: AttentionShape,
        cache: &KvBuffer,
        first: usize,
        queries: &[f32],
        out: &mut [f32],
    ) -> Result<(), ComputeError> {
        let kv = cache.shape();
        let width = shape.n_heads * kv.head_dim;
        let n = queries.len().checked_div(width).unwrap_or(0);
        let end = first + n;
        let seen = shape.window.map_or(end, |window| (window - window.min(1) + n).min(end));
        check("the queries", n * width, queries.len())?;
        check("the output", n * shape.n_heads * kv.head_dim_v, out.len())?;
        check("the query heads", shape.n_heads / kv.n_kv_heads * kv.n_kv_heads, shape.n_heads)?;
        check("the cache", cache.capacity().max(seen), cache.capacity())?;
        if n == 0 || kv.head_dim_v == 0 {
            return Ok(());
        }
        let group = shape.n_heads / kv.n_kv_heads;
        let block = (ROWS / group).clamp(1, n);
        let span = if n == 1 { SPAN } else { usize::MAX };
        let job = Job { shape, cache, first, n, block, span, queries };
        let rows = block * group;
        let spans = if n == 1 { job.seen(0..1).len().div_ceil(SPAN) + 1 } else { 1 };
        let blocks = n.div_ceil(block);
        let stride = rows * (2 + kv.head_dim_v);
        let mut partials = vec![0.0; kv.n_kv_heads * blocks * spans * stride];
        // A worker takes one task at a time; of a short context the caller takes all at once.
        let tasks_at_once = if n == 1 && spans <= 2 { kv.n_kv_heads * spans } else { 1 };
        self.pool().for_each_chunk(&mut partials, tasks_at_once * stride, |start, partials| {
            let mut scratch = Scratch::default();
            for (i, partial) in partials.chunks_exact_mut(stride).enumerate() {
                let task = start / stride + i;
                let (pair, span) = (task / spans, task % spans);
                let (head, block) = (pair / blocks, pair % blocks);
                job.run(self, head, block, span, partial, &mut scratch);
            }
        });
        for (pair, partials) in partials.chunks_exact_mut(spans * stride).enumerate() {
            let (head, block) = (pair / blocks, pair % blocks);
            self.combine(&job, head, block, partials, out);
        }
        Ok(())
    }

    /// Joins the spans of one head's block of queries and writes its part of `out`.
    fn combine(
        &self,
        job: &Job<'_>,
        head: usize,
        block: usize,
        partials: &mut [f32],
        out: &mut [f32],
    ) {
        let kv = job.cache.shape();
        let (group, width) = (job.group(), kv.head_dim_v);
        let rows = job.block * group;
        let stride = rows * (2 + width);
        let queries = job.queries_of(block);
        for row in 0..queries.len() * group {
            let max = partials.chunks_exact(stride).fold(f32::NEG_INFINITY, |m, p| m.max(p[row]));
            let first =
                ((queries.start + row / group) * job.shape.n_heads + head * group + row % group)
                    * width;
            let out = &mut out[first..first + width];
            out.fill(0.0);
            let mut weight = 0.0;
            for partial in partials.chunks_exact(stride) {
                let factor = crate::kernels::vector::exp(partial[row] - max);
                if partial[row] == f32::NEG_INFINITY {
                    continue;
                }
                weight += factor * partial[rows + row];
                let sum = &partial[2 * rows + row * width..][..width];
                out.iter_mut().zip(sum).for_each(|(out, sum)| *out += factor * sum);
            }
            out.iter_mut().for_each(|out| *out /= weight);
        }
    }
}

/// What a worker needs beside the results.
#[derive(Default)]
struct Scratch {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    scores: Vec<f32>,
}

impl Job<'_> {
    /// Query heads of a key head.
    fn group(&self) -> usize {
        self.shape.n_heads / self.cache.shape().n_kv_heads
    }

    /// The queries of a block.
    fn queries_of(&self, block: usize) -> std::ops::Range<usize> {
        block * self.block..((block + 1) * self.block).min(self.n)
    }

    /// The positions that any of these queries sees.
    fn seen(&self, queries: std::ops::Range<usize>) -> std::ops::Range<usize> {
        let oldest = self.oldest(self.first + queries.start);
        oldest..self.first + queries.end
    }

    /// The first position that the query at `position` sees.
    fn oldest(&self, position: usize) -> usize {
        self.shape.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// Fills `partial` for one key head, block of queries and span of positions.
    fn run(
        &self,
        cpu: &Cpu,
        head: usize,
        block: usize,
        span: usize,
        partial: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let kv = self.cache.shape();
        let queries = self.queries_of(block);
        let rows = queries.len() * self.group();
        let (max, rest) = partial.split_at_mut(self.block * self.group());
        let (weight, sum) = rest.split_at_mut(self.block * self.group());
        max.fill(f32::NEG_INFINITY);
        let mut partial = Partial {
            max: &mut max[..rows],
            weight: &mut weight[..rows],
            sum: &mut sum[..rows * kv.head_dim_v],
        };
        self.gather(head, queries.clone(), &mut scratch.queries);
        let seen = self.seen(queries.clone());
        // Spans begin at tiles, whatever the window's edge, so that a task's tiles are whole.
        let start = seen.start / TILE * TILE;
        let from = start.saturating_add(self.span.saturating_mul(span));
        let to = from.saturating_add(self.span).min(seen.end);
        for tile in (from..to).step_by(TILE) {
            let end = (tile + TILE).min(to);
            scratch.keys.resize((end - tile) * kv.head_dim, 0.0);
            scratch.values.resize((end - tile) * kv.head_dim_v, 0.0);
            self.cache.tile(cpu, head, tile, &mut scratch.keys, &mut scratch.values);
            self.score(cpu, scratch, end - tile);
            self.mask(queries.clone(), tile..end, &mut scratch.scores);
            self.add(cpu, scratch, end - tile, &mut partial);
        }
    }

    /// The rows of a task's queries, `[queries, group, head_dim]`, times the scale.
    fn gather(&self, head: usize, queries: std::ops::Range<usize>, out: &mut Vec<f32>) {
        let wide = self.group() * self.cache.shape().head_dim;
        out.clear();
        for query in queries {
            let first = query * self.shape.n_heads * self.cache.shape().head_dim + head * wide;
            let rows = &self.queries[first..first + wide];
            out.extend(rows.iter().map(|q| q * self.shape.scale));
        }
    }

    /// Scores of all rows against a tile of `n` keys, `[rows, n]`.
    fn score(&self, cpu: &Cpu, scratch: &mut Scratch, n: usize) {
        let head_dim = self.cache.shape().head_dim;
        let rows = scratch.queries.len() / head_dim;
        scratch.scores.resize(rows * n, 0.0);
        if rows >= GEMM_ROWS {
            let scores = &mut scratch.scores;
            gemm::product_transposed(&scratch.queries, &scratch.keys, head_dim, scores);
        } else {
            let pairs = scratch.queries.chunks_exact(head_dim).zip(scratch.scores.chunks_mut(n));
            pairs.for_each(|(q, scores)| cpu.kernels().vector().scores(q, &scratch.keys, scores));
        }
        if let Some(cap) = self.shape.softcap {
            cpu.kernels().vector().softcap(&mut scratch.scores, cap);
        }
    }

    /// Takes out the positions that a query does not see.
    fn mask(
        &self,
        queries: std::ops::Range<usize>,
        tile: std::ops::Range<usize>,
        scores: &mut [f32],
    ) {
        let group = self.group();
        for (row, scores) in scores.chunks_exact_mut(tile.len()).enumerate() {
            let position = self.first + queries.start + row / group;
            let visible = |p: usize| p.clamp(tile.start, tile.end) - tile.start;
            let (from, to) = (visible(self.oldest(position)), visible(position + 1));
            scores[..from].fill(f32::NEG_INFINITY);
            scores[to.max(from)..].fill(f32::NEG_INFINITY);
        }
    }

    /// Adds a tile's values to the sums, each row rescaled to its new largest score.
    fn add(&self, cpu: &Cpu, scratch: &mut Scratch, n: usize, partial: &mut Partial<'_>) {
        let kernels = cpu.kernels().vector();
        let width = self.cache.shape().head_dim_v;
        let by_gemm = partial.max.len() >= GEMM_ROWS;
        let sums = partial.sum.chunks_exact_mut(width);
        for (row, (scores, sum)) in scratch.scores.chunks_exact_mut(n).zip(sums).enumerate() {
            let old = partial.max[row];
            let largest = old.max(kernels.max(scores));
            if largest == f32::NEG_INFINITY {
                scores.fill(0.0);
                continue;
            }
            let factor = crate::kernels::vector::exp(old - largest);
            partial.max[row] = largest;
            partial.weight[row] =
                factor.mul_add(partial.weight[row], kernels.exp_sum(scores, largest));
            if !by_gemm {
                kernels.weighted_sum(scores, &scratch.values, factor, sum);
            } else if factor < 1.0 {
                sum.iter_mut().for_each(|sum| *sum *= factor);
            }
        }
        if by_gemm {
            gemm::add_product(&scratch.scores, &scratch.values, n, partial.sum);
        }
    }
}

fn check(what: &'static str, expected: usize, found: usize) -> Result<(), ComputeError> {
    if expected == found {
        return Ok(());
    }
    Err(ComputeError::VectorLength { what, expected, found })
}
