//! Decoding token by token, and control tokens that are only quoted, on the tokenizers of nine
//! families.
#![allow(clippy::unwrap_used, reason = "a test's helpers may panic too")]

use std::path::{Path, PathBuf};

use larql_checkpoint::gguf::Gguf;
use larql_checkpoint::tokenizer::{EncodeOptions, TokenKind, Tokenizer};

fn data(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tokenizers")).join(name)
}

/// Tokenizers of all kinds, from both sources.
fn tokenizers() -> Vec<(String, Tokenizer)> {
    let names = ["gpt-2", "llama-bpe", "qwen2", "deepseek-v3", "tekken", "spm-prefix", "spm-plain"];
    let gguf = names.map(|name| {
        let gguf = Gguf::open(data(&format!("{name}.gguf"))).unwrap();
        (format!("{name}.gguf"), Tokenizer::from_gguf(gguf.metadata()).unwrap())
    });
    let json = ["llama-bpe", "qwen2", "spm-prefix", "spm-plain"].map(|name| {
        let dir = tempfile::tempdir().unwrap();
        for (from, to) in [("json", "tokenizer.json"), ("config.json", "tokenizer_config.json")] {
            std::fs::copy(data(&format!("{name}.{from}")), dir.path().join(to)).unwrap();
        }
        (format!("{name}.json"), Tokenizer::from_checkpoint_dir(dir.path()).unwrap())
    });
    gguf.into_iter().chain(json).collect()
}

/// Numbers below `n`, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

#[test]
fn text_comes_the_same_token_by_token() {
    let mut random = Random(1);
    for (name, tokenizer) in tokenizers() {
        // Tokens that are no whole text are rare, so they are drawn on purpose.
        let is_part = |&id: &u32| str::from_utf8(&tokenizer.token_bytes(id)).is_err();
        let all: Vec<u32> = (0..tokenizer.vocab_size() as u32 + 2).collect();
        let parts: Vec<u32> = all.iter().copied().filter(is_part).collect();
        assert!(!parts.is_empty(), "{name}");
        for _ in 0..3000 {
            let ids: Vec<u32> = (0..random.below(9))
                .map(|_| {
                    let from = if random.below(2) == 0 { &parts } else { &all };
                    from[random.below(from.len())]
                })
                .collect();
            let mut bytes = Vec::new();
            for &id in &ids {
                use TokenKind::{Control, Unknown, Unused};
                if !matches!(tokenizer.kind(id), Control | Unknown | Unused) {
                    bytes.extend_from_slice(&tokenizer.token_bytes(id));
                }
            }
            let expected = String::from_utf8_lossy(&bytes);
            let mut expected = &*expected;
            if name.starts_with("spm-prefix") {
                expected = expected.strip_prefix(' ').unwrap_or(expected);
            }
            assert_eq!(tokenizer.decode(&ids), expected, "{name} {ids:?}");

            let (mut text, mut decoder) = (String::new(), tokenizer.decoder());
            for (n, &id) in ids.iter().enumerate() {
                decoder.push(id, &mut text);
                assert!(expected.starts_with(&text), "{name} {ids:?}: nothing is taken back");
                let mut so_far = text.clone();
                decoder.clone().finish(&mut so_far);
                assert_eq!(so_far, tokenizer.decode(&ids[..=n]), "{name} {ids:?}");
            }
        }
    }
}

#[test]
fn a_quoted_control_token_is_plain_text_and_the_others_are_read() {
    for (name, tokenizer) in tokenizers() {
        let controls: Vec<&str> = (0..tokenizer.vocab_size() as u32)
            .filter(|&id| tokenizer.kind(id) == TokenKind::Control)
            .map(|id| tokenizer.piece(id))
            .filter(|piece| !piece.is_empty())
            .collect();
        assert!(!controls.is_empty(), "{name}");
        let options = EncodeOptions { add_special: false, parse_special: true };
        for control in controls {
            let message = format!("a {control} b{control}");
            let text = format!("{control}{message}{control}");
            let at = control.len();
            let quoted: Vec<usize> =
                tokenizer.control_tokens_in(&message).into_iter().map(|i| i + at).collect();
            assert!(quoted.len() >= 2, "{name} {control:?}");
            let ids = tokenizer.encode_quoting(&text, &quoted, options).unwrap();
            let id = tokenizer.id_of(control).unwrap();
            let plain = tokenizer.encode(&message, EncodeOptions::FRAGMENT).unwrap();
            assert_eq!(ids, [&[id][..], &plain, &[id]].concat(), "{name} {control:?}");
            assert!(!plain.contains(&id), "{name} {control:?}");
            // Without quotes it is the ordinary encoding.
            let ordinary = tokenizer.encode(&text, options).unwrap();
            assert_eq!(tokenizer.encode_quoting(&text, &[], options).unwrap(), ordinary);
            assert_eq!(ordinary.iter().filter(|&&found| found == id).count(), 4);
        }
    }
}
