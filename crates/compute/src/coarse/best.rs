//! The rows that may still be among the k best of one query and one sign.

use std::cmp::{Ordering, Reverse};

use crate::ComputeError;

/// A row and its integer product, which is negated for the lowest.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    product: i32,
    row: u32,
}

/// Candidates of one query and one sign. Every row seen so far that is not here is proven to lie
/// behind k others.
#[derive(Debug)]
pub(super) struct Best {
    k: usize,
    /// Products from here on may still belong to the k best.
    limit: i32,
    candidates: Vec<Candidate>,
}

impl Best {
    pub(super) fn new(k: usize) -> Self {
        // i32::MIN + 1, so that the limit can be negated.
        let limit = if k == 0 { i32::MAX } else { -i32::MAX };
        Self { k, limit, candidates: Vec::new() }
    }

    pub(super) fn limit(&self) -> i32 {
        self.limit
    }

    /// Room for candidates before they are pruned: enough for the k best, their neighbours within
    /// the bound and a tile of newcomers, few enough to stay in the cache.
    fn room(&self) -> usize {
        4 * self.k + 64
    }

    /// Takes a row in where its product reaches the limit. `error` is the bound on the products'
    /// error, which may only grow from call to call.
    pub(super) fn push(
        &mut self,
        product: i32,
        row: u32,
        error: i32,
        rescore: &mut dyn FnMut(u32) -> Result<f32, ComputeError>,
    ) -> Result<(), ComputeError> {
        if product < self.limit {
            return Ok(());
        }
        self.candidates.push(Candidate { product, row });
        if self.candidates.len() < self.room() {
            return Ok(());
        }
        self.prune(error);
        if self.candidates.len() > self.room() / 2 {
            // Many rows within the bound of each other (equal rows, say). Their scores decide: of
            // the rows seen so far only the k best can be in the answer.
            let best = self.ranked(rescore)?;
            self.candidates.retain(|c| best.iter().any(|&(row, _)| row == c.row));
        }
        Ok(())
    }

    /// Raises the limit to what the k-th best candidate implies and drops what lies below.
    fn prune(&mut self, error: i32) {
        if self.candidates.len() <= self.k {
            return;
        }
        let (_, kth, _) =
            self.candidates.select_nth_unstable_by_key(self.k - 1, |c| Reverse(c.product));
        // The k-th best score is at least its product less the error; a row needs a product of
        // that less the error again.
        let limit = kth.product.saturating_sub(error).saturating_sub(error);
        self.limit = self.limit.max(limit);
        let limit = self.limit;
        self.candidates.retain(|c| c.product >= limit);
    }

    /// The k best rows with their scores: highest first, ties by lower row.
    pub(super) fn finish(
        &mut self,
        error: i32,
        rescore: &mut dyn FnMut(u32) -> Result<f32, ComputeError>,
    ) -> Result<Vec<(u32, f32)>, ComputeError> {
        self.prune(error);
        self.ranked(rescore)
    }

    fn ranked(
        &self,
        rescore: &mut dyn FnMut(u32) -> Result<f32, ComputeError>,
    ) -> Result<Vec<(u32, f32)>, ComputeError> {
        let mut scored = Vec::with_capacity(self.candidates.len());
        for candidate in &self.candidates {
            let score = rescore(candidate.row)?;
            if score.is_nan() {
                return Err(ComputeError::NanScore { row: candidate.row as usize });
            }
            scored.push((candidate.row, score));
        }
        // No score is NaN, and 0 equals -0.
        scored.sort_unstable_by(|a, b| {
            b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0))
        });
        scored.truncate(self.k);
        Ok(scored)
    }
}
