//! What can go wrong while a model runs.

use larql_checkpoint::CheckpointError;
use larql_compute::ComputeError;
use larql_vindex::VindexError;

/// Every way in which loading a model, running it or choosing its next token can fail.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InferenceError {
    /// A kernel refused its arguments.
    #[error(transparent)]
    Compute(#[from] ComputeError),
    /// The vindex cannot give what the forward pass needs.
    #[error(transparent)]
    Vindex(#[from] VindexError),
    /// The tokenizer or the configuration cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A flag or an argument makes no sense.
    #[error("{what} is {found}, but it must be {expected}")]
    Option {
        /// Which option.
        what: &'static str,
        /// The value given.
        found: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// No token has a finite logit.
    #[error("no token can be chosen: every logit is minus infinity")]
    NoToken,
}
