//! The forward pass over a vindex, and what is built on it: generation, tracing, attribution.
#![forbid(unsafe_code)]

mod error;
pub mod sample;
pub mod text;

pub use error::InferenceError;
