//! Perplexity against the logits of `transformers`, and modes against each other, on the tiny
//! models of every family.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use larql_inference::{EvaluateOptions, FfnMode, InferenceError, Keep, KvDtype, Model};
use larql_vindex::{NoProgress, Progress, VindexError};
use support::{FAMILIES, cpu, models, reference, vindex};

/// The mean of -ln p over the tokens after `first`, by the reference's own logits.
fn expected(prompt: &[u32], logits: &[f32], first: usize) -> f64 {
    let vocab_size = logits.len() / prompt.len();
    let each = (first..prompt.len() - 1).map(|p| {
        let row = &logits[p * vocab_size..(p + 1) * vocab_size];
        let sum: f64 = row.iter().map(|&v| f64::from(v).exp()).sum();
        sum.ln() - f64::from(row[prompt[p + 1] as usize])
    });
    each.clone().sum::<f64>() / each.count() as f64
}

#[test]
fn every_family_foretells_as_transformers_does() {
    let cpu = cpu(2);
    for family in FAMILIES {
        let reference = reference(&models().join(family).join("logits.json"));
        let dir = tempfile::tempdir().unwrap();
        let vindex = vindex(&models().join(family).join("hf"), dir.path());
        let mut model = Model::load(&vindex, &cpu).unwrap();
        let window = reference.prompt.len();
        let options = EvaluateOptions { window, kv: KvDtype::F32, bos: None };
        let modes = [FfnMode::Dense, FfnMode::Dense];
        let found = model.evaluate(&reference.prompt, options, &modes, &NoProgress).unwrap();
        let truth = expected(&reference.prompt, &reference.logits, window / 2);
        assert_eq!(found[0].scored, window - 1 - window / 2);
        assert!((found[0].nll - truth).abs() < 1e-4, "{family}: {} {truth}", found[0].nll);
        assert_eq!((found[1].nll, found[1].agreement), (found[0].nll, 1.0), "{family}");
        assert!(found[1].kl.abs() < 1e-12, "{family}: {}", found[1].kl);
    }
}

#[test]
fn walks_come_nearer_the_more_they_keep() {
    let cpu = cpu(2);
    let prompt = reference(&models().join("gemma3/logits.json")).prompt;
    let dir = tempfile::tempdir().unwrap();
    let vindex = vindex(&models().join("gemma3/hf"), dir.path());
    let mut model = Model::load(&vindex, &cpu).unwrap();
    let options = EvaluateOptions { window: prompt.len(), kv: KvDtype::F32, bos: None };
    let walk = |percent| FfnMode::Walk(Keep::Percent(percent));
    let modes = [FfnMode::Dense, walk(5.0), walk(50.0), walk(100.0)];
    let found = model.evaluate(&prompt, options, &modes, &NoProgress).unwrap();
    assert!(found[1].kl > found[2].kl && found[2].kl > 0.0, "{found:?}");
    assert!(found[3].kl.abs() < 1e-9 && found[3].agreement == 1.0, "{found:?}");
    assert_eq!(model.ffn_mode(), FfnMode::Dense, "the mode that was set stays");
}

#[test]
fn what_cannot_be_evaluated_is_said() {
    struct Cancelled;
    impl Progress for Cancelled {
        fn start(&self, _: &str, _: u64, _: &str) {}
        fn advance(&self, _: u64) {}
        fn finish(&self) {}
        fn cancelled(&self) -> bool {
            true
        }
    }
    let cpu = cpu(1);
    let prompt = reference(&models().join("llama/logits.json")).prompt;
    let dir = tempfile::tempdir().unwrap();
    let vindex = vindex(&models().join("llama/hf"), dir.path());
    let mut model = Model::load(&vindex, &cpu).unwrap();
    let options = |window| EvaluateOptions { window, kv: KvDtype::F32, bos: None };
    let dense = [FfnMode::Dense];
    for window in [0, 3, 1 << 30] {
        let error = model.evaluate(&prompt, options(window), &dense, &NoProgress).unwrap_err();
        assert!(matches!(error, InferenceError::Option { .. }), "{error}");
    }
    let error = model.evaluate(&prompt[..3], options(4), &dense, &NoProgress).unwrap_err();
    assert!(matches!(error, InferenceError::TextTooShort { tokens: 3, window: 4 }), "{error}");
    let error = model.evaluate(&prompt, options(4), &dense, &Cancelled).unwrap_err();
    assert!(matches!(error, InferenceError::Vindex(VindexError::Cancelled { .. })), "{error}");
}
