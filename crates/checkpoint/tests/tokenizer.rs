//! Token ids on a corpus of more than 3,000 texts, against llama.cpp and Hugging Face's
//! `tokenizers`. `scripts/fixtures/tokenizer_families.py` made the expected values and says how
//! they are stored.
#![allow(clippy::unwrap_used, reason = "a test's helpers may panic too")]

use std::fs;
use std::path::{Path, PathBuf};

use larql_checkpoint::gguf::{Gguf, Metadata};
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

/// The fault with which `Tokenizer::from_gguf` refuses the fixture `name` after `change`.
fn refusal(name: &str, change: impl FnOnce(&mut Metadata)) -> String {
    let gguf = Gguf::open(data(name)).unwrap();
    let mut metadata = gguf.metadata().clone();
    change(&mut metadata);
    Tokenizer::from_gguf(&metadata).unwrap_err().to_string()
}

#[test]
fn contradictions_are_refused_by_name() {
    let refused = refusal("gpt-2.gguf", |m| m.set("tokenizer.ggml.model", "t5"));
    assert!(refused.contains("'t5' (unigram SentencePiece"), "{refused}");
    let refused = refusal("gpt-2.gguf", |m| m.set("tokenizer.ggml.pre", "bloom"));
    assert!(refused.contains("'bloom'") && refused.contains("llama-bpe"), "{refused}");
    let refused = refusal("gpt-2.gguf", |m| _ = m.remove("tokenizer.ggml.model"));
    assert!(refused.contains("there is no tokenizer"), "{refused}");
    let refused = refusal("gpt-2.gguf", |m| _ = m.remove("tokenizer.ggml.merges"));
    assert!(refused.contains("tokenizer.ggml.merges"), "{refused}");
    let refused = refusal("gpt-2.gguf", |m| _ = m.remove("tokenizer.ggml.tokens"));
    assert!(refused.contains("tokenizer.ggml.tokens"), "{refused}");
    let refused = refusal("gpt-2.gguf", |m| m.set_array("tokenizer.ggml.token_type", &[1i32; 7]));
    assert!(refused.contains("token_type has 7 entries"), "{refused}");
    let refused = refusal("gpt-2.gguf", |m| m.set_array("tokenizer.ggml.token_type", &[9i32; 7]));
    assert!(refused.contains("token 0 has the type 9"), "{refused}");
    let refused = refusal("gpt-2.gguf", |m| m.set("tokenizer.ggml.bos_token_id", 99_999u32));
    assert!(refused.contains("bos_token_id is 99999"), "{refused}");
    let refused = refusal("spm-plain.gguf", |m| m.set_array("tokenizer.ggml.scores", &[0f32; 3]));
    assert!(refused.contains("scores has 3 entries"), "{refused}");
}

#[test]
fn a_directory_without_tokenizer_json_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = Tokenizer::from_checkpoint_dir(dir.path()).unwrap_err();
    assert!(error.to_string().contains("no tokenizer.json"), "{error}");
    assert!(error.help().unwrap().contains("GGUF"));
    fs::write(dir.path().join("tokenizer.json"), "{").unwrap();
    assert!(Tokenizer::from_checkpoint_dir(dir.path()).is_err());
}

#[test]
fn what_gguf_cannot_express_is_refused() {
    let dir = hugging_face_dir("gpt-2");
    let tokenizer = Tokenizer::from_checkpoint_dir(dir.path()).unwrap();
    let error = tokenizer.to_gguf_metadata(10).unwrap_err().to_string();
    assert!(error.contains("only 10 rows"), "{error}");
    let path = dir.path().join("tokenizer.json");
    let json = fs::read_to_string(&path).unwrap();
    let changes = [
        (r#""normalizer":null"#, r#""normalizer":{"type":"Lowercase"}"#, "Lowercase"),
        (r#""add_prefix_space":false"#, r#""add_prefix_space":true"#, "pre-tokenizer"),
    ];
    for (from, to, names) in changes {
        assert!(json.contains(from));
        fs::write(&path, json.replace(from, to)).unwrap();
        let tokenizer = Tokenizer::from_checkpoint_dir(dir.path()).unwrap();
        let error = tokenizer.to_gguf_metadata(tokenizer.vocab_size()).unwrap_err().to_string();
        assert!(error.contains(names), "{error}");
    }
}

#[test]
fn bos_stands_once_and_only_where_it_is_wanted() {
    for name in ["llama-bpe", "spm-prefix"] {
        let dir = hugging_face_dir(name);
        let json = Tokenizer::from_checkpoint_dir(dir.path()).unwrap();
        for tokenizer in [from_gguf(&data(&format!("{name}.gguf"))), json] {
            let bos = tokenizer.bos().unwrap();
            let written = format!("{}x", tokenizer.piece(bos));
            let count = |text: &str, options| {
                let ids = tokenizer.encode(text, options).unwrap();
                ids.iter().filter(|&&id| id == bos).count()
            };
            assert_eq!(count("x", EncodeOptions::FRAGMENT), 0);
            assert_eq!(count("x", EncodeOptions::PROMPT), 1);
            assert_eq!(count("", EncodeOptions::PROMPT), 1);
            assert_eq!(count("x", EncodeOptions::TEMPLATE), 1);
            assert_eq!(count(&written, EncodeOptions::TEMPLATE), 1);
        }
    }
    let tokenizer = from_gguf(&data("qwen2.gguf"));
    assert!(!tokenizer.add_bos());
    assert!(tokenizer.encode("", EncodeOptions::PROMPT).unwrap().is_empty());
}

#[test]
fn decoding_gives_the_text_back() {
    for name in FAMILIES.iter().chain(&["spm-prefix", "spm-plain"]) {
        let tokenizer = from_gguf(&data(&format!("{name}.gguf")));
        for text in corpus() {
            // A metaspace in the text is read as a space; Gemma-like `</s>` is a control token.
            if name.starts_with("spm") && text.contains(['▁', '<']) {
                continue;
            }
            let ids = tokenizer.encode(&text, EncodeOptions::PROMPT).unwrap();
            assert_eq!(tokenizer.decode(&ids), text, "{name}");
            let bytes: Vec<u8> = ids[usize::from(tokenizer.add_bos())..]
                .iter()
                .flat_map(|&id| tokenizer.token_bytes(id).into_owned())
                .collect();
            let text =
                if *name == "spm-prefix" && !text.is_empty() { format!(" {text}") } else { text };
            assert_eq!(bytes, text.as_bytes(), "{name}");
        }
    }
}

#[test]
fn token_text_is_for_showing() {
    let spm = from_gguf(&data("spm-prefix.gguf"));
    assert_eq!(spm.token_text(spm.id_of("<0xE2>").unwrap()), "<0xE2>");
    assert_eq!(spm.token_text(spm.id_of("▁the").unwrap()), " the");
    assert_eq!(spm.token_text(1), "<s>");
    assert_eq!(spm.token_text(1_000_000), "[PAD1000000]");
    let bpe = from_gguf(&data("gpt-2.gguf"));
    assert_eq!(bpe.token_text(bpe.id_of("Ã").unwrap()), "<0xC3>");
    assert_eq!(bpe.token_text(bpe.id_of("Ġthe").unwrap()), " the");
}

#[test]
fn long_texts_take_time_in_proportion() {
    let words = "the cat sat on the mat ".repeat(8_000);
    let spaces = " ".repeat(200_000);
    let letters = "a".repeat(200_000);
    for name in ["spm-plain", "gpt-2", "llama-bpe", "deepseek-llm"] {
        let tokenizer = from_gguf(&data(&format!("{name}.gguf")));
        for text in [&words, &spaces, &letters] {
            let ids = tokenizer.encode(text, EncodeOptions::FRAGMENT).unwrap();
            assert_eq!(tokenizer.decode(&ids), *text, "{name}");
        }
    }
}
