//! Block formats and kernels: what a quantised block is, and how to multiply by it.
//!
//! Nothing here knows a path, a model or a layer: bytes and shapes come in, numbers go out.

mod dtype;
mod error;
mod matrix;

pub use dtype::Dtype;
pub use error::ComputeError;
pub use matrix::Matrix;
