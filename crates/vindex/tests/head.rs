//! The LM head as a search: exact, whatever way the tokens are found.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use larql_compute::{Cpu, Dtype, Order};
use larql_vindex::{
    ExtractOptions, HeadPath, NoProgress, Vindex, build_head_planes, delete_head_planes,
    planes_not_worth, verify,
};
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

#[test]
fn planes_are_used_where_they_can_be_checked_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let (source, path) = (dir.path().join("tiny.gguf"), dir.path().join("tiny.vindex"));
    support::write_model(&source, Dtype::F32);
    support::extract(&source, &path, &ExtractOptions::default());
    let vindex = Vindex::open(&path).unwrap();
    let cpu = Cpu::new(None, Some(2)).unwrap();
    assert!(planes_not_worth(vindex.unembedding().unwrap()).is_some());
    assert!(build_head_planes(&vindex, &cpu, &[1.0; HIDDEN - 1], &NoProgress).is_err());
    build_head_planes(&vindex, &cpu, &[1.0; HIDDEN], &NoProgress).unwrap();
    let file = path.join("lm_head.planes");
    let sound = std::fs::read(&file).unwrap();

    // Forty rows are too few for planes to rule anything out.
    let head = vindex.lm_head().unwrap();
    assert!(head.has_planes());
    let found = head.top_k(&cpu, &[0.5; HIDDEN], 3).unwrap();
    let expected = cpu.top_k_rows(head.rows(), &[0.5; HIDDEN], 3, Order::Signed).unwrap();
    assert_eq!((found.path, found.tokens), (HeadPath::Scan, expected));

    let vindex = Vindex::open(&path).unwrap();
    assert!(vindex.extra_files().is_empty());
    assert_eq!(vindex.stats().unwrap().head_planes, Some(sound.len() as u64));
    assert!(vindex.residency().unwrap().roles.iter().any(|row| row.role == "lm_head_planes"));
    assert!(verify(&path, &Default::default(), &NoProgress).unwrap().is_sound());

    // The header, the column order, the mean row and the norms are checked when it is opened.
    let order = 128;
    let (mean, norms) = (order + 4 * HIDDEN, order + 8 * HIDDEN);
    let nan = f32::NAN.to_le_bytes();
    let cases: [(usize, &[u8], &str); 9] = [
        (0, b"X", "LARQLHP1"),
        (8, &[2], "version is 2"),
        (12, &[0, 0, 0, 0], "no shape"),
        (16, &[255, 255, 255, 255], "no shape"),
        (20, &[1], "blocks of"),
        (25, &[1], "reserved"),
        (33, &[sound[33] ^ 1], "another LM head"),
        (order, &[200], "no permutation"),
        (mean, &nan, "not finite"),
    ];
    for (at, bytes, wanted) in cases {
        let mut broken = sound.clone();
        broken[at..at + bytes.len()].copy_from_slice(bytes);
        std::fs::write(&file, &broken).unwrap();
        let error = vindex.lm_head().unwrap_err().to_string();
        assert!(error.contains(wanted) && error.contains("lm_head.planes"), "{wanted}: {error}");
        assert!(!verify(&path, &Default::default(), &NoProgress).unwrap().is_sound() || at == 33);
    }
    let mut broken = sound.clone();
    broken[norms..norms + 4].copy_from_slice(&nan);
    std::fs::write(&file, &broken).unwrap();
    assert!(vindex.lm_head().unwrap_err().to_string().contains("NaN"));
    for len in [0, 100, 128, sound.len() - 1] {
        std::fs::write(&file, &sound[..len]).unwrap();
        assert!(vindex.lm_head().is_err(), "{len} bytes");
    }
    // What opening does not look at, `verify` does.
    let mut broken = sound.clone();
    *broken.last_mut().unwrap() ^= 1;
    std::fs::write(&file, &broken).unwrap();
    assert!(vindex.lm_head().is_ok());
    assert!(!verify(&path, &Default::default(), &NoProgress).unwrap().is_sound());

    assert!(delete_head_planes(&vindex).unwrap());
    assert!(!delete_head_planes(&vindex).unwrap());
    assert!(!vindex.lm_head().unwrap().has_planes());
}
