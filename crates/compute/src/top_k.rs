//! `TopK`: the best `k` of a stream of scored rows, in O(k) memory.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::ComputeError;

/// What "best" means. Scores keep their sign either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Order {
    /// The largest |score| first.
    #[default]
    Abs,
    /// The largest score first.
    Signed,
}

impl Order {
    /// The number that is compared: |score| or the score itself.
    pub fn key(self, score: f32) -> f32 {
        match self {
            Self::Abs => score.abs(),
            Self::Signed => score,
        }
    }
}

/// A row and its score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scored {
    /// Row index.
    pub row: usize,
    /// The score, sign included.
    pub score: f32,
}

/// A heap entry; the greatest entry is the worst one, so that it sits on top.
#[derive(Debug, Clone, Copy)]
struct Entry {
    key: f32,
    item: Scored,
}

impl Ord for Entry {
    /// Better entries are smaller: higher key first, then lower row. Keys are never NaN.
    fn cmp(&self, other: &Self) -> Ordering {
        let by_key = other.key.partial_cmp(&self.key).unwrap_or(Ordering::Equal);
        by_key.then(self.item.row.cmp(&other.item.row))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

/// Keeps the best `k` of the rows pushed into it. The outcome does not depend on the order of
/// pushes or merges: equal keys are ranked by lower row.
#[derive(Debug, Clone)]
pub struct TopK {
    k: usize,
    order: Order,
    heap: BinaryHeap<Entry>,
}

impl TopK {
    /// An empty heap for the best `k`. Memory grows with what is kept, never beyond `k` entries.
    pub fn new(k: usize, order: Order) -> Self {
        Self { k, order, heap: BinaryHeap::new() }
    }

    /// Offers a row.
    ///
    /// # Errors
    /// [`ComputeError::NanScore`] for a NaN score: it has no place in any order.
    #[inline]
    pub fn push(&mut self, row: usize, score: f32) -> Result<(), ComputeError> {
        let key = self.order.key(score);
        // Written so that NaN takes the slow path as well.
        if key < self.threshold() {
            return Ok(());
        }
        self.push_candidate(row, score, key)
    }

    fn push_candidate(&mut self, row: usize, score: f32, key: f32) -> Result<(), ComputeError> {
        if score.is_nan() {
            return Err(ComputeError::NanScore { row });
        }
        self.insert(Entry { key, item: Scored { row, score } });
        Ok(())
    }

    fn insert(&mut self, entry: Entry) {
        if self.heap.len() < self.k {
            self.heap.push(entry);
        } else if let Some(mut worst) = self.heap.peek_mut()
            && entry < *worst
        {
            *worst = entry;
        }
    }

    /// The key of the worst row kept; a row whose key is lower cannot enter. Negative infinity
    /// until `k` rows are kept, positive infinity where `k` is 0.
    #[inline]
    pub fn threshold(&self) -> f32 {
        if self.heap.len() < self.k {
            return f32::NEG_INFINITY;
        }
        self.heap.peek().map_or(f32::INFINITY, |worst| worst.key)
    }

    /// Number of rows kept so far.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether no row is kept.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Offers everything that `other` kept; both must have the same order.
    pub fn merge(&mut self, other: Self) {
        debug_assert_eq!(self.order, other.order, "merging two orders");
        for entry in other.heap {
            self.insert(entry);
        }
    }

    /// What was kept, best first.
    pub fn into_sorted(self) -> Vec<Scored> {
        self.heap.into_sorted_vec().into_iter().map(|entry| entry.item).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(top: TopK) -> Vec<usize> {
        top.into_sorted().iter().map(|s| s.row).collect()
    }

    #[test]
    fn ties_go_to_the_lower_row_in_any_push_order() {
        let scores = [1.0, -3.0, 3.0, 0.0, -0.0, 3.0, -1.0];
        for rotate in 0..scores.len() {
            let mut top = TopK::new(4, Order::Abs);
            for i in 0..scores.len() {
                let row = (i + rotate) % scores.len();
                top.push(row, scores[row]).unwrap();
            }
            assert_eq!(rows(top), [1, 2, 5, 0]);
        }
    }

    #[test]
    fn signed_order_and_zero_ties() {
        let mut top = TopK::new(10, Order::Signed);
        for (row, score) in [-0.0, -5.0, 0.0, 2.0, f32::NEG_INFINITY].into_iter().enumerate() {
            top.push(row, score).unwrap();
        }
        assert_eq!(rows(top), [3, 0, 2, 1, 4]);
    }

    #[test]
    fn k_of_zero_keeps_nothing_and_still_refuses_nan() {
        let mut top = TopK::new(0, Order::Abs);
        top.push(1, 5.0).unwrap();
        assert_eq!(top.threshold(), f32::INFINITY);
        assert_eq!(top.push(7, f32::NAN), Err(ComputeError::NanScore { row: 7 }));
        assert!(top.is_empty());
    }

    #[test]
    fn merge_equals_one_heap() {
        let score = |i: usize| ((i * 7919) % 101) as f32 - 50.0;
        let (mut all, mut a, mut b) =
            (TopK::new(17, Order::Abs), TopK::new(17, Order::Abs), TopK::new(17, Order::Abs));
        for i in 0..500 {
            all.push(i, score(i)).unwrap();
            if i % 3 == 0 { &mut a } else { &mut b }.push(i, score(i)).unwrap();
        }
        b.merge(a);
        assert_eq!(all.into_sorted(), b.into_sorted());
    }
}
