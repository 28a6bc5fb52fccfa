//! A tokenizer from a Hugging Face directory: `tokenizer.json` through the `tokenizers` crate,
//! roles and the chat template from `tokenizer_config.json`.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;

use super::vocabulary::{METASPACE, Spelling, TokenKind, Vocabulary, byte_token};
use super::{Engine, SpecialIds, Tokenizer, TokenizerFault};
use crate::CheckpointError;

/// Encodes by the rules of a `tokenizer.json`.
pub(super) struct JsonEngine {
    /// Reads control tokens that are written out in text.
    pub(super) parsing: tokenizers::Tokenizer,
    /// The same, taking them for plain text.
    plain: OnceLock<tokenizers::Tokenizer>,
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
        let Some(json) = read(&source)? else {
            let fault = TokenizerFault::NoTokenizerJson { dir: dir.to_owned() };
            return Err(CheckpointError::tokenizer(&source, fault));
        };
        let mut parsing =
            tokenizers::Tokenizer::from_bytes(&json).map_err(|e| unusable(&source, e))?;
        parsing.with_padding(None);
        parsing.with_truncation(None).map_err(|e| unusable(&source, e))?;
        let config = Config::read(dir)?;

        let vocabulary =
            vocabulary(&parsing).map_err(|f| CheckpointError::tokenizer(&source, f))?;
        let empty = parsing.encode("", true).map_err(|e| unusable(&source, e))?;
        let id_of = |key: &str| parsing.token_to_id(&config.token(key)?);
        let bos = id_of("bos_token").or_else(|| empty.get_ids().first().copied());
        let eos = id_of("eos_token");
        let special = SpecialIds { bos, eos, unknown: id_of("unk_token"), pad: id_of("pad_token") };
        // `transformers` lets the configuration overrule what tokenizer.json would add.
        let adds = |key: &str, added: bool| config.flag(key).unwrap_or(added);
        let add_bos =
            bos.is_some() && adds("add_bos_token", empty.get_ids().first() == bos.as_ref());
        let adds_eos = empty.get_ids().len() > 1 && empty.get_ids().last() == eos.as_ref();
        let add_eos = eos.is_some() && adds("add_eos_token", adds_eos);
        let ends = eos.into_iter().collect();
        let chat_template = config.chat_template(dir)?;
        let space_prefix = puts_space_first(&parsing);
        let engine = Engine::Json(Box::new(JsonEngine { parsing, plain: OnceLock::new() }));
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
        })
    }
}

impl JsonEngine {
    /// Appends the ids of `text`, without BOS or EOS.
    pub(super) fn encode(
        &self,
        source: &Path,
        text: &str,
        parse_special: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), CheckpointError> {
        let tokenizer = match parse_special {
            true => &self.parsing,
            false => self.plain.get_or_init(|| {
                let mut plain = self.parsing.clone();
                plain.set_encode_special_tokens(true);
                plain
            }),
        };
        let encoding = tokenizer.encode_fast(text, false).map_err(|e| unusable(source, e))?;
        out.extend_from_slice(encoding.get_ids());
        Ok(())
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
    /// named "default").
    fn chat_template(&self, dir: &Path) -> Result<Option<String>, CheckpointError> {
        let path = dir.join("chat_template.jinja");
        if let Some(bytes) = read(&path)? {
            return String::from_utf8(bytes).map(Some).map_err(|e| unusable(&path, e));
        }
        let template = match self.value.get("chat_template") {
            Some(Value::Array(named)) => {
                let default = |t: &&Value| t.get("name").and_then(Value::as_str) == Some("default");
                named.iter().find(default).and_then(|t| t.get("template"))
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
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(CheckpointError::io(path, "read", e)),
    }
}

fn unusable(path: &Path, error: impl std::fmt::Display) -> CheckpointError {
    CheckpointError::tokenizer(path, TokenizerFault::Json { message: error.to_string() })
}

/// All tokens with their kinds, in the form that GGUF has them: user-defined tokens with literal
/// spaces.
fn vocabulary(tokenizer: &tokenizers::Tokenizer) -> Result<Vocabulary, TokenizerFault> {
    let byte_level = [to_json(&tokenizer.get_pre_tokenizer()), to_json(&tokenizer.get_decoder())]
        .iter()
        .any(|part| mentions(part, "ByteLevel"));
    let spelling = if byte_level { Spelling::ByteLevel } else { Spelling::Metaspace };
    let texts = tokenizer.get_vocab(true);
    let added = tokenizer.get_added_tokens_decoder();
    let len = texts.values().max().map_or(0, |&id| id as usize + 1);
    // Ids without a token are few; anything else is a damaged file.
    if len > 2 * texts.len() + 65_536 {
        let message =
            format!("the highest token id is {}, but there are {} tokens", len - 1, texts.len());
        return Err(TokenizerFault::Json { message });
    }
    let mut by_id: Vec<Option<String>> = vec![None; len];
    for (text, id) in texts {
        by_id[id as usize] = Some(text);
    }
    let unknown = to_json(&Some(tokenizer.get_model())).get("unk_token").cloned();
    let unknown = unknown.as_ref().and_then(Value::as_str);
    let mut vocabulary = Vocabulary::new(spelling, len);
    for (id, text) in by_id.into_iter().enumerate() {
        let Some(text) = text else {
            vocabulary.push(&format!("[PAD{id}]"), TokenKind::Unused)?;
            continue;
        };
        let token = added.get(&(id as u32));
        let metaspace = spelling == Spelling::Metaspace;
        let kind = match token {
            _ if metaspace && Some(text.as_str()) == unknown => TokenKind::Unknown,
            Some(token) if token.special => TokenKind::Control,
            Some(_) => TokenKind::UserDefined,
            None if metaspace && byte_token(&text).is_some() => TokenKind::Byte,
            None => TokenKind::Normal,
        };
        if kind == TokenKind::UserDefined && metaspace {
            vocabulary.push(&text.replace(METASPACE, " "), kind)?;
        } else {
            vocabulary.push(&text, kind)?;
        }
    }
    Ok(vocabulary)
}

/// Whether a SentencePiece-like tokenizer puts a space before the text.
fn puts_space_first(tokenizer: &tokenizers::Tokenizer) -> bool {
    let prepends = mentions(&to_json(&tokenizer.get_normalizer()), "Prepend");
    let pre = to_json(&tokenizer.get_pre_tokenizer());
    let scheme = |part: &Value| {
        let scheme = part.get("prepend_scheme").and_then(Value::as_str);
        scheme.is_some_and(|scheme| scheme != "never")
    };
    let nested = pre.get("pretokenizers").and_then(Value::as_array);
    prepends || scheme(&pre) || nested.is_some_and(|parts| parts.iter().any(scheme))
}

/// A part of a tokenizer as its JSON.
pub(super) fn to_json<T: serde::Serialize>(part: &Option<T>) -> Value {
    part.as_ref().and_then(|part| serde_json::to_value(part).ok()).unwrap_or(Value::Null)
}

/// Whether `part`, or any part inside it, is of `kind`.
pub(super) fn mentions(part: &Value, kind: &str) -> bool {
    match part {
        Value::Object(fields) => {
            fields.get("type").and_then(Value::as_str) == Some(kind)
                || fields.values().any(|v| mentions(v, kind))
        }
        Value::Array(parts) => parts.iter().any(|v| mentions(v, kind)),
        _ => false,
    }
}
