//! `cargo bench -p larql-compute --bench kernels`: matrix times vector for every dtype on the gate
//! of Gemma 3 4B (10240 x 2560), float-exact and integer, beside the read bandwidth that this
//! machine shows in the same run. Each answer is checked against the scalar twin first.

#![allow(clippy::print_stdout, missing_docs, reason = "a benchmark prints its table")]

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use larql_compute::conformance::{Case, Values};
use larql_compute::{Activations, Cpu, Dtype, Matrix, bandwidth};

const ROWS: usize = 10_240;
const COLS: usize = 2_560;
/// Several times any last-level cache of the machines that run this.
const BANDWIDTH_BYTES: usize = 512 << 20;
/// The matrix stands in memory this often over, and is taken in turn: so that it comes from memory
/// and not from a cache, as it does between the layers of a model.
const RESIDENT_BYTES: usize = 256 << 20;
/// Rows that the scalar twin checks.
const CHECKED: usize = 64;

struct Line {
    dtype: Dtype,
    path: &'static str,
    bytes: usize,
    best: Duration,
}

fn main() {
    let cpu = Cpu::new(None, None).expect("every machine has some kernels");
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let lines = RefCell::new(Vec::new());
    let before = bandwidth::measure(&cpu, BANDWIDTH_BYTES);
    for dtype in Dtype::ALL {
        bench_dtype(&mut criterion, &cpu, dtype, &lines);
    }
    let limit = before.max(bandwidth::measure(&cpu, BANDWIDTH_BYTES));
    println!("\n{cpu:?}, {ROWS} x {COLS}, read bandwidth {limit:.1} GB/s; best of all iterations");
    println!("{:6} {:9} {:>10} {:>8} {:>8} {:>7}", "dtype", "path", "bytes", "ms", "GB/s", "share");
    for Line { dtype, path, bytes, best } in lines.take() {
        let rate = bytes as f64 / best.as_secs_f64() / 1e9;
        println!(
            "{dtype:6} {path:9} {bytes:>10} {:>8.3} {rate:>8.2} {:>6.0}%",
            best.as_secs_f64() * 1e3,
            100.0 * rate / limit,
        );
    }
    criterion.final_summary();
}

fn bench_dtype(criterion: &mut Criterion, cpu: &Cpu, dtype: Dtype, lines: &RefCell<Vec<Line>>) {
    let case = Case::new(dtype, ROWS, COLS, Values::Ordinary);
    let m = case.matrix().expect("10240 x 2560 is whole blocks of every dtype");
    let size = m.bytes().len();
    let copies = RESIDENT_BYTES.div_ceil(size);
    let bytes = m.bytes().repeat(copies);
    let all = Matrix::new(dtype, ROWS * copies, COLS, &bytes).expect("whole copies");
    let turn = Cell::new(0);
    let mut activations = Activations::default();
    activations.set(cpu, case.x(), 1).expect("finite");
    let mut y = vec![0.0; ROWS];
    check(cpu, &case, &activations);
    let mut group = criterion.benchmark_group("matvec");
    group.throughput(Throughput::Bytes(size as u64));
    for path in ["f32_exact", "q8"] {
        let best = RefCell::new(Duration::MAX);
        group.bench_function(BenchmarkId::new(path, dtype), |bencher| {
            bencher.iter_custom(|iterations| {
                let mut total = Duration::ZERO;
                for _ in 0..iterations {
                    let first = turn.get() % copies * ROWS;
                    turn.set(turn.get() + 1);
                    let m = all.row_range(first..first + ROWS);
                    let start = Instant::now();
                    match path {
                        "q8" => cpu.project(m, &activations, black_box(&mut y)),
                        _ => cpu.matvec(m, case.x(), black_box(&mut y)),
                    }
                    .expect("the lengths fit");
                    let elapsed = start.elapsed();
                    total += elapsed;
                    best.replace_with(|best| elapsed.min(*best));
                }
                total
            });
        });
        let best = best.into_inner();
        if best < Duration::MAX {
            lines.borrow_mut().push(Line { dtype, path, bytes: size, best });
        }
    }
    group.finish();
}

/// The first rows of both paths, bit for bit against the scalar twin.
fn check(cpu: &Cpu, case: &Case, x: &Activations) {
    let twin = Case::twin().expect("every machine has the scalar kernels");
    let m = case.matrix().expect("whole blocks").row_range(0..CHECKED);
    let (mut expected, mut found) = ([0.0; CHECKED], [0.0; CHECKED]);
    twin.matvec(m, case.x(), &mut expected).expect("the lengths fit");
    cpu.matvec(m, case.x(), &mut found).expect("the lengths fit");
    assert_eq!(expected, found, "{} f32_exact", case.dtype);
    twin.project(m, x, &mut expected).expect("the lengths fit");
    cpu.project(m, x, &mut found).expect("the lengths fit");
    assert_eq!(expected, found, "{} q8", case.dtype);
}
