//! Chat: the model's own template turns a conversation to a prompt, and the conversation runs only
//! what is new since the last answer.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//!
//! use larql_compute::Cpu;
//! use larql_inference::chat::{ChatTemplate, Conversation};
//! use larql_inference::sample::{Sampler, SamplerOptions};
//! use larql_inference::{CacheOptions, GenerateOptions, KvDtype, Model, Overflow};
//! use larql_vindex::Vindex;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let vindex = Vindex::open("gemma-3-270m-it.vindex")?;
//! let cpu = Cpu::new(None, None)?;
//! let model = Model::load(&vindex, &cpu)?;
//! let options = CacheOptions { context: 4096, kv: KvDtype::F16, overflow: Overflow::Shift };
//! let mut state = model.state(options)?;
//! let mut sampler = Sampler::new(SamplerOptions::default())?;
//! let mut conversation = Conversation::new(ChatTemplate::of(vindex.tokenizer()?)?);
//! for question in ["What is the capital of France?", "And of Italy?"] {
//!     let (run, options) = ((&model, &mut state), GenerateOptions::default());
//!     conversation.ask(question, run, &mut sampler, &options, &mut |piece| {
//!         print!("{piece}");
//!         ControlFlow::Continue(())
//!     })?;
//! }
//! # Ok(())
//! # }
//! ```

mod conversation;
mod python;
mod template;
#[cfg(test)]
mod tests;

pub use conversation::{Answer, Conversation};
pub use template::{ChatTemplate, Message};
