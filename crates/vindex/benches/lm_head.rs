//! `cargo bench -p larql-vindex --bench lm_head`: the best tokens by the coarse planes of a head
//! and by a scan of all its rows, on one thread and on two, beside the read bandwidth of the same
//! run. Every answer is compared. Heads of 262,144 rows, 640 and 2560 wide, made so that the planes
//! have to work as hard as on Gemma 3 270M: rows of one length with a common mean, a hidden state
//! whose size falls off over the columns, and cosines of the best rows as they are there.

#![allow(clippy::print_stdout, missing_docs, reason = "a benchmark prints its table")]

use std::time::{Duration, Instant};

use larql_compute::{
    ColumnOrder, Cpu, Dtype, HeadPlanes, Matrix, Order, PlanesLayout, bandwidth, build_planes,
    mean_row, quantize_row,
};

const ROWS: usize = 262_144;
const QUERIES: usize = 5;
const BANDWIDTH_BYTES: usize = 512 << 20;

struct Random(u64);

impl Random {
    fn unit(&mut self) -> f32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn normal(&mut self) -> f32 {
        (0..4).map(|_| self.unit()).sum::<f32>() * 0.866
    }
}

/// A hidden state: few columns hold most of its length.
fn hidden(random: &mut Random, cols: usize) -> Vec<f32> {
    let size = |c: usize| 12.0 / (1.0 + c as f32 * 640.0 / cols as f32).powf(0.6) + 0.25;
    (0..cols).map(|c| random.normal() * size(c)).collect()
}

/// Rows of about length 1; forty of them for each query point its way, the best by a cosine of 0.2.
fn rows(random: &mut Random, cols: usize, queries: &[Vec<f32>], dtype: Dtype) -> Vec<u8> {
    let common: Vec<f32> = (0..cols).map(|_| random.normal()).collect();
    let row_bytes = dtype.row_bytes(cols).expect("whole blocks");
    let (mut values, mut bytes) = (vec![0.0; cols], vec![0; ROWS * row_bytes]);
    let scale = 1.0 / (cols as f32).sqrt();
    for (r, row) in bytes.chunks_exact_mut(row_bytes).enumerate() {
        for (value, common) in values.iter_mut().zip(&common) {
            *value = scale * (0.45 * common + 0.89 * random.normal());
        }
        let query = &queries[r % queries.len()];
        let nth = r / queries.len() / 997;
        if r / queries.len() % 997 == 5 && nth < 40 {
            let length = query.iter().map(|v| v * v).sum::<f32>().sqrt();
            let cosine = 0.2 / (1.0 + nth as f32).powf(0.15);
            values.iter_mut().zip(query).for_each(|(v, q)| *v += cosine * q / length);
        }
        quantize_row(dtype, &values, row).expect("finite values");
    }
    bytes
}

fn main() {
    let cpus: Vec<Cpu> = [1, 2]
        .iter()
        .map(|&n| Cpu::new(None, Some(n)).expect("every machine has some kernels"))
        .collect();
    for cpu in &cpus {
        let limit = bandwidth::measure(cpu, BANDWIDTH_BYTES);
        println!("{cpu:?}: read bandwidth {limit:.1} GB/s");
    }
    println!(
        "{:6} {:>5} {:>3} {:>3} {:6} {:>8} {:>8} {:>7} {:>7} {:>9}",
        "dtype", "cols", "thr", "k", "path", "ms", "tok/s", "MB", "GB/s", "rescored"
    );
    for cols in [640, 2560] {
        for dtype in [Dtype::F16, Dtype::Q8_0, Dtype::Q6K, Dtype::Q4_0] {
            if cols % dtype.block_len() == 0 {
                head(&cpus, cols, dtype);
            }
        }
    }
}

fn head(cpus: &[Cpu], cols: usize, dtype: Dtype) {
    let mut random = Random(cols as u64);
    let queries: Vec<Vec<f32>> = (0..QUERIES).map(|_| hidden(&mut random, cols)).collect();
    let bytes = rows(&mut random, cols, &queries, dtype);
    let m = Matrix::new(dtype, ROWS, cols, &bytes).expect("whole blocks");
    let others: Vec<Vec<f32>> = (0..64).map(|_| hidden(&mut random, cols)).collect();
    let sizes: Vec<f32> = (0..cols).map(|c| others.iter().map(|h| h[c].abs()).sum()).collect();
    let (layout, order) = (PlanesLayout::new(cols), ColumnOrder::new(&sizes));
    let mean = mean_row(&cpus[1], m).expect("a matrix");
    let n = PlanesLayout::n_blocks(ROWS);
    let (mut norms, mut blocks) = (vec![0.0; n], vec![0; n * layout.block_bytes()]);
    build_planes(&cpus[1], m, &order, &mean, &mut blocks, &mut norms).expect("lengths that fit");
    let planes = HeadPlanes::new(&layout, &order, &mean, &norms, &blocks).expect("they fit");
    let mut scratch = Vec::new();
    for cpu in cpus {
        for k in [1, 40] {
            let (mut scan, mut fast) = (Vec::new(), Vec::new());
            let mut rescored = Vec::new();
            for h in queries.iter().chain(&queries) {
                let start = Instant::now();
                let expected = cpu.top_k_rows(m, h, k, Order::Signed).expect("finite");
                scan.push(start.elapsed());
                let start = Instant::now();
                let found = planes.top_k(cpu, m, h, k, &mut scratch).expect("lengths that fit");
                fast.push(start.elapsed());
                match found {
                    Some(found) => {
                        assert_eq!(found.rows, expected, "{dtype} {cols} {k}");
                        rescored.push(found.rescored);
                    }
                    None => rescored.push(ROWS),
                }
            }
            rescored.sort_unstable();
            let rescored = rescored[rescored.len() / 2];
            let line = |path, times: &mut Vec<Duration>, bytes: usize, rescored: usize| {
                times.sort_unstable();
                let seconds = times[times.len() / 2].as_secs_f64();
                println!(
                    "{dtype:6} {cols:>5} {:>3} {k:>3} {path:6} {:>8.2} {:>8.1} {:>7.1} {:>7.2} {rescored:>9}",
                    cpu.threads(),
                    seconds * 1e3,
                    1.0 / seconds,
                    bytes as f64 / 1e6,
                    bytes as f64 / seconds / 1e9,
                );
            };
            line("scan", &mut scan, bytes.len(), ROWS);
            line("planes", &mut fast, planes.bytes() + rescored * m.row_stride(), rescored);
        }
    }
}
