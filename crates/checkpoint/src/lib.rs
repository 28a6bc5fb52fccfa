//! Model files: what is in a GGUF file or a safetensors directory.

pub mod checkpoint;
pub mod config;
mod error;
mod families;
pub mod gguf;
mod map;
pub mod names;
pub mod safetensors;
pub mod tokenizer;

pub use checkpoint::{Checkpoint, Format, TensorEntry};
pub use config::{ConfigError, Family, ModelConfig};
pub use error::CheckpointError;
pub use map::{Advice, Identity, Map};
pub use names::{Role, TensorId};
