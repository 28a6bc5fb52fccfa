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
    /// The text does not fit its context.
    #[error(
        "the context of {context} tokens is full: it holds {held}, and {asked} more were given; \
         ask for a longer one, or for the oldest tokens to be forgotten (shift)"
    )]
    ContextFull {
        /// Positions of the context.
        context: usize,
        /// Tokens held.
        held: usize,
        /// Tokens given.
        asked: usize,
    },
    /// A context beyond the learned positions of the model.
    #[error(
        "a context of {asked} tokens was asked for, but the model has learned positions for \
         {context_length} only"
    )]
    ContextBeyondModel {
        /// Positions asked for.
        asked: usize,
        /// Positions of the model.
        context_length: usize,
    },
    /// A token that the embedding has no row for.
    #[error("token {token} is outside the vocabulary of {vocab_size} tokens")]
    NoSuchToken {
        /// The token.
        token: u32,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// Logits of an empty text.
    #[error("the text is empty: feed it at least one token before asking for the next one")]
    NothingFed,
    /// A text that is evaluated must fill a window.
    #[error(
        "the text has {tokens} tokens, fewer than the window of {window}; give a longer text or a shorter window"
    )]
    TextTooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a window.
        window: usize,
    },
    /// A walk over experts.
    #[error("--ffn walk is not implemented for mixtures of experts: use --ffn dense")]
    WalkOverExperts,
    /// A model that has no chat template.
    #[error(
        "the model has no chat template, so it is probably a base model, which continues texts and \
         does not answer; use `larql run`, or give a template with --template FILE"
    )]
    NoChatTemplate,
    /// A chat template that cannot be used, or that refuses a conversation.
    #[error("the chat template {what}: {why}")]
    ChatTemplate {
        /// What it does.
        what: &'static str,
        /// Its own words, or the fault.
        why: String,
    },
    /// No token has a finite logit.
    #[error("no token can be chosen: every logit is minus infinity")]
    NoToken,
}
