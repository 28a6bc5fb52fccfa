//! What analysis says of tiny models of every family, against the model itself.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use larql_checkpoint::config::{Activation, FfnLayout};
use larql_checkpoint::{Role, TensorId};
use larql_inference::analysis::{Attribution, Residuals, Snapshot, WalkOptions, lens, walk};
use larql_inference::{KvDtype, Model, Point, Recorder};
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

/// Rows of a matrix as float64.
fn rows(vindex: &larql_vindex::Vindex, role: Role, layer: usize) -> Vec<Vec<f64>> {
    let matrix = vindex.matrix(TensorId::layer(role, layer)).unwrap();
    let cpu = cpu(1);
    (0..matrix.rows())
        .map(|r| {
            let mut row = vec![0.0; matrix.cols()];
            cpu.row(matrix, r, &mut row).unwrap();
            row.into_iter().map(f64::from).collect()
        })
        .collect()
}

fn product(row: &[f64], x: &[f32]) -> f64 {
    row.iter().zip(x).map(|(a, &b)| a * f64::from(b)).sum()
}

/// The textbook's non-linearities; the error function by its integral.
fn act(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Gelu => {
            let (n, z) = (4000, x / std::f64::consts::SQRT_2);
            let step = z / f64::from(n);
            let middle = |i: i32| (-((f64::from(i) + 0.5) * step).powi(2)).exp();
            let erf = 2.0 / std::f64::consts::PI.sqrt() * step * (0..n).map(middle).sum::<f64>();
            0.5 * x * (1.0 + erf)
        }
    }
}

/// Activations, contributions and their order against loops over rows of the matrices, from what
/// the forward pass fed the FFN.
#[test]
fn a_walk_is_what_a_naive_computation_finds() {
    let cpu = cpu(1);
    for family in ["gemma3", "gpt2", "llama", "phi3", "qwen2"] {
        let prompt = reference(&models().join(family).join("logits.json")).prompt;
        let dir = tempfile::tempdir().unwrap();
        let vindex = vindex(&models().join(family).join("model.gguf"), dir.path());
        let model = Model::load(&vindex, &cpu).unwrap();
        let (config, last) = (model.config(), prompt.len() - 1);
        let mut recorder = Recorder::create(&dir.path().join("all"), config).unwrap();
        let mut state = model.state(options(48, KvDtype::default())).unwrap();
        model.feed_with(&mut state, &prompt, &mut recorder).unwrap();
        let options = WalkOptions { layers: 0..config.n_layers, from: last, top: 6 };
        let found = walk(&model, &prompt, &options).unwrap();
        for layer in 0..config.n_layers {
            let inputs = recorder.values(Point::MlpIn(layer)).unwrap();
            let x = &inputs[inputs.len() - config.hidden_size..];
            let up = rows(&vindex, Role::FfnUp, layer);
            let n = config.intermediate_size;
            let bias = |i: usize| match config.biases.ffn {
                true => vindex.vector(TensorId::layer(Role::FfnUpBias, layer)).unwrap()[i],
                false => 0.0,
            };
            let activations: Vec<f64> = match config.ffn {
                FfnLayout::Gated => {
                    let gate = rows(&vindex, Role::FfnGate, layer);
                    let pairs = gate.iter().zip(&up);
                    pairs
                        .map(|(g, u)| act(config.activation, product(g, x)) * product(u, x))
                        .collect()
                }
                FfnLayout::GatedFused => {
                    let pairs = up[..n].iter().zip(&up[n..]);
                    pairs
                        .map(|(g, u)| act(config.activation, product(g, x)) * product(u, x))
                        .collect()
                }
                FfnLayout::Plain => {
                    let sums = up.iter().enumerate();
                    sums.map(|(i, u)| act(config.activation, product(u, x) + f64::from(bias(i))))
                        .collect()
                }
            };
            let down = rows(&vindex, Role::FfnDown, layer);
            let length = |f: usize| down.iter().map(|row| row[f] * row[f]).sum::<f64>().sqrt();
            let contributions: Vec<f64> =
                activations.iter().enumerate().map(|(f, a)| a.abs() * length(f)).collect();
            let all: f64 = contributions.iter().sum();
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by(|&a, &b| contributions[b].total_cmp(&contributions[a]));
            let here: Vec<_> = found.iter().filter(|f| f.layer == layer).collect();
            let ranked: Vec<usize> = here.iter().map(|f| f.feature).collect();
            assert_eq!(ranked, order[..6], "{family}, layer {layer}");
            for firing in here {
                let (f, near) = (firing.feature, |a: f32, b: f64| {
                    (f64::from(a) - b).abs() <= 1e-5 * b.abs().max(1e-3)
                });
                assert_eq!(firing.position, last);
                assert!(near(firing.activation, activations[f]), "{family}: {firing:?}");
                assert!(near(firing.contribution, contributions[f]), "{family}: {firing:?}");
                assert!(near(firing.share, contributions[f] / all), "{family}: {firing:?}");
            }
        }
    }
}

#[test]
fn what_cannot_be_walked_is_refused() {
    let cpu = cpu(1);
    let dir = tempfile::tempdir().unwrap();
    let vindex = vindex(&models().join("llama/model.gguf"), dir.path());
    let model = Model::load(&vindex, &cpu).unwrap();
    let n = model.config().n_layers;
    for layers in [0..n + 1, n..n] {
        let options = WalkOptions { layers, from: 0, top: 1 };
        assert!(walk(&model, &[1, 2], &options).is_err());
    }
    assert!(walk(&model, &[], &WalkOptions { layers: 0..n, from: 0, top: 1 }).is_err());
    assert!(Snapshot::take(&model, &[]).is_err());
    assert!(lens(&model, &[], Some(1 << 30), 1).is_err());
}
