//! `Tokenizer`: text to token ids and back, as the model was trained with.
//!
//! A tokenizer comes from a GGUF file's metadata or from a Hugging Face directory's
//! `tokenizer.json`. Opening is quick: the texts of all tokens are read into one buffer, and what
//! encoding needs (the hash table, merges, patterns) is built when text is first encoded.
//!
//! # Whose ids
//! From GGUF the ids are llama.cpp's, from `tokenizer.json` they are Hugging Face's (through the
//! `tokenizers` crate). The two agree on nearly all text. Where they do not, each source keeps to
//! its own reference, since that is what its users compare with:
//! - Tokens that llama.cpp knows by their text (`</s>`, `<|im_end|>`, …) are control tokens there
//!   whatever their type. Gemma's HTML tag `</s>` is one: plain text `</s>` becomes characters
//!   from GGUF, one token from `tokenizer.json`.
//! - Where special tokens overlap, llama.cpp takes the longest one wherever it stands, Hugging
//!   Face the leftmost.
//! - Hugging Face normalises first where the tokenizer says so (Qwen: NFC); llama.cpp never does.
//! - A `▁` (U+2581) written in the text: Gemma's tokens for runs of spaces match runs of it in
//!   Hugging Face, which escapes spaces first; in llama.cpp they match runs of spaces only.
//! - llama.cpp's pre-tokenisers know one letter class: "tekken" and "gpt-4o" treat letters outside
//!   ASCII as both upper and lower case, and leave combining marks out of words. In DeepSeek's
//!   punctuation U+3000 is white space there.
//! - Phi-3: llama.cpp drops white space after every special token, by the model's name.
//! - Code points that are newer than one side's Unicode tables may fall into other classes.
//!
//! Measured on the 3,418 texts of `tests/data/tokenizers/corpus.json`, each as a fragment and as a
//! template: no id differs from the source's own reference. Between the two references Qwen 2
//! differs in 128 of 6,836 encodings (NFC), tekken in 214 (marks), a Gemma-like vocabulary in 96
//! (`▁`); the other families in none.
//!
//! Both agree on one more thing, and there we differ: they put a BOS before text that begins with
//! one already (llama.cpp warns). Here it stays at the one.

mod bpe;
mod byte_level;
mod control;
mod decode;
mod detect;
mod fault;
mod from_gguf;
mod from_json;
mod guard;
mod json_file;
mod pretokenize;
mod special;
mod spm;
mod to_gguf;
mod vocabulary;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::CheckpointError;
use crate::gguf::Metadata;

use bpe::Bpe;
use from_json::JsonEngine;
use special::{Fragment, SpecialMatcher};
use spm::Spm;
use vocabulary::Vocabulary;

pub use decode::Decoder;
pub use fault::TokenizerFault;
pub use vocabulary::TokenKind;

/// What [`Tokenizer::encode`] does besides encoding the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Put the BOS (and EOS) where the model wants them.
    pub add_special: bool,
    /// Read control tokens that are written out in the text (`<|im_start|>`) as those tokens.
    pub parse_special: bool,
}

impl EncodeOptions {
    /// Text from somewhere inside a document: nothing added, control tokens are plain text.
    pub const FRAGMENT: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
    /// The beginning of a document: BOS where the model wants one, control tokens are plain text.
    /// Right for text that a user typed.
    pub const PROMPT: EncodeOptions = EncodeOptions { add_special: true, parse_special: false };
    /// The output of a chat template: control tokens are read, and a BOS is added unless the
    /// template wrote it.
    pub const TEMPLATE: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };
}

/// A model's tokenizer. Cheap to share by reference between threads.
///
/// ```no_run
/// use larql_checkpoint::gguf::Gguf;
/// use larql_checkpoint::tokenizer::{EncodeOptions, Tokenizer};
///
/// let gguf = Gguf::open("gemma-3-270m.gguf")?;
/// let tokenizer = Tokenizer::from_gguf(gguf.metadata())?;
/// let ids = tokenizer.encode("The capital of France is", EncodeOptions::PROMPT)?;
/// assert_eq!(ids[0], tokenizer.bos().unwrap());
/// assert_eq!(tokenizer.decode(&ids), "The capital of France is");
/// # Ok::<(), larql_checkpoint::CheckpointError>(())
/// ```
pub struct Tokenizer {
    vocabulary: Vocabulary,
    special: SpecialIds,
    /// Ends of generation, ascending.
    ends: Vec<u32>,
    add_bos: bool,
    add_eos: bool,
    /// Encoding puts a space before text at the beginning and after special tokens.
    space_prefix: bool,
    chat_template: Option<String>,
    source: PathBuf,
    engine: Engine,
    /// Finds control tokens; built on first use.
    controls: OnceLock<SpecialMatcher>,
}

/// Ids of the tokens with a role.
#[derive(Clone, Copy, Default)]
struct SpecialIds {
    bos: Option<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
    pad: Option<u32>,
}

/// What encodes.
enum Engine {
    Gguf(Box<GgufEngine>),
    Json(Box<JsonEngine>),
}

/// Everything that encoding with a GGUF's vocabulary needs, built on first use.
struct GgufEngine {
    metadata: Metadata,
    model: Model,
    /// White space after special tokens is dropped (see the module's comment on Phi-3).
    strips_right: bool,
    /// Tokens matched in plain text, and these together with control tokens.
    plain: OnceLock<SpecialMatcher>,
    parsing: OnceLock<SpecialMatcher>,
}

enum Model {
    Spm { spm: OnceLock<Spm>, scores: Vec<f32> },
    Bpe { bpe: OnceLock<Bpe>, pre: String },
}

impl Tokenizer {
    /// The token ids of `text`.
    ///
    /// # Errors
    /// [`TokenizerFault::TextTooLong`] beyond 1 GiB; with a `tokenizer.json`, whatever its rules
    /// refuse.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, CheckpointError> {
        self.encode_by(text, options, |out| self.encode_plain(text, options.parse_special, out))
    }

    /// BOS and EOS about the ids that `encode` appends for `text`.
    fn encode_by(
        &self,
        text: &str,
        options: EncodeOptions,
        encode: impl FnOnce(&mut Vec<u32>) -> Result<(), CheckpointError>,
    ) -> Result<Vec<u32>, CheckpointError> {
        const LIMIT: usize = 1 << 30;
        if text.len() > LIMIT {
            return Err(self.fault(TokenizerFault::TextTooLong { found: text.len() }));
        }
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        if options.add_special && self.add_bos {
            ids.extend(self.special.bos);
        }
        let added = ids.len();
        encode(&mut ids)?;
        if added > 0 && ids.get(added) == self.special.bos.as_ref() {
            // The text, a template's output, wrote the BOS itself: one is enough.
            ids.remove(0);
        }
        if options.add_special && self.add_eos && ids.last() != self.special.eos.as_ref() {
            ids.extend(self.special.eos);
        }
        Ok(ids)
    }

    /// Appends the ids of `text` itself.
    fn encode_plain(
        &self,
        text: &str,
        parse_special: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), CheckpointError> {
        match &self.engine {
            Engine::Gguf(engine) => engine.encode(self, text, parse_special, out),
            Engine::Json(engine) => engine.encode(text, parse_special, out),
        }
    }

    /// Token `id` as text to show: leading spaces kept, control tokens by name, single bytes as
    /// `<0xE2>` (so is every byte of a token that is no whole UTF-8). An id that the vocabulary
    /// does not have is `[PAD<id>]`: embeddings are often padded with such rows.
    pub fn token_text(&self, id: u32) -> String {
        if id as usize >= self.vocabulary.len() {
            return format!("[PAD{id}]");
        }
        if self.vocabulary.kind(id) == TokenKind::Byte {
            return self.vocabulary.piece(id).to_owned();
        }
        let bytes = self.vocabulary.bytes(id);
        let mut text = String::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            for byte in chunk.invalid() {
                text.push_str(&format!("<0x{byte:02X}>"));
            }
        }
        text
    }

    /// The bytes of text that token `id` stands for: a control token's are its name, those of an
    /// id that the vocabulary does not have are none.
    pub fn token_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        self.vocabulary.bytes(id)
    }

    /// Token `id` as the vocabulary spells it: `▁the`, `Ġthe`, `<0xE2>`. Empty for an id that it
    /// does not have.
    pub fn piece(&self, id: u32) -> &str {
        self.vocabulary.piece(id)
    }

    /// The token that the vocabulary spells exactly `piece`.
    pub fn id_of(&self, piece: &str) -> Option<u32> {
        self.vocabulary.id_of(piece)
    }

    /// What token `id` is for.
    pub fn kind(&self, id: u32) -> TokenKind {
        self.vocabulary.kind(id)
    }

    /// Number of tokens. A model's embeddings may have more rows.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The token that begins a document.
    pub fn bos(&self) -> Option<u32> {
        self.special.bos
    }

    /// The token that ends a document.
    pub fn eos(&self) -> Option<u32> {
        self.special.eos
    }

    /// The token for what the vocabulary cannot spell.
    pub fn unknown(&self) -> Option<u32> {
        self.special.unknown
    }

    /// The token that fills short sequences of a batch.
    pub fn pad(&self) -> Option<u32> {
        self.special.pad
    }

    /// Whether the model wants [`bos`](Tokenizer::bos) first.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether generation ends at token `id`.
    pub fn ends_generation(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// The model's chat template (Jinja).
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    fn fault(&self, fault: TokenizerFault) -> CheckpointError {
        CheckpointError::tokenizer(&self.source, fault)
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({} tokens of {})", self.vocab_size(), self.source.display())
    }
}

impl GgufEngine {
    /// Appends the ids of `text`.
    fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        parse_special: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), CheckpointError> {
        let vocabulary = &tokenizer.vocabulary;
        let mut after_special = true;
        for fragment in self.matcher(vocabulary, parse_special).split(text) {
            match (fragment, &self.model) {
                (Fragment::Token(id), _) => {
                    out.push(id);
                    after_special = true;
                }
                (Fragment::Text(range), Model::Spm { spm, scores }) => {
                    let spm = Self::spm(spm, tokenizer, scores);
                    let prefix = tokenizer.space_prefix && after_special;
                    spm.encode(vocabulary, &text[range], prefix, out);
                    after_special = false;
                }
                (Fragment::Text(range), Model::Bpe { bpe, pre }) => {
                    self.bpe(bpe, tokenizer, pre)?.encode(vocabulary, &text[range], out);
                }
            }
        }
        Ok(())
    }

    fn matcher(&self, vocabulary: &Vocabulary, parse_special: bool) -> &SpecialMatcher {
        use TokenKind::{Control, Unknown, UserDefined};
        let (slot, kinds): (_, &[TokenKind]) = match parse_special {
            true => (&self.parsing, &[UserDefined, Control, Unknown]),
            false => (&self.plain, &[UserDefined]),
        };
        slot.get_or_init(|| self.matcher_of(vocabulary, &vocabulary.ids_of_kind(kinds)))
    }

    fn matcher_of(&self, vocabulary: &Vocabulary, ids: &[u32]) -> SpecialMatcher {
        let keeps = ["<unk>", "<s>", "<|endoftext|>"];
        let strips = |text: &str| self.strips_right && !keeps.contains(&text);
        SpecialMatcher::new(vocabulary, ids, strips)
    }
}
