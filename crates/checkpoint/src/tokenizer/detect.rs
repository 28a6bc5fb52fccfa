//! Which of GGUF's tokenizers a `tokenizer.json` is, by its parts.

use serde_json::Value;

use super::TokenizerFault;
use super::from_json::JsonEngine;

/// A part of a pre-tokeniser, flattened out of its sequences.
#[derive(Debug, PartialEq)]
enum Part<'a> {
    /// Every match of this pattern becomes a word.
    Split(&'a str),
    /// Digits: each a word, or runs of them.
    Digits { each: bool },
    /// Spelling as bytes; with GPT-2's pattern before it where `splits`.
    ByteLevel { splits: bool },
}

use Part::{ByteLevel, Digits, Split};

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const HAN: &str = "[一-龥ࠀ-一가-퟿]+";
const CJK: &str = "[一-龥぀-ゟ゠-ヿ]+";
const DEEPSEEK3: &str = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

/// GGUF's name of a byte-level tokenizer's pre-tokeniser.
pub(super) fn byte_level(engine: &JsonEngine) -> Result<&'static str, TokenizerFault> {
    normalizer(engine, &["NFC"])?;
    let mut parts = Vec::new();
    flatten(&engine.pre_tokenizer, &mut parts)?;
    let name = match (parts.as_slice(), engine.words_are_tokens) {
        ([ByteLevel { splits: true }], false) => "gpt-2",
        ([Digits { each: true }, ByteLevel { splits: true }], false) => "smollm",
        ([Split(LLAMA3), ByteLevel { splits: false }], true) => "llama-bpe",
        ([Split(LLAMA3), ByteLevel { splits: false }], false) => "dbrx",
        ([Split(QWEN2), ByteLevel { splits: false }], false) => "qwen2",
        ([Split(QWEN35), ByteLevel { splits: false }], false) => "qwen35",
        ([Split(TEKKEN), ByteLevel { splits: false }], true) => "tekken",
        ([Split(GPT4O), ByteLevel { splits: false }], false) => "gpt-4o",
        (
            [
                Split("[\r\n]"),
                Split(letters),
                Split(punctuation),
                Split(r"\s+$"),
                Split(HAN),
                Split(r"\p{N}+") | Digits { each: false },
                ByteLevel { splits: false },
            ],
            false,
        ) if letters.starts_with(r"\s?[A-Za-zµ") && punctuation.starts_with(r"\s?[!-/:-~！") => {
            "deepseek-llm"
        }
        (
            [
                Split("[\r\n]"),
                Split(r"\s?\p{L}+"),
                Split(r"\s?\p{P}+"),
                Split(HAN),
                Split(r"\p{N}") | Digits { each: true },
                ByteLevel { splits: false },
            ],
            false,
        ) => "deepseek-coder",
        (
            [Split(r"\p{N}{1,3}"), Split(CJK), Split(DEEPSEEK3), ByteLevel { splits: false }],
            false,
        ) => "deepseek-v3",
        _ => {
            let rule = if engine.words_are_tokens { " with ignore_merges" } else { "" };
            return Err(refuse(format!(
                "llama.cpp has no name for its pre-tokenizer{rule}: {parts:?}"
            )));
        }
    };
    Ok(name)
}

/// Checks that a SentencePiece-like tokenizer does nothing but write spaces as `▁`.
pub(super) fn metaspace(engine: &JsonEngine) -> Result<(), TokenizerFault> {
    normalizer(engine, &["Prepend", "Replace"])?;
    let kind = engine.pre_tokenizer.get("type").and_then(Value::as_str);
    match kind {
        // Gemma's cuts at spaces, of which the normaliser leaves none.
        None | Some("Metaspace" | "Split") => Ok(()),
        Some(kind) => Err(refuse(format!("llama.cpp's SentencePiece has no pre-tokenizer {kind}"))),
    }
}

/// Refuses normalisers other than `allowed`.
fn normalizer(engine: &JsonEngine, allowed: &[&str]) -> Result<(), TokenizerFault> {
    fn check(part: &Value, allowed: &[&str]) -> Result<(), TokenizerFault> {
        let Some(kind) = part.get("type").and_then(Value::as_str) else { return Ok(()) };
        let nested = part.get("normalizers").and_then(Value::as_array);
        match nested {
            Some(parts) => parts.iter().try_for_each(|part| check(part, allowed)),
            None if allowed.contains(&kind) => Ok(()),
            None => Err(refuse(format!("llama.cpp has no normalizer {kind}"))),
        }
    }
    check(&engine.normalizer, allowed)
}

/// Appends the parts of a pre-tokeniser, in order.
fn flatten<'a>(pre: &'a Value, out: &mut Vec<Part<'a>>) -> Result<(), TokenizerFault> {
    let flag = |key: &str| pre.get(key).and_then(Value::as_bool).unwrap_or(false);
    let text = |key: &str| pre.get(key).and_then(Value::as_str);
    match text("type") {
        Some("Sequence") => {
            let parts = pre.get("pretokenizers").and_then(Value::as_array);
            parts.into_iter().flatten().try_for_each(|part| flatten(part, out))?;
        }
        Some("Split") if text("behavior") == Some("Isolated") && !flag("invert") => {
            let pattern = pre.get("pattern");
            let pattern = pattern.and_then(|p| p.get("Regex").or_else(|| p.get("String")));
            out.push(Split(pattern.and_then(Value::as_str).unwrap_or_default()));
        }
        Some("Digits") => out.push(Digits { each: flag("individual_digits") }),
        Some("ByteLevel") if !flag("add_prefix_space") => {
            out.push(ByteLevel { splits: flag("use_regex") });
        }
        _ => return Err(refuse(format!("llama.cpp has no name for its pre-tokenizer: {pre}"))),
    }
    Ok(())
}

fn refuse(reason: String) -> TokenizerFault {
    TokenizerFault::NotExpressible { reason }
}
