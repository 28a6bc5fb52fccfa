//! `TokenizerFault`: why a tokenizer cannot be built, used or written.

use std::path::PathBuf;

/// What is wrong with a tokenizer. Always shown inside a
/// [`CheckpointError::Tokenizer`](crate::CheckpointError::Tokenizer), which adds the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerFault {
    /// There is no vocabulary at all.
    #[error("there is no tokenizer: the metadata key tokenizer.ggml.model is missing")]
    NoTokenizer,
    /// A kind of tokenizer that larql does not have.
    #[error(
        "the tokenizer model is '{found}' ({what}); larql has 'llama' (SentencePiece merges) and \
         'gpt2' (byte-level BPE)"
    )]
    UnsupportedModel {
        /// GGUF's name of it.
        found: String,
        /// What that name stands for.
        what: &'static str,
    },
    /// A pre-tokeniser that larql does not have.
    #[error("the pre-tokenizer is '{found}'; larql has {known}")]
    UnknownPreTokenizer {
        /// GGUF's name of it.
        found: String,
        /// The names of all those that larql has.
        known: String,
    },
    /// A pre-tokeniser's pattern does not compile.
    #[error("the pattern of the pre-tokenizer '{name}' is not usable: {source}")]
    Pattern {
        /// GGUF's name of the pre-tokeniser.
        name: String,
        /// What the regex library said.
        source: regex::Error,
    },
    /// Two arrays that have an entry for every token differ in length.
    #[error("{key} has {found} entries, but there are {expected} tokens")]
    Length {
        /// The array's metadata key.
        key: &'static str,
        /// Number of tokens.
        expected: usize,
        /// Number of entries.
        found: usize,
    },
    /// A token's type is not one of GGUF's.
    #[error("token {id} has the type {found}; GGUF defines 0 to 6")]
    UnknownKind {
        /// The token.
        id: usize,
        /// Its type.
        found: i64,
    },
    /// A special token is not in the vocabulary.
    #[error("{key} is {found}, but there are only {tokens} tokens")]
    SpecialOutOfRange {
        /// The metadata key.
        key: &'static str,
        /// The id that it holds.
        found: u32,
        /// Number of tokens.
        tokens: usize,
    },
    /// All token texts together are too long.
    #[error("the texts of all tokens together are longer than 4 GiB")]
    VocabularyTooLarge,
    /// A text is too long to encode at once.
    #[error("a text of {found} bytes is too long to encode at once; 1 GiB is the limit")]
    TextTooLong {
        /// Its length in bytes.
        found: usize,
    },
    /// A directory without `tokenizer.json`.
    #[error("there is no tokenizer.json in {}", dir.display())]
    NoTokenizerJson {
        /// The directory.
        dir: PathBuf,
    },
    /// `tokenizer.json` or `tokenizer_config.json` cannot be used.
    #[error("{message}")]
    Json {
        /// What the library said.
        message: String,
    },
    /// A `tokenizer.json` that GGUF cannot express.
    #[error("this tokenizer cannot be written to a GGUF: {reason}")]
    NotExpressible {
        /// Which part of it, and why.
        reason: String,
    },
}

impl TokenizerFault {
    /// What the user can do about it.
    pub(crate) fn help(&self) -> Option<String> {
        Some(match self {
            Self::NoTokenizer | Self::Length { .. } | Self::UnknownKind { .. } => {
                "the model was converted incompletely: convert it again, or use another file of it"
            }
            Self::NoTokenizerJson { .. } => {
                "fetch tokenizer.json (and tokenizer_config.json) from where the model came from, \
                 or open the model's GGUF file, which holds its tokenizer"
            }
            Self::Json { .. } => "fetch the file again from where the model came from",
            Self::TextTooLong { .. } => "encode it in parts",
            _ => return None,
        }
        .to_owned())
    }
}
