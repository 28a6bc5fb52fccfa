//! `Progress`: how long work tells a surface how far it is, and how a surface stops it.

/// A listener for work that takes seconds or hours. Implementations are shared between threads,
/// so they keep their state in atomics or behind a lock.
pub trait Progress: Sync {
    /// A phase of `total` units begins ("hashing", 253 million "bytes").
    fn start(&self, phase: &str, total: u64, unit: &str);
    /// `n` more units of the current phase are done.
    fn advance(&self, n: u64);
    /// The current phase is over.
    fn finish(&self);
    /// Whether the user wants the work to stop. Asked a few times a second; the work then cleans
    /// up and returns [`VindexError::Cancelled`](crate::VindexError::Cancelled).
    fn cancelled(&self) -> bool {
        false
    }
}

/// A listener that shows nothing and never stops the work.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn start(&self, _phase: &str, _total: u64, _unit: &str) {}
    fn advance(&self, _n: u64) {}
    fn finish(&self) {}
}
