//! A tokenizer from the metadata of a GGUF file.

use std::sync::OnceLock;

use super::bpe::Bpe;
use super::control;
use super::pretokenize::{self, PreTokenizer};
use super::spm::Spm;
use super::vocabulary::{Spelling, TokenKind, Vocabulary};
use super::{Engine, GgufEngine, Model, SpecialIds, Tokenizer, TokenizerFault};
use crate::CheckpointError;
use crate::gguf::Metadata;

pub(super) const MODEL: &str = "tokenizer.ggml.model";
pub(super) const PRE: &str = "tokenizer.ggml.pre";
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const SCORES: &str = "tokenizer.ggml.scores";
pub(super) const TYPES: &str = "tokenizer.ggml.token_type";
pub(super) const MERGES: &str = "tokenizer.ggml.merges";
pub(super) const BOS: &str = "tokenizer.ggml.bos_token_id";
pub(super) const EOS: &str = "tokenizer.ggml.eos_token_id";
pub(super) const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
pub(super) const PAD: &str = "tokenizer.ggml.padding_token_id";
pub(super) const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
pub(super) const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
pub(super) const SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
pub(super) const TEMPLATE: &str = "tokenizer.chat_template";

/// What the file leaves out, by tokenizer model.
struct Defaults {
    bos: Option<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
    add_bos: bool,
}

impl Tokenizer {
    /// The tokenizer in a GGUF file's metadata (`tokenizer.ggml.*`).
    ///
    /// # Errors
    /// A [`TokenizerFault`]: no tokenizer, one of a kind that larql does not have, or arrays that
    /// contradict each other; a missing or ill-typed key as the metadata reports it.
    pub fn from_gguf(metadata: &Metadata) -> Result<Tokenizer, CheckpointError> {
        let fault = |fault| CheckpointError::tokenizer(metadata.path(), fault);
        let model = metadata.get_str(MODEL)?.ok_or_else(|| fault(TokenizerFault::NoTokenizer))?;
        let (spelling, model, defaults) = match model {
            "llama" => {
                let defaults =
                    Defaults { bos: Some(1), eos: Some(2), unknown: Some(0), add_bos: true };
                let scores = metadata.require(SCORES, Metadata::get_f32_array)?;
                let model = Model::Spm { scores, spm: OnceLock::new() };
                (Spelling::Metaspace, model, defaults)
            }
            "gpt2" => {
                let pre = metadata.get_str(PRE)?.unwrap_or("default").to_owned();
                let add_bos = pretokenize::adds_bos(&pre).map_err(fault)?;
                let defaults = Defaults { bos: Some(11), eos: Some(11), unknown: None, add_bos };
                metadata.require(MERGES, Metadata::get_string_array)?;
                (Spelling::ByteLevel, Model::Bpe { pre, bpe: OnceLock::new() }, defaults)
            }
            other => return Err(fault(unsupported(other))),
        };
        let mut vocabulary = vocabulary(metadata, spelling)?;
        if let Model::Spm { scores, .. } = &model {
            same_length(SCORES, &vocabulary, scores.len()).map_err(fault)?;
        }
        let id_at = |key: &'static str, default: Option<u32>| match metadata.get_u32(key)? {
            Some(found) if found as usize >= vocabulary.len() => {
                let tokens = vocabulary.len();
                Err(fault(TokenizerFault::SpecialOutOfRange { key, found, tokens }))
            }
            Some(found) => Ok(Some(found)),
            None => Ok(default.filter(|&id| (id as usize) < vocabulary.len())),
        };
        let special = SpecialIds {
            bos: id_at(BOS, defaults.bos)?,
            eos: id_at(EOS, defaults.eos)?,
            unknown: id_at(UNKNOWN, defaults.unknown)?,
            pad: id_at(PAD, None)?,
        };
        let ends = control::mark(&mut vocabulary, |key| match key {
            EOS => special.eos,
            _ => metadata.get_u32(key).ok().flatten(),
        });
        let space_prefix = match model {
            Model::Spm { .. } => metadata.get_bool(SPACE_PREFIX)?.unwrap_or(true),
            Model::Bpe { .. } => false,
        };
        let name = metadata.get_str("general.name")?.unwrap_or_default().to_lowercase();
        let strips_right = name.contains("phi-3") || name.contains("phi3");
        Ok(Tokenizer {
            vocabulary,
            special,
            ends,
            add_bos: metadata.get_bool(ADD_BOS)?.unwrap_or(defaults.add_bos),
            add_eos: metadata.get_bool(ADD_EOS)?.unwrap_or(false),
            space_prefix,
            chat_template: metadata.get_str(TEMPLATE)?.map(str::to_owned),
            source: metadata.path().to_owned(),
            engine: Engine::Gguf(Box::new(GgufEngine {
                metadata: metadata.clone(),
                model,
                strips_right,
                plain: OnceLock::new(),
                parsing: OnceLock::new(),
            })),
            controls: OnceLock::new(),
        })
    }
}

impl GgufEngine {
    /// The SentencePiece model, built on first use.
    pub(super) fn spm<'a>(
        slot: &'a OnceLock<Spm>,
        tokenizer: &Tokenizer,
        scores: &[f32],
    ) -> &'a Spm {
        let (vocabulary, unknown) = (&tokenizer.vocabulary, tokenizer.special.unknown);
        slot.get_or_init(|| Spm::new(vocabulary, scores, unknown))
    }

    /// The BPE model, built on first use.
    pub(super) fn bpe<'a>(
        &self,
        slot: &'a OnceLock<Bpe>,
        tokenizer: &Tokenizer,
        pre: &str,
    ) -> Result<&'a Bpe, CheckpointError> {
        if let Some(bpe) = slot.get() {
            return Ok(bpe);
        }
        let pre = PreTokenizer::named(pre).map_err(|fault| tokenizer.fault(fault))?;
        let array = self.metadata.require(MERGES, Metadata::get_string_array)?;
        let merges: Vec<&str> = array.strings().into_iter().flatten().collect::<Result<_, _>>()?;
        let pairs = merges.into_iter().map(split_merge);
        let bpe = Bpe::new(&tokenizer.vocabulary, pairs, pre);
        Ok(slot.get_or_init(|| bpe))
    }
}

/// The halves of a merge: they are joined by a space, which stands after the first character at
/// the earliest.
fn split_merge(merge: &str) -> (&str, &str) {
    let from = merge.chars().next().map_or(0, char::len_utf8);
    match merge[from..].find(' ') {
        Some(space) => (&merge[..from + space], &merge[from + space + 1..]),
        None => ("", ""),
    }
}

/// All tokens with their kinds.
fn vocabulary(metadata: &Metadata, spelling: Spelling) -> Result<Vocabulary, CheckpointError> {
    let fault = |fault| CheckpointError::tokenizer(metadata.path(), fault);
    let tokens = metadata.require(TOKENS, Metadata::get_string_array)?;
    let types = metadata.get_i32_array(TYPES)?;
    let mut vocabulary = Vocabulary::new(spelling, tokens.len());
    for (id, piece) in tokens.strings().into_iter().flatten().enumerate() {
        let number = types.as_ref().map_or(Some(1), |types| types.get(id).copied());
        let kind = match number {
            Some(found) => TokenKind::from_gguf(found.into())
                .ok_or_else(|| fault(TokenizerFault::UnknownKind { id, found: found.into() }))?,
            // The arrays' lengths differ, which is refused below.
            None => TokenKind::Unused,
        };
        vocabulary.push(piece?, kind).map_err(fault)?;
    }
    if let Some(types) = types {
        same_length(TYPES, &vocabulary, types.len()).map_err(fault)?;
    }
    Ok(vocabulary)
}

fn same_length(
    key: &'static str,
    vocabulary: &Vocabulary,
    found: usize,
) -> Result<(), TokenizerFault> {
    let expected = vocabulary.len();
    if found == expected { Ok(()) } else { Err(TokenizerFault::Length { key, expected, found }) }
}

/// The refusal of a tokenizer model by name.
fn unsupported(found: &str) -> TokenizerFault {
    let what = match found {
        "t5" => "unigram SentencePiece, as in T5",
        "bert" => "WordPiece, as in BERT",
        "rwkv" => "RWKV's greedy tokenizer",
        "plamo2" => "PLaMo 2's tokenizer",
        "gemma4" => "Gemma 4's BPE over UTF-8",
        "none" | "no_vocab" => "none at all: the model takes ids or embeddings",
        _ => "a name that larql does not know",
    };
    TokenizerFault::UnsupportedModel { found: found.to_owned(), what }
}
