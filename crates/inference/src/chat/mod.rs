//! Chat: the model's own template turns a conversation to a prompt, and the conversation runs only
//! what is new since the last answer.

mod conversation;
mod python;
mod template;
#[cfg(test)]
mod tests;

pub use conversation::{Answer, Conversation};
pub use template::{ChatTemplate, Message};
