//! What speaks for a token, and ablation, on tiny models of every family.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use larql_inference::analysis::{
    Attribution, Causes, ReferenceMeans, Replaced, Snapshot, divergence, everything_else, log_prob,
    logits_with,
};
use larql_inference::{Hooks, InferenceError, KvDtype, Model, Point};
use larql_vindex::{NoProgress, Vindex};
use support::{FAMILIES, cpu, difference, models, options, reference, vindex};

fn tiny(family: &str, dir: &std::path::Path) -> (Vindex, Vec<u32>) {
    let prompt = reference(&models().join(family).join("logits.json")).prompt;
    (vindex(&models().join(family).join("model.gguf"), dir), prompt)
}

/// Means are those of snapshots taken one by one.
#[test]
fn means_are_averages_over_positions() {
    let cpu = cpu(1);
    for family in FAMILIES {
        let dir = tempfile::tempdir().unwrap();
        let (vindex, prompt) = tiny(family, dir.path());
        let model = Model::load(&vindex, &cpu).unwrap();
        let documents = vec![prompt[..5].to_vec(), prompt[..1].to_vec(), prompt[3..7].to_vec()];
        let means = ReferenceMeans::take(&model, &documents, &NoProgress).unwrap();
        assert_eq!(means.positions, 4 + 3);
        let texts = [&prompt[..5], &prompt[3..7]];
        let texts = texts.iter().flat_map(|text| (2..=text.len()).map(|end| &text[..end]));
        let seen: Vec<_> = texts.map(|text| Snapshot::take(&model, text).unwrap()).collect();
        assert_eq!(seen.len(), 7);
        for (layer, means) in means.layers.iter().enumerate() {
            let mean =
                |f: usize| seen.iter().map(|s| s.layers[layer].activations[f]).sum::<f32>() / 7.0;
            let expected: Vec<f32> = (0..means.len()).map(mean).collect();
            assert!(difference(means, &expected) < 1e-5, "{family}, layer {layer}");
        }
        assert!(ReferenceMeans::take(&model, &[vec![1]], &NoProgress).is_err());
    }
}

#[test]
fn scores_compare_activations_with_their_baseline() {
    let cpu = cpu(1);
    for family in ["gemma3", "gpt2", "mixtral"] {
        let dir = tempfile::tempdir().unwrap();
        let (vindex, prompt) = tiny(family, dir.path());
        let model = Model::load(&vindex, &cpu).unwrap();
        let seen = Snapshot::take(&model, &prompt).unwrap();
        let row = vec![0.25; model.config().hidden_size];
        let found = Attribution::of(&model, &seen, &row).unwrap();
        let zero: Vec<Vec<f32>> =
            seen.layers.iter().map(|layer| vec![0.0; layer.activations.len()]).collect();
        let terms: Vec<f32> = found.layers.iter().flat_map(|l| l.features.clone()).collect();
        let scores = Causes::of(&found, &seen, &zero);
        assert!(scores.all().iter().map(|c| c.score).eq(terms.iter().copied()), "{family}");
        let own: Vec<Vec<f32>> = seen.layers.iter().map(|l| l.activations.clone()).collect();
        let same = Causes::of(&found, &seen, &own);
        assert!(same.all().iter().all(|cause| cause.score == 0.0));
        assert!(same.speaking_for(3).unwrap().is_empty(), "none speaks for it");
        let best = scores.speaking_for(4).unwrap();
        let worst = scores.speaking_against(4).unwrap();
        assert!(best.windows(2).all(|pair| pair[0].score >= pair[1].score));
        assert!(worst.windows(2).all(|pair| pair[0].score <= pair[1].score));
        let highest = terms.iter().copied().fold(f32::MIN, f32::max);
        let lowest = terms.iter().copied().fold(f32::MAX, f32::min);
        assert_eq!((best[0].score, worst[0].score), (highest, lowest), "{family}");
    }
}

/// Sets raw activations at one position, as `logits_with` must.
struct Zero(usize, Vec<usize>);

impl Hooks for Zero {
    fn wants(&self, point: Point) -> bool {
        point == Point::MlpPost(self.0)
    }

    fn at(&mut self, _: Point, _: usize, values: &mut [f32]) -> Result<(), InferenceError> {
        let n = values.len();
        // Of one token fed at a time there is one position.
        self.1.iter().for_each(|&f| values[f % n] = 0.0);
        Ok(())
    }
}

#[test]
fn replacing_features_changes_what_it_should() {
    let cpu = cpu(1);
    for family in FAMILIES {
        let dir = tempfile::tempdir().unwrap();
        let (vindex, prompt) = tiny(family, dir.path());
        let model = Model::load(&vindex, &cpu).unwrap();
        let untouched = logits_with(&model, &prompt, &[]).unwrap();
        let seen = Snapshot::take(&model, &prompt).unwrap();
        let layer = model.config().n_layers - 1;
        let own = seen.layers[layer].activations.iter().enumerate();
        let own: Vec<Replaced> =
            own.map(|(feature, &activation)| Replaced { layer, feature, activation }).collect();
        let same = logits_with(&model, &prompt, &own).unwrap();
        assert!(difference(&same, &untouched) < 1e-5, "{family}: to what they are anyway");

        let mut ranked = own.clone();
        ranked.sort_by(|a, b| b.activation.abs().total_cmp(&a.activation.abs()));
        let features: Vec<usize> = ranked[..3].iter().map(|one| one.feature).collect();
        let zeros: Vec<Replaced> =
            features.iter().map(|&feature| Replaced { layer, feature, activation: 0.0 }).collect();
        let found = logits_with(&model, &prompt, &zeros).unwrap();
        let mut state = model.state(options(48, KvDtype::default())).unwrap();
        let (last, before) = prompt.split_last().unwrap();
        model.feed(&mut state, before).unwrap();
        model.feed_with(&mut state, &[*last], &mut Zero(layer, features)).unwrap();
        let mut expected = Vec::new();
        model.logits(&mut state, &mut expected).unwrap();
        assert!(difference(&found, &expected) < 1e-4, "{family}");
        assert!(difference(&found, &untouched) > 1e-3, "{family}: it makes a difference");
        let gone = Replaced { layer: layer + 1, feature: 0, activation: 0.0 };
        assert!(logits_with(&model, &prompt, &[gone]).is_err());
    }
}

#[test]
fn the_alternative_is_the_average_of_everything_else() {
    let cpu = cpu(1);
    let dir = tempfile::tempdir().unwrap();
    let (vindex, prompt) = tiny("llama", dir.path());
    let model = Model::load(&vindex, &cpu).unwrap();
    let logits = logits_with(&model, &prompt, &[]).unwrap();
    let found = everything_else(&model, &logits, 5).unwrap();
    let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
    let chance = |token: usize| f64::from(logits[token]).exp() / total;
    let mut expected = vec![0.0_f64; found.len()];
    let mut row = vec![0.0; found.len()];
    for token in (0..logits.len()).filter(|&token| token != 5) {
        cpu.row(vindex.unembedding().unwrap(), token, &mut row).unwrap();
        let share = chance(token) / (1.0 - chance(5));
        expected.iter_mut().zip(&row).for_each(|(sum, &v)| *sum += share * f64::from(v));
    }
    let expected: Vec<f32> = expected.into_iter().map(|v| v as f32).collect();
    assert!(difference(&found, &expected) < 1e-5);
    assert!((log_prob(&logits, 5) - chance(5).ln()).abs() < 1e-6);
}

#[test]
fn divergence_is_kullback_and_leiblers() {
    // 1/2, 1/4, 1/4 against 1/4, 1/2, 1/4: half of ln 2, less a quarter of it.
    let (p, q) = (
        [0.5_f32.ln(), 0.25_f32.ln(), 0.25_f32.ln()],
        [0.25_f32.ln() + 9.0, 0.5_f32.ln() + 9.0, 0.25_f32.ln() + 9.0],
    );
    assert!((divergence(&p, &q) - 0.25 * std::f64::consts::LN_2).abs() < 1e-6);
    assert_eq!(divergence(&p, &p), 0.0);
    assert_eq!(divergence(&[0.0, f32::NEG_INFINITY], &[0.0, 0.0]), std::f64::consts::LN_2);
    assert_eq!(log_prob(&p, 3), f64::NEG_INFINITY);
}
