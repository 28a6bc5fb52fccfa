//! Token ids on a corpus of more than 3,000 texts, against llama.cpp and Hugging Face's
//! `tokenizers`. `scripts/fixtures/tokenizer_families.py` made the expected values and says how
//! they are stored.

use std::fs;
use std::path::{Path, PathBuf};

use larql_checkpoint::gguf::Gguf;
use larql_checkpoint::tokenizer::{EncodeOptions, Tokenizer};

const MODES: [EncodeOptions; 2] = [EncodeOptions::FRAGMENT, EncodeOptions::TEMPLATE];

/// Byte-level families that both references have.
const FAMILIES: [&str; 7] =
    ["gpt-2", "llama-bpe", "qwen2", "smollm", "deepseek-llm", "deepseek-v3", "tekken"];

fn data(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tokenizers")).join(name)
}

fn corpus() -> Vec<String> {
    let texts: Vec<String> =
        serde_json::from_slice(&fs::read(data("corpus.json")).unwrap()).unwrap();
    assert!(texts.len() >= 3_000);
    texts
}

fn from_gguf(path: &Path) -> Tokenizer {
    Tokenizer::from_gguf(Gguf::open(path).unwrap().metadata()).unwrap()
}

/// 32-bit FNV-1a over the ids as little-endian u32.
fn hash(ids: &[u32]) -> u32 {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    bytes.fold(0x811C_9DC5, |h, byte| (h ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Asserts that every text of the corpus has the ids whose hashes stand in the file `expected`.
fn assert_hashes(tokenizer: &Tokenizer, expected: &str) {
    let texts = corpus();
    let bytes = fs::read(data(expected)).unwrap();
    let mut hashes = bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b));
    let mut wrong = Vec::new();
    for options in MODES {
        for text in &texts {
            let ids = tokenizer.encode(text, options).unwrap();
            if hash(&ids) != hashes.next().unwrap() {
                wrong.push((options, text, ids));
            }
        }
    }
    assert_eq!(hashes.next(), None);
    let shown: Vec<String> = wrong
        .iter()
        .take(8)
        .map(|(options, text, ids)| {
            let pieces: Vec<&str> = ids.iter().map(|&id| tokenizer.piece(id)).collect();
            format!("parse_special {}: {text:?} -> {pieces:?}", options.parse_special)
        })
        .collect();
    assert!(wrong.is_empty(), "{expected}: {} wrong, as\n{}", wrong.len(), shown.join("\n"));
}

#[test]
fn byte_level_families_from_gguf_are_llama_cpps() {
    for family in FAMILIES.iter().chain(&["default"]) {
        let tokenizer = from_gguf(&data(&format!("{family}.gguf")));
        assert_hashes(&tokenizer, &format!("{family}.llama"));
    }
}

#[test]
fn sentencepiece_from_gguf_is_llama_cpps() {
    for name in ["spm-prefix", "spm-plain"] {
        assert_hashes(&from_gguf(&data(&format!("{name}.gguf"))), &format!("{name}.llama"));
    }
}

/// The demo model: `$LARQL_TEST_MODEL`, else the copy in the user's cache.
#[allow(clippy::disallowed_methods, reason = "tests may read the environment")]
fn model() -> Option<PathBuf> {
    if std::env::var_os("LARQL_SKIP_MODEL_TESTS").is_some_and(|v| v == "1") {
        return None;
    }
    let path = std::env::var_os("LARQL_TEST_MODEL").map(PathBuf::from).unwrap_or_else(|| {
        let home = std::env::var_os("HOME").expect("HOME is set");
        Path::new(&home).join(".cache/larql/gemma-3-270m-q4_k_m.gguf")
    });
    assert!(path.exists(), "{} is missing: run `make test`, which fetches it", path.display());
    Some(path)
}

/// The next LEB128 number.
fn varint(bytes: &mut impl Iterator<Item = u8>) -> u32 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes.next().expect("the file is complete");
        value |= u32::from(byte & 0x7F) << shift;
        shift += 7;
        if byte < 0x80 {
            return value;
        }
    }
}

#[test]
fn model_gemma_ids_are_llama_cpps() {
    let Some(path) = model() else { return };
    let tokenizer = from_gguf(&path);
    let mut bytes = fs::read(data("gemma.ids")).unwrap().into_iter();
    for options in MODES {
        for text in corpus() {
            let len = varint(&mut bytes);
            let expected: Vec<u32> = (0..len).map(|_| varint(&mut bytes)).collect();
            assert_eq!(tokenizer.encode(&text, options).unwrap(), expected, "{text:?}");
        }
    }
    assert_eq!(bytes.next(), None);
}

/// A directory with the fixture `name` under Hugging Face's names.
fn hugging_face_dir(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(data(&format!("{name}.json")), dir.path().join("tokenizer.json")).unwrap();
    let config = dir.path().join("tokenizer_config.json");
    fs::copy(data(&format!("{name}.config.json")), config).unwrap();
    dir
}

#[test]
fn tokenizer_json_is_hugging_faces() {
    for name in FAMILIES.iter().chain(&["spm-prefix", "spm-plain"]) {
        let dir = hugging_face_dir(name);
        let tokenizer = Tokenizer::from_checkpoint_dir(dir.path()).unwrap();
        assert_hashes(&tokenizer, &format!("{name}.hf"));
    }
}

#[test]
fn a_tokenizer_json_written_to_gguf_gives_llama_cpps_ids() {
    for name in FAMILIES.iter().chain(&["spm-prefix", "spm-plain"]) {
        let dir = hugging_face_dir(name);
        let json = Tokenizer::from_checkpoint_dir(dir.path()).unwrap();
        let metadata = json.to_gguf_metadata(json.vocab_size() + 3).unwrap();
        let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
        assert_eq!(tokenizer.chat_template(), json.chat_template());
        assert_eq!(
            tokenizer.token_text(json.vocab_size() as u32),
            json.token_text(json.vocab_size() as u32)
        );
        assert_hashes(&tokenizer, &format!("{name}.llama"));
    }
}
