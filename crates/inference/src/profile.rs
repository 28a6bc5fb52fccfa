//! Where the time of a forward pass goes.

use std::time::{Duration, Instant};

use larql_vindex::HeadPath;

/// A part of the forward pass whose time is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Rows of the embedding.
    Embed,
    /// All norms.
    Norm,
    /// Query, key and value projections.
    Qkv,
    /// Norms of heads, rotation, storing keys and values.
    Positions,
    /// Scores and weighted values.
    Attention,
    /// Attention's output projection.
    AttnOutput,
    /// The router of experts.
    Router,
    /// Gate and up projections.
    GateUp,
    /// The non-linearity.
    Activation,
    /// The down projection.
    Down,
    /// The LM head.
    LmHead,
}

impl Operation {
    /// All of them, in the order of the pass.
    pub const ALL: [Self; 11] = [
        Self::Embed,
        Self::Norm,
        Self::Qkv,
        Self::Positions,
        Self::Attention,
        Self::AttnOutput,
        Self::Router,
        Self::GateUp,
        Self::Activation,
        Self::Down,
        Self::LmHead,
    ];

    /// A name for people and scripts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Norm => "norm",
            Self::Qkv => "qkv",
            Self::Positions => "rope_and_cache",
            Self::Attention => "attention",
            Self::AttnOutput => "attn_output",
            Self::Router => "router",
            Self::GateUp => "gate_up",
            Self::Activation => "activation",
            Self::Down => "down",
            Self::LmHead => "lm_head",
        }
    }
}

/// Time and bytes of weights by operation.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    time: [Duration; Operation::ALL.len()],
    bytes: [u64; Operation::ALL.len()],
    head_paths: [u64; 2],
    last: Option<Instant>,
}

impl Profile {
    /// Time spent in an operation.
    pub fn time(&self, operation: Operation) -> Duration {
        self.time[operation as usize]
    }

    /// Bytes that an operation read: of weights, and for [`Operation::Attention`] of keys and
    /// values where one token was run.
    pub fn bytes(&self, operation: Operation) -> u64 {
        self.bytes[operation as usize]
    }

    /// The time of all operations.
    pub fn total(&self) -> Duration {
        self.time.iter().sum()
    }

    /// Bytes of weights that all operations read.
    pub fn weight_bytes(&self) -> u64 {
        self.bytes.iter().sum::<u64>() - self.bytes(Operation::Attention)
    }

    /// How often the LM head answered in this way.
    pub fn head_answers(&self, path: HeadPath) -> u64 {
        self.head_paths[path as usize]
    }

    /// The LM head answered.
    pub(crate) fn head_answered(&mut self, path: HeadPath) {
        self.head_paths[path as usize] += 1;
    }

    /// Begins to count.
    pub(crate) fn start(&mut self) {
        self.last = Some(Instant::now());
    }

    /// The time since the last mark belongs to `operation`, which read `bytes` of weights.
    pub(crate) fn mark(&mut self, operation: Operation, bytes: usize) {
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            self.time[operation as usize] += now - last;
        }
        self.bytes[operation as usize] += bytes as u64;
    }
}
