//! The scan against a brute force, on data chosen to hurt it.

use super::{CoarseScan, Gemm16, Queries, RowPanel, TILE_QUERIES, TILE_ROWS, Tile};
use crate::{ComputeError, Cpu, Isa};

/// A small generator, so that every run sees the same data.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        self.0 >> 33
    }

    /// Roughly normal.
    fn normal(&mut self) -> f32 {
        (0..4).map(|_| (self.next() % 20_001) as f32 / 10_000.0 - 1.0).sum()
    }

    fn vector(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// One over the length, 0 for a zero vector.
fn unit(x: &[f32]) -> f32 {
    let length = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
    if length == 0.0 { 0.0 } else { (1.0 / length) as f32 }
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    dot(a, b) * (unit(a) * unit(b))
}

/// The answer by sorting all scores.
fn brute(rows: &[Vec<f32>], query: &[f32], k: usize, sign: f32) -> Vec<(u32, f32)> {
    let mut all: Vec<_> = (0..).zip(rows.iter().map(|row| cosine(row, query))).collect();
    all.sort_by(|a, b| (sign * b.1).partial_cmp(&(sign * a.1)).unwrap().then(a.0.cmp(&b.0)));
    all.truncate(k);
    all
}

/// Scans by cosine, `step` panels at a time, and compares with the brute force. Returns how many
/// scores were computed in float32.
fn check(cpu: &Cpu, rows: &[Vec<f32>], queries: &[Vec<f32>], k: usize, step: usize) -> u64 {
    let cols = queries[0].len();
    let mut packed = Queries::new(cols);
    queries.iter().for_each(|q| packed.push(q, unit(q)).unwrap());
    let rescore = |query: usize, row: usize| Ok(cosine(&rows[row], &queries[query]));
    let slack = (cols + 8) as f64 * f64::from(f32::EPSILON);
    let mut scan = CoarseScan::new(cpu, &packed, k, &rescore, slack);
    for rows in rows.chunks(step * RowPanel::ROWS) {
        let panels: Vec<_> = rows
            .chunks(RowPanel::ROWS)
            .map(|rows| {
                let mut panel = RowPanel::new(cols);
                rows.iter().for_each(|row| panel.push(row, unit(row)).unwrap());
                panel
            })
            .collect();
        scan.scan(&panels).unwrap();
    }
    let found = scan.finish().unwrap();
    assert_eq!(found.extremes.len(), queries.len());
    for (extremes, query) in found.extremes.iter().zip(queries) {
        assert_eq!(extremes.highest, brute(rows, query, k, 1.0));
        assert_eq!(extremes.lowest, brute(rows, query, k, -1.0));
    }
    found.rescored
}

fn cpus() -> Vec<Cpu> {
    Isa::available().into_iter().map(|isa| Cpu::new(Some(isa), Some(2)).unwrap()).collect()
}

#[test]
fn every_kernel_gives_the_same_integers() {
    let mut random = Random(1);
    for pairs in [0, 1, 2, 7, 320, 321] {
        // Sums of 2 * 642 products of at most 1200 * 1200 stay below 2^31.
        let mut half = || (random.next() % 2401) as i16 - 1200;
        let mut words =
            |n: usize| -> Vec<i32> { (0..n).map(|_| super::join(half(), half())).collect() };
        let (a, b) = (words(pairs * TILE_QUERIES), words(pairs * TILE_ROWS));
        let mut expected: Tile = [[7; TILE_ROWS]; TILE_QUERIES];
        super::tile_scalar(&a, &b, &mut expected, false);
        super::tile_scalar(&a, &b, &mut expected, true);
        for isa in Isa::available() {
            let mut tile: Tile = [[-3; TILE_ROWS]; TILE_QUERIES];
            (Gemm16::new(isa).tile)(&a, &b, &mut tile, false);
            (Gemm16::new(isa).tile)(&a, &b, &mut tile, true);
            assert_eq!(tile, expected, "{isa}, {pairs} pairs");
        }
    }
}

#[test]
fn random_vectors_of_odd_sizes() {
    for cpu in cpus() {
        let mut random = Random(2);
        for (n_rows, n_queries, cols, k) in [
            (1, 1, 1, 1),
            (5, 7, 2, 9),
            (16, 6, 31, 3),
            (333, 13, 33, 10),
            (500, 101, 64, 1),
            (257, 97, 641, 10),
            (100, 5, 1411, 4),
            (40, 5, 64, 0),
        ] {
            let rows: Vec<_> = (0..n_rows).map(|_| random.vector(cols)).collect();
            let queries: Vec<_> = (0..n_queries).map(|_| random.vector(cols)).collect();
            check(&cpu, &rows, &queries, k, 3);
        }
    }
}

#[test]
fn few_rows_are_scored_twice() {
    let mut random = Random(3);
    let rows: Vec<_> = (0..5000).map(|_| random.vector(320)).collect();
    let queries: Vec<_> = (0..8).map(|_| random.vector(320)).collect();
    let rescored = check(&Cpu::new(None, Some(2)).unwrap(), &rows, &queries, 10, 8);
    assert!(rescored < 8 * 2 * 20, "{rescored} scores for 160 answers");
}

#[test]
fn equal_rows_zeros_and_lone_axes() {
    for cpu in cpus() {
        let mut random = Random(4);
        let cols = 48;
        let twin = random.vector(cols);
        let mut rows = vec![twin.clone(); 700];
        rows[13] = vec![0.0; cols];
        rows[200] = random.vector(cols);
        // The same direction in other lengths: equal cosines but for rounding.
        rows[300] = twin.iter().map(|v| v * 1e12).collect();
        rows[301] = twin.iter().map(|v| v * 3e-15).collect();
        for axis in 0..cols {
            rows[400 + axis] = vec![0.0; cols];
            rows[400 + axis][axis] = if axis % 2 == 0 { 5.0 } else { -1e-3 };
        }
        let mut queries = vec![twin.clone(), twin.iter().map(|v| -v).collect(), vec![0.0; cols]];
        queries.push(rows[407].clone());
        queries.push(vec![1.0; cols]);
        for k in [1, 10, 200] {
            check(&cpu, &rows, &queries, k, 2);
        }
    }
}

#[test]
fn rows_closer_than_the_grid() {
    for cpu in cpus() {
        let mut random = Random(5);
        let cols = 96;
        let centre = random.vector(cols);
        let mut near = |size: f32| -> Vec<f32> {
            centre.iter().map(|v| v * (1.0 + size * random.normal())).collect()
        };
        let rows: Vec<_> = (0..900).map(|i| near([1e-7, 1e-5, 1e-3][i % 3])).collect();
        let queries: Vec<_> = (0..7).map(|_| near(1e-4)).collect();
        check(&cpu, &rows, &queries, 10, 4);
    }
}

#[test]
fn the_longest_sums_do_not_wrap() {
    // All of a vector's length in products of one sign, at the widest rows tested.
    for cpu in cpus() {
        for cols in [1, 2, 3, 16_384] {
            let ones = vec![1.0_f32; cols];
            let minus = vec![-1.0_f32; cols];
            check(&cpu, &[ones.clone(), minus.clone()], &[ones, minus], 2, 1);
        }
    }
}

#[test]
fn bad_vectors_are_refused_by_position() {
    let mut panel = RowPanel::new(40);
    let mut x = vec![1.0; 40];
    assert!(matches!(panel.push(&x[1..], 0.1), Err(ComputeError::VectorLength { .. })));
    for (position, value) in [(0, f32::NAN), (17, f32::INFINITY), (39, f32::NEG_INFINITY)] {
        x.fill(1.0);
        x[position] = value;
        let error = panel.push(&x, 0.1).unwrap_err();
        assert!(matches!(error, ComputeError::NotFinite { position: p, .. } if p == position));
        assert!(Queries::new(40).push(&x, 0.1).is_err());
    }
    assert_eq!(panel.rows(), 0);
}

#[test]
fn a_nan_score_is_an_error_that_names_the_row() {
    let cpu = Cpu::new(None, Some(2)).unwrap();
    let mut queries = Queries::new(4);
    queries.push(&[0.5; 4], 1.0).unwrap();
    let mut panel = RowPanel::new(4);
    (0..3).for_each(|_| panel.push(&[0.5; 4], 1.0).unwrap());
    let rescore = |_: usize, row: usize| Ok(if row == 2 { f32::NAN } else { 1.0 });
    let mut scan = CoarseScan::new(&cpu, &queries, 1, &rescore, 0.0);
    scan.scan(&[panel]).unwrap();
    assert_eq!(scan.finish(), Err(ComputeError::NanScore { row: 2 }));
}
