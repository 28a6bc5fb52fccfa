//! Any bytes as the description of a model: the metadata and tensor names of a GGUF, tokenizer
//! included, or (where they begin with a brace) a `config.json`. Never a panic; and every layer of
//! what is accepted can be laid out and written.
#![no_main]

use larql_checkpoint::gguf::Gguf;
use larql_checkpoint::tokenizer::{EncodeOptions, Tokenizer};
use larql_checkpoint::{Map, ModelConfig};
use larql_fuzz::within;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if bytes.first() == Some(&b'{') {
        let Ok(json) = serde_json::from_slice(bytes) else { return };
        // What is kept for each layer, up to its cap, hangs on a single number of the text.
        if let Ok(config) = within(bytes.len() + 4096, 64, || ModelConfig::from_hf(&json)) {
            lay_out(&config);
        }
        return;
    }
    let Ok(gguf) = Gguf::from_map(Map::from_bytes("fuzz", bytes.to_vec())) else { return };
    if let Ok(config) = within(bytes.len() + 4096, 64, || ModelConfig::from_gguf(&gguf)) {
        lay_out(&config);
    }
    let read = || Tokenizer::from_gguf(gguf.metadata());
    if let Ok(tokenizer) = within(bytes.len(), 64, read) {
        (0..tokenizer.vocab_size() as u32 + 1).for_each(|id| drop(tokenizer.token_text(id)));
        let all: Vec<u32> = (0..tokenizer.vocab_size() as u32).collect();
        drop(tokenizer.decode(&all));
        if let Ok(ids) = tokenizer.encode("The <b>\u{2581}1", EncodeOptions::PROMPT) {
            assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
        }
    }
});

/// Everything that is computed from a configuration alone.
fn lay_out(config: &ModelConfig) {
    config.validate().expect("a configuration that was read is valid");
    drop(config.to_gguf_metadata());
    drop(config.tensors());
    for layer in [0, config.n_layers - 1] {
        let n = config.n_features(layer);
        let keys: usize = config.ffn_keys(layer).iter().map(|part| part.rows.len()).sum();
        assert_eq!(keys, n);
        drop(config.ffn_ups(layer));
    }
}
