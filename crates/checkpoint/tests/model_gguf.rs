//! The GGUF reader on the demo model. Needs the file: see `support`.

mod support;

use std::time::Instant;

use larql_checkpoint::gguf::{Gguf, Metadata};
use larql_checkpoint::{CheckpointError, Map};
use larql_compute::Dtype;

#[test]
fn model_header_is_read() {
    let Some(path) = support::demo_model() else { return };
    let gguf = Gguf::open(&path).unwrap();
    assert_eq!((gguf.version(), gguf.alignment(), gguf.files().len()), (3, 32, 1));
    assert_eq!(gguf.tensors().len(), 236);

    let meta = gguf.metadata();
    assert_eq!(meta.len(), 33);
    assert_eq!(meta.get_str("general.architecture").unwrap(), Some("gemma3"));
    assert_eq!(meta.require("gemma3.block_count", Metadata::get_usize).unwrap(), 18);
    assert_eq!(meta.get_f32("gemma3.attention.layer_norm_rms_epsilon").unwrap(), Some(1e-6));
    assert_eq!(meta.get_bool("tokenizer.ggml.add_bos_token").unwrap(), Some(true));
    assert_eq!(meta.get_u32("general.no_such_key").unwrap(), None);
    let error = meta.get_bool("gemma3.block_count").unwrap_err().to_string();
    assert!(error.contains("gemma3.block_count holds 18 (u32), but a boolean"), "{error}");

    let embd = gguf.tensor("token_embd.weight").unwrap();
    assert_eq!((embd.dtype(), embd.rows(), embd.cols()), (Dtype::Q8_0, 262_144, 640));
    assert_eq!(embd.offset(), 6_527_680);
    assert_eq!(embd.matrix().bytes().len(), 262_144 * 20 * 34);
    let norm = gguf.tensor("output_norm.weight").unwrap();
    assert_eq!((norm.dtype(), norm.shape(), norm.rows()), (Dtype::F32, &[640][..], 1));
    assert!(gguf.tensor("no.such").is_none());
}

#[test]
fn model_vocabulary_is_iterated_in_place() {
    let Some(path) = support::demo_model() else { return };
    let gguf = Gguf::open(&path).unwrap();
    let tokens = gguf.metadata().get_string_array("tokenizer.ggml.tokens").unwrap().unwrap();
    assert_eq!(tokens.len(), 262_144);
    let texts: Vec<&str> = tokens.strings().unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!((texts[0], texts[2], texts[238]), ("<pad>", "<bos>", "<0x00>"));
    let file = gguf.files()[0].bytes().as_ptr_range();
    assert!(file.contains(&texts[262_143].as_ptr()), "the text was copied");
    let scores = gguf.metadata().get_f32_array("tokenizer.ggml.scores").unwrap().unwrap();
    assert_eq!(scores.len(), 262_144);
    let types = gguf.metadata().get_i32_array("tokenizer.ggml.token_type").unwrap().unwrap();
    assert_eq!((types.len(), types[0]), (262_144, 3));
}

/// The real header is 6.5 MB, nearly all of it vocabulary: cut short anywhere, it is refused.
#[test]
fn model_truncated_at_24_points_is_refused() {
    let Some(path) = support::demo_model() else { return };
    let gguf = Gguf::open(&path).unwrap();
    let header = gguf.tensors().iter().map(|t| t.range().start).min().unwrap();
    for i in 0..24 {
        let cut = gguf.files()[0].bytes()[..i * (header - 1) / 23].to_vec();
        let error = Gguf::from_map(Map::from_bytes("cut.gguf", cut)).unwrap_err();
        assert!(matches!(error, CheckpointError::Gguf { .. }), "{error}");
    }
}

/// Not a benchmark (a debug build on a busy machine), only a guard against a copy creeping in.
#[test]
fn model_opens_quickly() {
    let Some(path) = support::demo_model() else { return };
    let best = (0..5)
        .map(|_| {
            let start = Instant::now();
            Gguf::open(&path).unwrap();
            start.elapsed()
        })
        .min()
        .unwrap();
    println!("opened in {best:?}");
    assert!(best.as_millis() < 100, "{best:?}");
}
