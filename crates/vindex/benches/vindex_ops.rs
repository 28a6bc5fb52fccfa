//! Searching a real vindex: `cargo bench -p larql-vindex --bench vindex_ops -- gate_knn_per_layer`.
//!
//! Extracts the demo model (see `make model`) into a temporary vindex, checks an answer against a
//! brute force written here, then times. Bytes are those of the gate rows that one search reads;
//! the read bandwidth that they are held against is measured in the same run. All layers are
//! visited in turn; where their gates together fit into the last-level cache, the share may exceed
//! 100 %, and the table says how much is read in all.

#![allow(clippy::print_stdout, reason = "a bench shows its figures")]

use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use larql_compute::{Cpu, Order, bandwidth};
use larql_vindex::labels::{self, LabelOptions, Labels};
use larql_vindex::search::{Hit, Search};
use larql_vindex::{ExtractOptions, NoProgress, Vindex, extract};

const K: usize = 10;

#[allow(clippy::disallowed_methods, reason = "a bench is a surface: it says where its model is")]
fn model() -> PathBuf {
    std::env::var_os("LARQL_TEST_MODEL").map_or_else(
        || {
            let home = std::env::var_os("HOME").unwrap_or_default();
            PathBuf::from(home).join(".cache/larql/gemma-3-270m-q4_k_m.gguf")
        },
        PathBuf::from,
    )
}

/// Layers' gates, one query a layer, and the machine's read bandwidth.
struct Setup {
    _dir: tempfile::TempDir,
    vindex: Vindex,
    cpu: Cpu,
    queries: Vec<Vec<f32>>,
    bandwidth: f64,
}

impl Setup {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("demo.vindex");
        extract(&model(), &path, &ExtractOptions::default(), &NoProgress)
            .expect("run `make model` first");
        let vindex = Vindex::open(&path).expect("the vindex just made");
        let cpu = Cpu::new(None, None).expect("kernels of this machine");
        let bandwidth = bandwidth::measure(&cpu, 1 << 30);
        let search = Search::new(&vindex, &cpu);
        let embedding = search.embedding(9079).expect("a token of the vocabulary");
        let layers = 0..vindex.config().n_layers;
        let queries =
            layers.map(|layer| search.ffn_input(layer, &embedding).expect("norms")).collect();
        Self { _dir: dir, vindex, cpu, queries, bandwidth }
    }

    fn gate_bytes(&self, layer: usize) -> u64 {
        let id = larql_checkpoint::TensorId::layer(larql_checkpoint::Role::FfnGate, layer);
        self.vindex.matrix(id).map_or(0, |gate| gate.bytes().len() as u64)
    }

    fn brute_force(&self, layer: usize) -> Vec<(usize, f32)> {
        let id = larql_checkpoint::TensorId::layer(larql_checkpoint::Role::FfnGate, layer);
        let gate = self.vindex.matrix(id).expect("a gate");
        let mut scores: Vec<(usize, f32)> = (0..gate.rows())
            .map(|row| (row, self.cpu.dot_row(gate, row, &self.queries[layer]).expect("finite")))
            .collect();
        scores.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()).then(a.0.cmp(&b.0)));
        scores.truncate(K);
        scores
    }
}

fn gate_knn_per_layer(c: &mut Criterion) {
    let setup = Setup::new();
    let search = Search::new(&setup.vindex, &setup.cpu);
    let n_layers = setup.vindex.config().n_layers;
    let knn = |layer: usize| {
        search.gate_knn(layer, &setup.queries[layer], K, Order::Abs, None).expect("a search")
    };
    for layer in 0..n_layers {
        let found: Vec<(usize, f32)> =
            knn(layer).iter().map(|hit: &Hit| (hit.feature, hit.score)).collect();
        assert_eq!(found, setup.brute_force(layer), "layer {layer} is not exact");
    }

    let bytes: u64 = (0..n_layers).map(|layer| setup.gate_bytes(layer)).sum();
    let median = median_of(50, || (0..n_layers).for_each(|layer| drop(black_box(knn(layer)))));
    let rate = bytes as f64 / median.as_secs_f64() / 1e9;
    println!(
        "gate KNN, k={K}, {n_layers} layers of {} rows, {} threads, {}: {:.3} ms a layer, \
         {bytes} bytes a walk, {rate:.1} GB/s, {:.0} % of {:.1} GB/s read bandwidth",
        setup.vindex.config().intermediate_size,
        setup.cpu.threads(),
        setup.cpu.isa(),
        median.as_secs_f64() * 1e3 / n_layers as f64,
        100.0 * rate / setup.bandwidth,
        setup.bandwidth,
    );

    let mut group = c.benchmark_group("gate_knn_per_layer");
    group.throughput(Throughput::Bytes(bytes / n_layers as u64));
    let mut layer = 0;
    group.bench_function("gemma-3-270m", |b| {
        b.iter(|| {
            layer = (layer + 1) % n_layers;
            black_box(knn(layer))
        });
    });
    group.finish();
}

fn gate_knn_batch(c: &mut Criterion) {
    let setup = Setup::new();
    let search = Search::new(&setup.vindex, &setup.cpu);
    let mut group = c.benchmark_group("gate_knn_batch");
    for n in [1usize, 4, 16, 64, 256] {
        let hidden = setup.vindex.config().hidden_size;
        let xs: Vec<f32> =
            (0..n as u32).flat_map(|i| search.embedding(1000 + 37 * i).expect("a token")).collect();
        let batch = search.gate_knn_batch(5, &xs, K, Order::Abs, None).expect("a search");
        for (x, hits) in xs.chunks_exact(hidden).zip(&batch) {
            let alone = search.gate_knn(5, x, K, Order::Abs, None).expect("a search");
            assert_eq!(&alone, hits, "a batch of {n} differs from single searches");
        }
        group.throughput(Throughput::Elements(n as u64));
        group.bench_function(format!("gemma-3-270m/seq {n}"), |b| {
            b.iter(|| search.gate_knn_batch(5, black_box(&xs), K, Order::Abs, None));
        });
    }
    group.finish();
}

/// Opening the vindex, and a label by its feature's number. Labels of one layer are enough: the
/// place of a record is computed, not searched.
fn load_and_look_up(c: &mut Criterion) {
    let setup = Setup::new();
    let path = setup.vindex.path().to_path_buf();
    let options = LabelOptions { layers: Some(5..6), ..Default::default() };
    labels::compute(&setup.vindex, &setup.cpu, &options, &NoProgress).expect("labels");
    let labels = Labels::open(&Vindex::open(&path).expect("a vindex")).expect("labels");
    let labels = labels.expect("labels, just computed");
    let n_features = setup.vindex.config().intermediate_size;
    c.bench_function("load/gemma-3-270m", |b| b.iter(|| Vindex::open(black_box(&path))));
    let mut feature = 0;
    c.bench_function("feature_lookup/gemma-3-270m", |b| {
        b.iter(|| {
            feature = (feature + 977) % n_features;
            let found = labels.get(5, black_box(feature)).expect("a feature").expect("a label");
            found.promoted().chain(found.suppressed()).fold(0.0, |sum, (_, score)| sum + score)
        });
    });
}

fn median_of(runs: usize, mut body: impl FnMut()) -> Duration {
    body();
    let mut times: Vec<Duration> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            body();
            start.elapsed()
        })
        .collect();
    times.sort();
    times[runs / 2]
}

criterion_group!(benches, gate_knn_per_layer, gate_knn_batch, load_and_look_up);
criterion_main!(benches);
