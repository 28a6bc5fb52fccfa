//! Searches on tiny models of every kind of FFN, against loops written out here.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::PathBuf;

use larql_checkpoint::config::NormKind;
use larql_checkpoint::{Role, TensorId};
use larql_compute::{Cpu, Isa, Matrix, Order};
use larql_vindex::search::{DescribeOptions, Search, WalkOptions};
use larql_vindex::{ExtractOptions, NoProgress, Vindex, VindexError, extract};

/// Gated with post-norms; plain with LayerNorm; fused; experts; experts with shared ones.
const FAMILIES: [&str; 6] = ["gemma3", "gpt2", "phi3", "mixtral", "qwen3moe", "deepseek2"];

struct Fixture {
    _dir: tempfile::TempDir,
    vindex: Vindex,
}

fn fixture(family: &str) -> Fixture {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../../tests/data/models/{family}/model.gguf"));
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("tiny.vindex");
    extract(&source, &target, &ExtractOptions::default(), &NoProgress).unwrap();
    Fixture { vindex: Vindex::open(&target).unwrap(), _dir: dir }
}

fn cpu() -> Cpu {
    Cpu::new(None, Some(2)).unwrap()
}

/// Pseudo-random values in ±1, the same on every run.
fn values(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 * 2.0 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn row(matrix: Matrix<'_>, row: usize) -> Vec<f32> {
    let mut out = vec![0.0; matrix.cols()];
    larql_compute::dequantize_row(matrix.dtype(), matrix.row_bytes(row), &mut out);
    out
}

/// Key rows of a layer in feature order, from the tensors' documented layout.
fn keys(vindex: &Vindex, layer: usize) -> Vec<Vec<f32>> {
    let all = |role| {
        let matrix = vindex.require(TensorId::layer(role, layer)).unwrap();
        (0..matrix.rows()).map(|r| row(matrix, r)).collect::<Vec<_>>()
    };
    let config = vindex.config();
    if config.is_moe_layer(layer) {
        let mut rows = all(Role::FfnGateExps);
        if config.moe.as_ref().unwrap().shared_size > 0 {
            rows.extend(all(Role::FfnGateShexp));
        }
        return rows;
    }
    if vindex.matrix(TensorId::layer(Role::FfnGate, layer)).is_some() {
        return all(Role::FfnGate);
    }
    let mut rows = all(Role::FfnUp);
    rows.truncate(config.intermediate_size);
    rows
}

/// Output direction of a feature, from the tensors' documented layout.
fn direction(vindex: &Vindex, layer: usize, feature: usize) -> Vec<f64> {
    let config = vindex.config();
    let hidden = config.hidden_size;
    let (role, first_row, column) = match (&config.moe, config.is_moe_layer(layer)) {
        (Some(moe), true) if feature < moe.n_experts * moe.expert_size => {
            let expert = feature / moe.expert_size;
            (Role::FfnDownExps, expert * hidden, feature % moe.expert_size)
        }
        (Some(moe), true) => (Role::FfnDownShexp, 0, feature - moe.n_experts * moe.expert_size),
        _ => (Role::FfnDown, 0, feature),
    };
    let down = vindex.require(TensorId::layer(role, layer)).unwrap();
    let mut column: Vec<f64> =
        (0..hidden).map(|r| f64::from(row(down, first_row + r)[column])).collect();
    if config.norm.kind == NormKind::Layer {
        let mean = column.iter().sum::<f64>() / hidden as f64;
        column.iter_mut().for_each(|v| *v -= mean);
    }
    let mut weigh = |id| {
        let weight = vindex.vector(id).unwrap();
        column.iter_mut().zip(&weight).for_each(|(v, w)| *v *= f64::from(*w));
    };
    if config.post_norms {
        weigh(TensorId::layer(Role::PostFfnNorm, layer));
    }
    weigh(TensorId::global(Role::OutputNorm));
    column
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot: f64 = a.iter().zip(b).map(|(x, y)| x * y).sum();
    let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
    dot / (norm(a) * norm(b))
}

#[test]
fn knn_is_the_brute_force() {
    for family in FAMILIES {
        let fixture = fixture(family);
        let (vindex, cpu) = (&fixture.vindex, cpu());
        let scalar = Cpu::new(Some(Isa::Scalar), Some(1)).unwrap();
        let search = Search::new(vindex, &cpu);
        for layer in vindex.layers() {
            let x = values(vindex.config().hidden_size, layer as u32 + 1);
            let rows = keys(vindex, layer);
            assert_eq!(rows.len(), vindex.n_features(layer).unwrap(), "{family} {layer}");
            let mut expected: Vec<(usize, f32)> = rows
                .iter()
                .map(|g| g.iter().zip(&x).map(|(g, x)| f64::from(*g) * f64::from(*x)).sum::<f64>())
                .map(|score| score as f32)
                .enumerate()
                .collect();
            for order in [Order::Abs, Order::Signed] {
                expected
                    .sort_by(|a, b| order.key(b.1).total_cmp(&order.key(a.1)).then(a.0.cmp(&b.0)));
                for k in [0, 1, 7, rows.len(), rows.len() + 5] {
                    let hits = search.gate_knn(layer, &x, k, order, None).unwrap();
                    assert_eq!(hits.len(), k.min(rows.len()));
                    for (hit, (_, score)) in hits.iter().zip(&expected) {
                        assert!((hit.score - score).abs() < 1e-5, "{family} {layer}: {hit:?}");
                    }
                    let slow = Search::new(vindex, &scalar);
                    assert_eq!(hits, slow.gate_knn(layer, &x, k, order, None).unwrap());
                }
            }
        }
    }
}

#[test]
fn batches_equal_single_searches() {
    for family in FAMILIES {
        let fixture = fixture(family);
        let cpu = cpu();
        let search = Search::new(&fixture.vindex, &cpu);
        let hidden = fixture.vindex.config().hidden_size;
        for n in [0, 1, 3, 16, 37] {
            let mut xs = values(n * hidden, 9);
            if n > 2 {
                // Equal scores everywhere, and scores of very different size.
                xs[..hidden].fill(0.0);
                xs[hidden..2 * hidden].iter_mut().for_each(|v| *v *= 3e4);
            }
            for order in [Order::Abs, Order::Signed] {
                let batch = search.gate_knn_batch(1, &xs, 10, order, None).unwrap();
                assert_eq!(batch.len(), n);
                for (x, hits) in xs.chunks_exact(hidden).zip(&batch) {
                    assert_eq!(hits, &search.gate_knn(1, x, 10, order, None).unwrap());
                }
            }
        }
        let odd = search.gate_knn_batch(1, &values(hidden + 1, 1), 3, Order::Abs, None);
        assert!(matches!(odd, Err(VindexError::QueryLength { .. })), "{odd:?}");
    }
}

#[test]
fn experts_narrow_the_search() {
    for family in ["mixtral", "qwen3moe", "deepseek2"] {
        let fixture = fixture(family);
        let cpu = cpu();
        let search = Search::new(&fixture.vindex, &cpu);
        let config = fixture.vindex.config();
        let moe = config.moe.as_ref().unwrap();
        let layer = moe.n_dense_layers;
        let x = values(config.hidden_size, 5);
        let all = search.gate_knn(layer, &x, usize::MAX, Order::Abs, None).unwrap();
        for expert in 0..moe.n_experts {
            let range = expert * moe.expert_size..(expert + 1) * moe.expert_size;
            let found = search.gate_knn(layer, &x, usize::MAX, Order::Abs, Some(expert)).unwrap();
            let expected: Vec<_> =
                all.iter().filter(|hit| range.contains(&hit.feature)).copied().collect();
            assert_eq!(found, expected, "{family}, expert {expert}");
        }
        let routed = search.route(layer, &x).unwrap();
        assert_eq!(routed.len(), moe.n_experts_used);
        let chosen: Vec<usize> = routed.iter().map(|r| r.expert).collect();
        let found = search.gate_knn_routed(layer, &x, usize::MAX, Order::Abs, &chosen).unwrap();
        let n = chosen.len() * moe.expert_size + moe.shared_size;
        assert_eq!(found.len(), n, "{family}");
        let beyond = moe.n_experts + usize::from(moe.shared_size > 0);
        let error = search.gate_knn(layer, &x, 1, Order::Abs, Some(beyond)).unwrap_err();
        assert!(matches!(error, VindexError::NoSuchExpert { .. }), "{error}");
    }
    let fixture = fixture("gemma3");
    let cpu = cpu();
    let search = Search::new(&fixture.vindex, &cpu);
    let x = values(fixture.vindex.config().hidden_size, 5);
    let error = search.gate_knn(0, &x, 1, Order::Abs, Some(0)).unwrap_err();
    assert!(error.to_string().contains("layer 0 has no experts"), "{error}");
    assert!(matches!(search.route(0, &x), Err(VindexError::NotMoe { layer: 0 })));
}

#[test]
fn describe_ranks_output_directions() {
    for family in FAMILIES {
        let fixture = fixture(family);
        let (vindex, cpu) = (&fixture.vindex, cpu());
        let search = Search::new(vindex, &cpu);
        let (first, second) = (17u32, 30u32);
        let options = DescribeOptions { top: 12, ..Default::default() };
        let found = search.describe(&[first, second], &options).unwrap();
        assert_eq!(found.parts.len(), 3);
        let unit = |token| {
            let u: Vec<f64> =
                search.unembedding(token).unwrap().iter().map(|&v| f64::from(v)).collect();
            let norm = u.iter().map(|v| v * v).sum::<f64>().sqrt();
            u.into_iter().map(|v| v / norm).collect::<Vec<f64>>()
        };
        let (a, b) = (unit(first), unit(second));
        let together: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        for (part, target) in found.parts.iter().zip([a, b, together]) {
            let mut expected: Vec<f64> = vindex
                .layers()
                .flat_map(|layer| (0..vindex.n_features(layer).unwrap()).map(move |f| (layer, f)))
                .map(|(layer, feature)| cosine(&direction(vindex, layer, feature), &target))
                .collect();
            assert_eq!(expected.len(), found.n_features);
            expected.sort_by(|a, b| b.abs().total_cmp(&a.abs()));
            let mut scores: Vec<f64> =
                part.features.iter().map(|f| f64::from(f.hit.score)).collect();
            scores.sort_by(|a, b| b.abs().total_cmp(&a.abs()));
            assert_eq!(scores.len(), 12);
            for (score, expected) in scores.iter().zip(&expected) {
                assert!((score.abs() - expected.abs()).abs() < 1e-4, "{family}");
            }
            for f in &part.features {
                let truth = cosine(&direction(vindex, f.hit.layer, f.hit.feature), &target);
                assert!((truth - f64::from(f.hit.score)).abs() < 1e-4, "{family}: {f:?}");
            }
            assert!(part.features.is_sorted_by_key(|f| f.hit.layer));
        }
        assert!(matches!(search.describe(&[], &options), Err(VindexError::EmptyQuery)));
        let long = search.describe(&[17; 65], &options);
        assert!(matches!(long, Err(VindexError::LongQuery { tokens: 65, max: 64 })));
        // A token that is repeated is one part; it counts twice in the word as a whole.
        let repeated = search.describe(&[17, 30, 17], &options).unwrap();
        let parts: Vec<_> = repeated.parts.iter().map(|part| part.tokens.as_slice()).collect();
        assert_eq!(parts, [&[17][..], &[30], &[17, 30, 17]]);
        assert_eq!(search.describe(&[17, 17], &options).unwrap().parts.len(), 1);
        let beyond = search.describe(&[u32::MAX], &options);
        assert!(matches!(beyond, Err(VindexError::NoSuchToken { .. })), "{beyond:?}");
    }
}

#[test]
fn features_and_walks_name_what_is_missing() {
    let fixture = fixture("gemma3");
    let (vindex, cpu) = (&fixture.vindex, cpu());
    let search = Search::new(vindex, &cpu);
    let n = vindex.n_features(0).unwrap();
    let facts = search.feature(0, n - 1).unwrap();
    assert!(facts.gate_norm > 0.0 && facts.up_norm.is_some() && facts.down_norm.is_some());
    assert!(matches!(search.feature(0, n), Err(VindexError::NoSuchFeature { .. })));
    assert!(matches!(search.feature(99, 0), Err(VindexError::NoSuchLayer { layer: 99, .. })));
    let walk = search.walk(17, &WalkOptions { top: 3, ..Default::default() }).unwrap();
    assert_eq!(walk.layers.len(), vindex.config().n_layers);
    assert!(walk.layers.iter().all(|l| l.hits.len() == 3));
    let options = WalkOptions { layers: Some(0..99), ..Default::default() };
    assert!(matches!(search.walk(17, &options), Err(VindexError::NoSuchLayer { .. })));
    let nan = vec![f32::NAN; vindex.config().hidden_size];
    let error = search.gate_knn(0, &nan, 3, Order::Abs, None).unwrap_err();
    assert!(error.to_string().contains("not finite"), "{error}");
    let short = search.gate_knn(0, &[1.0], 3, Order::Abs, None).unwrap_err();
    assert!(short.to_string().contains("elements"), "{short}");
}
