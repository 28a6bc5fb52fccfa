//! Searching a vindex: KNN over gate rows, walks, output directions, expert routing.
//!
//! Everything here is exact: the scores are the canonical float32 dot products of
//! `larql-compute` over the dequantised rows, whatever shortcut found the rows.
//!
//! ```no_run
//! use larql_compute::{Cpu, Order};
//! use larql_vindex::{Vindex, search::Search};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let vindex = Vindex::open("gemma-3-270m.vindex")?;
//! let cpu = Cpu::new(None, None)?;
//! let search = Search::new(&vindex, &cpu);
//! let query = search.embedding(9079)?; // [hidden_size]
//! for hit in search.gate_knn(5, &query, 10, Order::Abs, None)? {
//!     println!("L{} F{}  {:+.4}", hit.layer, hit.feature, hit.score);
//! }
//! # Ok(())
//! # }
//! ```

mod batch;
mod describe;
mod direction;
mod feature;
mod knn;
pub(crate) mod norm;
mod parts;
mod route;
mod walk;

pub use describe::{DescribeOptions, DescribedPart, Description, MAX_DESCRIBED_TOKENS, WrittenBy};
pub use direction::OutputDirections;
pub use feature::FeatureFacts;
pub use route::{Routing, choose_experts};
pub use walk::{Query, Walk, WalkLayer, WalkOptions};

use larql_compute::Cpu;

use crate::Vindex;

/// One feature that a search found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hit {
    /// Layer of the feature.
    pub layer: usize,
    /// Feature within the layer; of expert `e`, `e * expert_size + j`, shared experts last.
    pub feature: usize,
    /// What the search ranked by, with its sign.
    pub score: f32,
}

/// A vindex together with the kernels that search it. Cheap to make, free of state.
#[derive(Clone, Copy)]
pub struct Search<'a> {
    vindex: &'a Vindex,
    cpu: &'a Cpu,
}

impl<'a> Search<'a> {
    /// Searches `vindex` with the kernels and threads of `cpu`.
    pub fn new(vindex: &'a Vindex, cpu: &'a Cpu) -> Self {
        Self { vindex, cpu }
    }

    /// The vindex being searched.
    pub fn vindex(&self) -> &'a Vindex {
        self.vindex
    }
}
