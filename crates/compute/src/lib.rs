//! Block formats and kernels: what a quantised block is, and how to multiply by it.
//!
//! Nothing here knows a path, a model or a layer: bytes and shapes come in, numbers go out.

pub mod blocks;
mod dtype;
mod error;
mod matrix;

pub use blocks::{convert_row, dequantize_row, quantize_row};
pub use dtype::Dtype;
pub use error::ComputeError;
pub use matrix::Matrix;
