//! The forward pass over a vindex, and what is built on it: generation, tracing, attribution.
//!
//! ```no_run
//! use larql_checkpoint::tokenizer::EncodeOptions;
//! use larql_compute::Cpu;
//! use larql_inference::{CacheOptions, KvDtype, Model, Overflow};
//! use larql_vindex::Vindex;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let vindex = Vindex::open("gemma-3-270m.vindex")?;
//! let cpu = Cpu::new(None, None)?;
//! let model = Model::load(&vindex, &cpu)?;
//! let options = CacheOptions { context: 512, kv: KvDtype::F16, overflow: Overflow::Error };
//! let mut text = model.state(options)?;
//! let prompt = vindex.tokenizer()?.encode("Paris is the capital of", EncodeOptions::PROMPT)?;
//! model.feed(&mut text, &prompt)?;
//! for next in model.top_k(&mut text, 5)? {
//!     println!("{:+.3} token {}", next.score, next.row);
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod analysis;
mod attention;
pub mod chat;
mod error;
mod evaluate;
mod ffn;
mod forward;
mod generate;
mod hooks;
mod measure;
mod model;
mod moe;
mod profile;
mod record;
mod rope;
pub mod sample;
mod state;
pub mod text;

pub use error::InferenceError;
pub use evaluate::{EvaluateOptions, Evaluation};
pub use ffn::{FfnMode, Keep};
pub use generate::{Finish, GenerateOptions, Generated};
pub use hooks::{Hooks, NoHooks, Point};
pub use measure::{Measured, Workload};
pub use model::Model;
pub use profile::{Operation, Profile};
pub use record::Recorder;
pub use state::{CacheOptions, KvDtype, Overflow, State};
