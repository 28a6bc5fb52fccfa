//! What analysis says of tiny models of every family, against the model itself.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use larql_inference::analysis::{Attribution, Residuals, Snapshot, WalkOptions, lens, walk};
use larql_inference::{KvDtype, Model};
use support::{FAMILIES, cpu, difference, logits, models, options, reference, vindex};

/// Terms of an attribution are sums in float64 of float32 values; what differs is the rounding of
/// the residual and of the logit, relative to the sizes of all terms.
const SUM: f64 = 2e-6;
/// Features' terms come from float32 sums over the hidden size.
const FEATURES: f64 = 2e-6;

#[test]
fn attributions_sum_to_the_logit() {
    let cpu = cpu(1);
    for family in FAMILIES {
        let prompt = reference(&models().join(family).join("logits.json")).prompt;
        let dir = tempfile::tempdir().unwrap();
        let vindex = vindex(&models().join(family).join("model.gguf"), dir.path());
        let model = Model::load(&vindex, &cpu).unwrap();
        let seen = Snapshot::take(&model, &prompt).unwrap();
        for token in [0, 7, 101] {
            let mut row = vec![0.0; model.config().hidden_size];
            cpu.row(vindex.unembedding().unwrap(), token, &mut row).unwrap();
            let found = Attribution::of(&model, &seen, &row).unwrap();
            let error = (found.sum() - found.logit).abs();
            assert!(error <= SUM * found.size(), "{family}, token {token}: {error:e} of {found:?}");
            for (i, layer) in found.layers.iter().enumerate() {
                let size: f64 = layer.features.iter().map(|&f| f64::from(f.abs())).sum();
                let rest = layer.rounding().abs();
                let allowed = FEATURES * (size + layer.ffn_bias.abs());
                assert!(rest <= allowed, "{family}, layer {i}: {rest:e} of {size}");
            }
        }
    }
}

#[test]
fn the_last_row_of_the_lens_is_the_model() {
    let cpu = cpu(1);
    for family in FAMILIES {
        let truth = reference(&models().join(family).join("logits.json"));
        let dir = tempfile::tempdir().unwrap();
        let vindex = vindex(&models().join(family).join("model.gguf"), dir.path());
        let model = Model::load(&vindex, &cpu).unwrap();
        let residuals = Residuals::take(&model, &truth.prompt, 3).unwrap();
        let last = residuals.after(model.config().n_layers - 1);
        let rows = lens(&model, last, Some(9), 5).unwrap();
        assert_eq!(rows.len(), truth.prompt.len() - 3);
        let mut state = model.state(options(48, KvDtype::F16)).unwrap();
        let all = logits(&model, &mut state, &truth.prompt, 48);
        let vocab = model.config().vocab_size;
        for (row, logits) in rows.iter().zip(all.chunks_exact(vocab).skip(3)) {
            let chosen = row.chosen.unwrap();
            assert!(difference(&[chosen.logit], &logits[9..10]) < 1e-4, "{family}");
            assert_eq!(row.rank, Some(logits.iter().filter(|&&l| l > logits[9]).count()));
            assert!(row.top.windows(2).all(|pair| pair[0].logit >= pair[1].logit));
            let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
            let best = row.top[0];
            assert!((best.log_prob - (f64::from(best.logit) - total.ln())).abs() < 1e-4);
        }
    }
}

#[test]
fn a_walk_reports_what_a_snapshot_holds() {
    let cpu = cpu(1);
    for family in FAMILIES {
        let prompt = reference(&models().join(family).join("logits.json")).prompt;
        let dir = tempfile::tempdir().unwrap();
        let vindex = vindex(&models().join(family).join("model.gguf"), dir.path());
        let model = Model::load(&vindex, &cpu).unwrap();
        let from = prompt.len() - 2;
        let options = WalkOptions { layers: 0..model.config().n_layers, from, top: 4 };
        let found = walk(&model, &prompt, &options).unwrap();
        let order: Vec<_> = found.iter().map(|f| (f.position, f.layer)).collect();
        assert!(order.is_sorted(), "{family}");
        assert_eq!(found.len(), 2 * model.config().n_layers * 4, "{family}");
        let seen = Snapshot::take(&model, &prompt).unwrap();
        let search = larql_vindex::search::Search::new(&vindex, &cpu);
        for firing in found.iter().filter(|f| f.position == prompt.len() - 1) {
            let activation = seen.layers[firing.layer].activations[firing.feature];
            assert_eq!(firing.activation, activation, "{family}: {firing:?}");
            let facts = search.feature(firing.layer, firing.feature).unwrap();
            let expected = activation.abs() * facts.down_norm.unwrap();
            assert!((firing.contribution - expected).abs() <= 1e-5 * expected.abs(), "{family}");
        }
    }
}
