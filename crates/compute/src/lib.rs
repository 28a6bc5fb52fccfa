//! Block formats and kernels: what a quantised block is, and how to multiply by it.
//!
//! Nothing here knows a path, a model or a layer: bytes and shapes come in, numbers go out.

mod activation;
mod arch;
mod attention;
pub mod bandwidth;
pub mod blocks;
mod coarse;
pub mod conformance;
mod cpu;
mod dtype;
mod error;
mod head;
mod kernels;
mod linear;
mod matrix;
mod panel;
mod pool;
mod top_k;
mod vector;

pub use activation::Activations;
pub use arch::Isa;
pub use attention::{AttentionShape, KvBuffer, KvShape};
pub use blocks::{convert_row, dequantize_row, quantize_row};
pub use coarse::{CoarseScan, Extremes, Found, Queries, Rescore, RowPanel};
pub use cpu::Cpu;
pub use dtype::Dtype;
pub use error::ComputeError;
pub use head::{ColumnOrder, HeadPlanes, PlanesLayout, PlanesTopK, build_planes, mean_row};
pub use matrix::Matrix;
pub use pool::{Pool, Ranges};
pub use top_k::{Order, Scored, TopK};
pub use vector::Nonlinearity;
