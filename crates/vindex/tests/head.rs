//! The LM head as a search: exact, whatever way the tokens are found.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use larql_compute::{Cpu, Dtype, Order};
use larql_vindex::{ExtractOptions, HeadPath, Vindex};
use support::{HIDDEN, Numbers, VOCAB};

#[test]
fn without_planes_the_head_is_scanned() {
    let dir = tempfile::tempdir().unwrap();
    let (source, path) = (dir.path().join("tiny.gguf"), dir.path().join("tiny.vindex"));
    support::write_model(&source, Dtype::F32);
    support::extract(&source, &path, &ExtractOptions::default());
    let vindex = Vindex::open(&path).unwrap();
    let (head, cpu) = (vindex.lm_head().unwrap(), Cpu::new(None, Some(2)).unwrap());
    let mut numbers = Numbers(3);
    let h: Vec<f32> = (0..HIDDEN).map(|_| numbers.next()).collect();
    let mut logits = vec![0.0; VOCAB];
    head.logits(&cpu, &h, &mut logits).unwrap();
    for k in [0, 1, 7, VOCAB, VOCAB + 5] {
        let found = head.top_k(&cpu, &h, k).unwrap();
        let expected = cpu.top_k_rows(head.rows(), &h, k, Order::Signed).unwrap();
        assert_eq!((found.path, found.rescored_rows), (HeadPath::Scan, VOCAB));
        assert!(found.tokens.iter().all(|token| token.score == logits[token.row]));
        assert_eq!(found.tokens, expected);
    }
    assert!(head.top_k(&cpu, &h[1..], 1).is_err());
}
