//! Model files: what is in a GGUF file or a safetensors directory.

mod error;
pub mod gguf;
mod map;
pub mod tokenizer;

pub use error::CheckpointError;
pub use map::{Advice, Identity, Map};
