//! A tokenizer from a Hugging Face directory: `tokenizer.json`, which the `tokenizers` crate
//! encodes by, roles and the chat template from `tokenizer_config.json`.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;
use tokenizers::{Encoding, PostProcessor};

use super::control;
use super::json_file::{Merges, Parts, Token, Vocab};
use super::vocabulary::{METASPACE, Spelling, TokenKind, Vocabulary, byte_token};
use super::{Engine, SpecialIds, Tokenizer, TokenizerFault};
use crate::{CheckpointError, Map};

/// Encodes by the rules of a `tokenizer.json`.
pub(super) struct JsonEngine {
    json: Map,
    /// Parts of the file, with what it leaves to the defaults filled in.
    pub(super) normalizer: Value,
    pub(super) pre_tokenizer: Value,
    /// Whether the model is BPE, and whether it then takes whole words before it merges.
    pub(super) is_bpe: bool,
    pub(super) words_are_tokens: bool,
    /// Takes control tokens that are written out in text for plain text; built on first use, as
    /// it needs many times the memory of everything else here.
    plain: OnceLock<tokenizers::Tokenizer>,
    /// The same, reading them.
    parsing: OnceLock<tokenizers::Tokenizer>,
}

impl Tokenizer {
    /// The tokenizer of a Hugging Face directory: `tokenizer.json`, and where they are there
    /// `tokenizer_config.json` and `chat_template.jinja`.
    ///
    /// # Errors
    /// [`TokenizerFault::NoTokenizerJson`] without the first, [`TokenizerFault::Json`] where one
    /// of them cannot be used.
    pub fn from_checkpoint_dir(dir: &Path) -> Result<Tokenizer, CheckpointError> {
        let source = dir.join("tokenizer.json");
        let json = Map::open(&source).map_err(|error| match &error {
            CheckpointError::Io { source: e, .. } if e.kind() == ErrorKind::NotFound => {
                let fault = TokenizerFault::NoTokenizerJson { dir: dir.to_owned() };
                CheckpointError::tokenizer(&source, fault)
            }
            _ => error,
        })?;
        let parts: Parts<'_> =
            serde_json::from_slice(json.bytes()).map_err(|e| unusable(&source, e))?;
        let config = Config::read(dir)?;
        let normalizer = to_json(&parts.normalizer);
        let pre_tokenizer = to_json(&parts.pre_tokenizer);
        let is_bpe = parts.model.is_bpe();
        let words_are_tokens = parts.model.ignore_merges.unwrap_or(false);
        let empty = match &parts.post_processor {
            Some(processor) => processor
                .process(Encoding::default(), None, true)
                .map_err(|e| unusable(&source, e))?,
            None => Encoding::default(),
        };
        let byte_level = [&pre_tokenizer, &to_json(&parts.decoder)]
            .iter()
            .any(|part| mentions(part, "ByteLevel"));
        let spelling = if byte_level { Spelling::ByteLevel } else { Spelling::Metaspace };
        let vocabulary =
            vocabulary(parts, spelling).map_err(|f| CheckpointError::tokenizer(&source, f))?;
        // Nothing of the file is wanted again before somebody encodes.
        json.forget()?;
        let id_of = |key: &str| vocabulary.id_of(&config.token(key)?);
        let bos = id_of("bos_token").or_else(|| empty.get_ids().first().copied());
        let eos = id_of("eos_token");
        let special = SpecialIds { bos, eos, unknown: id_of("unk_token"), pad: id_of("pad_token") };
        // `transformers` lets the configuration overrule what tokenizer.json would add.
        let adds = |key: &str, added: bool| config.flag(key).unwrap_or(added);
        let add_bos =
            bos.is_some() && adds("add_bos_token", empty.get_ids().first() == bos.as_ref());
        let adds_eos = empty.get_ids().len() > 1 && empty.get_ids().last() == eos.as_ref();
        let add_eos = eos.is_some() && adds("add_eos_token", adds_eos);
        let ends = control::ends(&vocabulary, eos);
        let chat_template = config.chat_template(dir)?;
        let space_prefix = puts_space_first(&normalizer, &pre_tokenizer);
        let engine = Engine::Json(Box::new(JsonEngine {
            json,
            normalizer,
            pre_tokenizer,
            is_bpe,
            words_are_tokens,
            plain: OnceLock::new(),
            parsing: OnceLock::new(),
        }));
        Ok(Tokenizer {
            vocabulary,
            special,
            ends,
            add_bos,
            add_eos,
            space_prefix,
            chat_template,
            source,
            engine,
            controls: OnceLock::new(),
        })
    }
}

impl JsonEngine {
    /// Appends the ids of `text`, without BOS or EOS.
    pub(super) fn encode(
        &self,
        text: &str,
        parse_special: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), CheckpointError> {
        let slot = if parse_special { &self.parsing } else { &self.plain };
        let tokenizer = match slot.get() {
            Some(tokenizer) => tokenizer,
            None => {
                let built = self.build(parse_special).map_err(|e| unusable(self.json.path(), e))?;
                self.json.forget()?;
                slot.get_or_init(|| built)
            }
        };
        let encoding =
            tokenizer.encode_fast(text, false).map_err(|e| unusable(self.json.path(), e))?;
        out.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    fn build(&self, parse_special: bool) -> tokenizers::Result<tokenizers::Tokenizer> {
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(self.json.bytes())?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None)?;
        tokenizer.set_encode_special_tokens(!parse_special);
        Ok(tokenizer)
    }

    /// The merges of a BPE model.
    pub(super) fn merges(&self) -> Result<Merges, CheckpointError> {
        let merges = Merges::read(self.json.bytes()).map_err(|e| unusable(self.json.path(), e))?;
        self.json.forget()?;
        Ok(merges)
    }
}

/// What `tokenizer_config.json` says; empty where there is none.
struct Config {
    value: Value,
}

impl Config {
    fn read(dir: &Path) -> Result<Config, CheckpointError> {
        let path = dir.join("tokenizer_config.json");
        let value = match read(&path)? {
            Some(json) => serde_json::from_slice(&json).map_err(|e| unusable(&path, e))?,
            None => Value::Null,
        };
        Ok(Config { value })
    }

    /// A token with a role: a string, or an object that has it as `content`.
    fn token(&self, key: &str) -> Option<String> {
        let token = self.value.get(key)?;
        let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
        Some(text.to_owned())
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.value.get(key)?.as_bool()
    }

    /// The chat template: `chat_template.jinja`, else the configuration's (of several the one
    /// named "default"; of one, that).
    fn chat_template(&self, dir: &Path) -> Result<Option<String>, CheckpointError> {
        let path = dir.join("chat_template.jinja");
        if let Some(bytes) = read(&path)? {
            return String::from_utf8(bytes).map(Some).map_err(|e| unusable(&path, e));
        }
        let template = match self.value.get("chat_template") {
            Some(Value::Array(named)) => {
                let default = |t: &&Value| t.get("name").and_then(Value::as_str) == Some("default");
                let only = named.first().filter(|_| named.len() == 1);
                named.iter().find(default).or(only).and_then(|t| t.get("template"))
            }
            other => other,
        };
        Ok(template.and_then(Value::as_str).map(str::to_owned))
    }
}

/// A file's bytes; None where there is no such file.
fn read(path: &Path) -> Result<Option<Vec<u8>>, CheckpointError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(CheckpointError::io(path, "read", e)),
    }
}

fn unusable(path: &Path, error: impl std::fmt::Display) -> CheckpointError {
    CheckpointError::tokenizer(path, TokenizerFault::Json { message: error.to_string() })
}

/// All tokens with their kinds, in the form that GGUF has them: user-defined tokens with literal
/// spaces.
fn vocabulary(parts: Parts<'_>, spelling: Spelling) -> Result<Vocabulary, TokenizerFault> {
    let Vocab(mut tokens) = parts.model.vocab;
    // An added token that the model has keeps the model's id; the others follow after the model.
    let added = parts.added_tokens.iter().filter(|token| !token.content.is_empty());
    let mut special: HashMap<&str, bool> =
        added.clone().map(|token| (&*token.content, token.special)).collect();
    for token in &mut tokens {
        token.added = special.remove(&*token.text);
    }
    for token in added {
        if let Some(special) = special.remove(&*token.content) {
            let (text, id) = (token.content.clone(), tokens.len() as u32);
            tokens.push(Token { text, id, added: Some(special) });
        }
    }
    tokens.sort_by_key(|token| token.id);
    let len = tokens.last().map_or(0, |token| token.id as usize + 1);
    // Ids without a token are few; anything else is a damaged file.
    if len > 2 * tokens.len() + 65_536 {
        let message =
            format!("the highest token id is {}, but there are {} tokens", len - 1, tokens.len());
        return Err(TokenizerFault::Json { message });
    }
    let metaspace = spelling == Spelling::Metaspace;
    let mut vocabulary = Vocabulary::new(spelling, len);
    for (place, token) in tokens.iter().enumerate() {
        // Of two tokens with one id, the later is the one.
        if tokens.get(place + 1).is_some_and(|next| next.id == token.id) {
            continue;
        }
        for hole in vocabulary.len()..token.id as usize {
            vocabulary.push(&format!("[PAD{hole}]"), TokenKind::Unused)?;
        }
        let text = &*token.text;
        let kind = match token.added {
            _ if metaspace && Some(text) == parts.model.unk_token.as_deref() => TokenKind::Unknown,
            Some(true) => TokenKind::Control,
            Some(false) => TokenKind::UserDefined,
            None if metaspace && byte_token(text).is_some() => TokenKind::Byte,
            None => TokenKind::Normal,
        };
        if kind == TokenKind::UserDefined && metaspace {
            vocabulary.push(&text.replace(METASPACE, " "), kind)?;
        } else {
            vocabulary.push(text, kind)?;
        }
    }
    Ok(vocabulary)
}

/// Whether a SentencePiece-like tokenizer puts a space before the text.
fn puts_space_first(normalizer: &Value, pre_tokenizer: &Value) -> bool {
    let scheme = |part: &Value| {
        let scheme = part.get("prepend_scheme").and_then(Value::as_str);
        scheme.is_some_and(|scheme| scheme != "never")
    };
    let nested = pre_tokenizer.get("pretokenizers").and_then(Value::as_array);
    mentions(normalizer, "Prepend")
        || scheme(pre_tokenizer)
        || nested.is_some_and(|parts| parts.iter().any(scheme))
}

/// A part of a tokenizer as its JSON.
fn to_json<T: serde::Serialize>(part: &Option<T>) -> Value {
    part.as_ref().and_then(|part| serde_json::to_value(part).ok()).unwrap_or(Value::Null)
}

/// Whether `part`, or any part inside it, is of `kind`.
fn mentions(part: &Value, kind: &str) -> bool {
    match part {
        Value::Object(fields) => {
            fields.get("type").and_then(Value::as_str) == Some(kind)
                || fields.values().any(|v| mentions(v, kind))
        }
        Value::Array(parts) => parts.iter().any(|v| mentions(v, kind)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_that_the_tokenizers_crate_gives() {
        // An added token inside the model's vocabulary, one with an id that nobody heeds, one
        // twice, an empty one; a vocabulary out of order and with a hole.
        let json = r#"{"version": "1.0", "added_tokens": [
            {"id": 7, "content": "b", "special": true, "single_word": false, "lstrip": false,
             "rstrip": false, "normalized": false},
            {"id": 900, "content": "\u2581new", "special": false, "single_word": false,
             "lstrip": false, "rstrip": false, "normalized": false},
            {"id": 900, "content": "\u2581new", "special": false, "single_word": true,
             "lstrip": false, "rstrip": false, "normalized": false},
            {"id": 901, "content": "", "special": false, "single_word": false, "lstrip": false,
             "rstrip": false, "normalized": false},
            {"id": 902, "content": "<end>", "special": true, "single_word": false,
             "lstrip": false, "rstrip": false, "normalized": false}],
            "model": {"type": "BPE", "unk_token": "?", "merges": ["a b"],
             "vocab": {"ab": 8, "b": 1, "a": 0, "<0x41>": 3, "?": 2}}}"#;
        let theirs = tokenizers::Tokenizer::from_bytes(json).unwrap();
        let parts = serde_json::from_str(json).unwrap();
        let ours = vocabulary(parts, Spelling::Metaspace).unwrap();
        let known = theirs.get_vocab(true);
        assert_eq!(ours.len(), known.values().max().map_or(0, |&id| id as usize + 1));
        for id in 0..ours.len() as u32 {
            let expected = theirs.id_to_token(id).unwrap_or_else(|| format!("[PAD{id}]"));
            assert_eq!(ours.piece(id), expected.replace(METASPACE, " "));
        }
        use TokenKind::{Byte, Control, Normal, Unknown, Unused, UserDefined};
        let kinds: Vec<TokenKind> = (0..9).map(|id| ours.kind(id)).collect();
        let expected =
            [Normal, Control, Unknown, Byte, Unused, UserDefined, Control, Unused, Normal];
        assert_eq!(kinds, expected);
    }
}
