//! Every family against `transformers`, whose logits for tiny random models stand beside them.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use larql_inference::{KvDtype, Model};
use support::{FAMILIES, cpu, difference, logits, models, options, reference, vindex};

/// Largest difference allowed, relative to the largest logit.
const TOLERANCE: f32 = 1e-4;

#[test]
fn logits_are_those_of_transformers() {
    let cpu = cpu(2);
    let mut failures = Vec::new();
    for family in FAMILIES {
        let truth = reference(&models().join(family).join("logits.json"));
        for source in ["hf", "model.gguf"] {
            let dir = tempfile::tempdir().unwrap();
            let vindex = vindex(&models().join(family).join(source), dir.path());
            let model = Model::load(&vindex, &cpu).unwrap();
            for step in [12, 1, 5] {
                let mut state = model.state(options(48, KvDtype::F32)).unwrap();
                let found = logits(&model, &mut state, &truth.prompt, step);
                let worst = difference(&found, &truth.logits);
                if worst.is_nan() || worst > TOLERANCE {
                    failures.push(format!("{family}/{source}, steps of {step}: {worst:e}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
