//! Scores against a brute force, and the label file against everything it can be made to say.

use larql_compute::{Cpu, Dtype, Extremes, Isa, Matrix, quantize_row};
use zerocopy::IntoBytes;

use super::directions::Directions;
use super::file::{LabelFile, LabelWriter, LayerState, Layout, Shape};
use super::unembedding::Unembedding;
use super::{LabelScore, Labels};
use crate::VindexError;

struct Random(u64);

impl Random {
    fn normal(&mut self) -> f32 {
        (0..4)
            .map(|_| {
                self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
            })
            .sum()
    }

    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}

fn f32_matrix(values: &[f32], cols: usize) -> Matrix<'_> {
    Matrix::new(Dtype::F32, values.len() / cols, cols, values.as_bytes()).unwrap()
}

/// Directions given as the columns of `[cols, n]`.
fn directions(columns: &[f32], cols: usize) -> Directions {
    let n = columns.len() / cols;
    let mut directions = Directions::new(cols);
    directions.push_columns(f32_matrix(columns, n), 0, n, |_| {}).unwrap();
    directions
}

/// Checks `scan` against `score_all`, and `score_all` against float64 within rounding.
fn check(cpu: &Cpu, rows: Matrix<'_>, columns: &[f32], k: usize, score: LabelScore) {
    let cols = rows.cols();
    let directions = directions(columns, cols);
    let unembedding = Unembedding::new(cpu, rows, score).unwrap();
    let all = unembedding.score_all(&directions, k).unwrap();
    let (scanned, _) = unembedding.scan(&directions, k, |_| true).unwrap().unwrap();
    assert_eq!(scanned, all, "{score}, {rows:?}");

    let mut values = vec![0.0; rows.rows() * cols];
    for (r, row) in values.chunks_exact_mut(cols).enumerate() {
        cpu.row(rows, r, row).unwrap();
    }
    let mean: Vec<f64> = (0..cols)
        .map(|c| {
            let sum: f64 = values.iter().skip(c).step_by(cols).map(|&v| f64::from(v)).sum();
            if score == LabelScore::Centred { sum / rows.rows() as f64 } else { 0.0 }
        })
        .collect();
    let n = directions.len();
    for (i, extremes) in all.iter().enumerate() {
        assert_eq!(extremes.highest.len(), k.min(rows.rows()));
        for &(token, found) in extremes.highest.iter().chain(&extremes.lowest) {
            let row = &values[token as usize * cols..][..cols];
            let (mut dot, mut uu, mut dd) = (0.0, 0.0, 0.0);
            for (c, (&v, mean)) in row.iter().zip(&mean).enumerate() {
                let (u, d) = (f64::from(v) - mean, f64::from(columns[c * n + i]));
                dot += u * d;
                uu += u * u;
                dd += d * d;
            }
            let lengths = f64::sqrt(uu * dd);
            let expected = if score == LabelScore::Dot { dot } else { dot / lengths };
            let expected = if lengths == 0.0 { 0.0 } else { expected };
            let scale = if score == LabelScore::Dot { lengths } else { 1.0 };
            let error = (f64::from(found) - expected).abs();
            assert!(error <= 1e-5 * scale, "{score}: {found} for {expected}");
        }
    }
}

fn cpus() -> Vec<Cpu> {
    Isa::available().into_iter().map(|isa| Cpu::new(Some(isa), Some(2)).unwrap()).collect()
}

#[test]
fn scan_equals_brute_force() {
    for cpu in cpus() {
        let mut random = Random(1);
        for (n_rows, cols, n, k) in [(700, 64, 130, 10), (40, 33, 7, 50), (1, 3, 1, 1)] {
            let rows = random.values(n_rows * cols);
            let columns = random.values(cols * n);
            for score in LabelScore::ALL {
                check(&cpu, f32_matrix(&rows, cols), &columns, k, score);
            }
        }
    }
}

#[test]
fn quantised_rows_of_all_lengths_with_zeros_and_twins() {
    for cpu in cpus() {
        let mut random = Random(2);
        let (n_rows, cols, n) = (600, 64, 20);
        let mut rows = random.values(n_rows * cols);
        for (r, row) in rows.chunks_exact_mut(cols).enumerate() {
            let factor = match r % 7 {
                0 => 0.0,
                1 => 1e-9,
                2 => 1e3,
                _ => 1.0,
            };
            row.iter_mut().for_each(|v| *v *= factor);
        }
        let twin = rows[3 * cols..4 * cols].to_vec();
        for r in (300..580).filter(|r| r % 7 > 2) {
            rows[r * cols..(r + 1) * cols].copy_from_slice(&twin);
        }
        let mut columns = random.values(cols * n);
        for c in 0..cols {
            columns[c * n] = 0.0; // writes nothing
            columns[c * n + 1] = twin[c] * 1e-30;
            columns[c * n + 2] = twin[c] * -1e25;
        }
        for dtype in [Dtype::F32, Dtype::Q8_0] {
            let mut bytes = vec![0; dtype.row_bytes(cols).unwrap() * n_rows];
            quantize_row(dtype, &rows, &mut bytes).unwrap();
            let matrix = Matrix::new(dtype, n_rows, cols, &bytes).unwrap();
            for score in LabelScore::ALL {
                check(&cpu, matrix, &columns, 10, score);
            }
        }
    }
}

#[test]
fn values_that_are_not_finite_are_refused() {
    let cpu = Cpu::new(None, Some(1)).unwrap();
    for bad in [f32::NAN, f32::INFINITY, 1e38] {
        let mut rows = vec![1.0; 12];
        rows[7] = bad;
        assert!(Unembedding::new(&cpu, f32_matrix(&rows, 4), LabelScore::Cosine).is_err());
    }
    let mut directions = Directions::new(2);
    let columns = [1.0, 2.0, f32::NAN, 1.0, 1.0, 1.0];
    let error = directions.push_columns(f32_matrix(&columns, 3), 1, 2, |_| {}).unwrap_err();
    assert!(error.to_string().contains("position 2"), "{error}");
}

#[test]
fn columns_of_blocks_become_rows() {
    let mut random = Random(3);
    let (cols, n) = (37, 96);
    let values = random.values(cols * n);
    let mut bytes = vec![0; Dtype::Q8_0.row_bytes(n).unwrap() * cols];
    quantize_row(Dtype::Q8_0, &values, &mut bytes).unwrap();
    let down = Matrix::new(Dtype::Q8_0, cols, n, &bytes).unwrap();
    let mut exact = vec![0.0; cols * n];
    larql_compute::dequantize_row(Dtype::Q8_0, &bytes, &mut exact);
    let mut directions = Directions::new(cols);
    for (first, len) in [(0, 96), (31, 2), (33, 40), (95, 1), (5, 0)] {
        directions.clear();
        directions.push_columns(down, first, len, |_| {}).unwrap();
        assert_eq!(directions.len(), len);
        for (i, direction) in directions.iter().enumerate() {
            for (c, &value) in direction.values.iter().enumerate() {
                let value = f64::from(value) * direction.power;
                assert_eq!(value, f64::from(exact[c * n + first + i]));
            }
            assert!((1.0..=2.0).contains(&direction.length));
        }
    }
}

fn small_layout() -> Layout {
    let shape =
        Shape { k: 2, score: LabelScore::Centred, first_layer: 4, vocab_size: 9, hidden_size: 640 };
    Layout::new(shape, vec![3, 0, 2])
}

fn some_labels(token: u32) -> Extremes {
    Extremes { highest: vec![(token, 0.5), (8, 0.25)], lowest: vec![(0, -1.0)] }
}

#[test]
fn what_is_written_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("down_meta.bin");
    let mut writer = LabelWriter::create(&path, small_layout()).unwrap();
    let labels = Labels { file: LabelFile::open(&path).unwrap() };
    assert_eq!(labels.file.layout, small_layout());
    let there = |layer, feature| labels.get(layer, feature).unwrap().is_some();

    writer.begin_layer(4).unwrap();
    writer.write(4, 1, &[some_labels(1), some_labels(2)]).unwrap();
    assert!(!there(4, 1), "a layer counts when it is finished");
    writer.write(4, 0, &[some_labels(0)]).unwrap();
    writer.finish_layer(4).unwrap();
    assert!(there(4, 0) && there(4, 2) && !there(4, 3) && !there(6, 0) && !there(3, 0));

    writer.make_sparse(6).unwrap();
    writer.write_each(&[(6, 1)], &[some_labels(7)]).unwrap();
    assert!(there(6, 1) && !there(6, 0));

    let found = labels.get(6, 1).unwrap().unwrap();
    assert_eq!(found.promoted().collect::<Vec<_>>(), [(7, 0.5), (8, 0.25)]);
    assert_eq!(found.suppressed().collect::<Vec<_>>(), [(0, -1.0)]);
    let coverage = labels.coverage();
    assert_eq!((coverage.features, coverage.of_features), (4, 5));
    assert_eq!(coverage.layers[2].features, 1);
    labels.check().unwrap();
}

#[test]
fn one_writer_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("down_meta.bin");
    let first = LabelWriter::create(&path, small_layout()).unwrap();
    let Err(error) = LabelWriter::open(&path, small_layout()) else { panic!("two writers") };
    assert!(error.to_string().contains("another process"), "{error}");
    drop(first);
    LabelWriter::open(&path, small_layout()).unwrap();
}

fn small_file() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("down_meta.bin");
    let mut writer = LabelWriter::create(&path, small_layout()).unwrap();
    writer.write(4, 0, &[some_labels(1), some_labels(2), some_labels(3)]).unwrap();
    writer.finish_layer(4).unwrap();
    std::fs::read(path).unwrap()
}

#[test]
fn every_lie_of_the_header_is_refused() {
    let good = small_file();
    Labels::from_bytes(good.clone()).unwrap().check().unwrap();
    for (at, bytes, section) in [
        (0, &b"LARQLDM2"[..], "header"),
        (8, &[2, 0, 0, 0], "header"),               // version
        (12, &[0, 0, 0, 0], "header"),              // no tokens
        (12, &[255, 255, 255, 255], "header"),      // too many tokens
        (12, &[3, 0, 0, 0], "records"),             // other record size
        (16, &[2, 0, 0, 0], "header"),              // fewer layers: another total
        (16, &[255, 255, 0, 0], "layer table"),     // layers beyond the end
        (16, &[255, 255, 255, 255], "header"),      // absurd number of layers
        (20, &[3, 0, 0, 0], "header"),              // score
        (36, &[1], "header"),                       // reserved
        (40, &[6, 0, 0, 0], "header"),              // total
        (63, &[1], "header"),                       // reserved
        (64, &[1], "layer table"),                  // first record
        (72, &[4], "layer table"),                  // features against the next line
        (72, &[255, 255, 255, 255], "layer table"), // absurd number of features
        (76, &[9], "layer table"),                  // state
        (77, &[1], "layer table"),                  // padding of the state
    ] {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        match Labels::from_bytes(bad) {
            Err(VindexError::Corrupt { section: found, .. }) => assert_eq!(found, section, "{at}"),
            other => panic!("byte {at}: {other:?}"),
        }
    }
    for len in 0..good.len() {
        assert!(Labels::from_bytes(good[..len].to_vec()).is_err(), "{len} bytes");
    }
    let mut long = good.clone();
    long.push(0);
    assert!(Labels::from_bytes(long).is_err());
}

#[test]
fn a_token_beyond_the_vocabulary_is_refused() {
    let mut bytes = small_file();
    let first_record = 128;
    bytes[first_record] = 10; // token 9 of 9
    let labels = Labels::from_bytes(bytes).unwrap();
    assert!(labels.get(4, 0).is_err() && labels.check().is_err());
    assert!(labels.get(4, 1).is_ok());
    assert_eq!(labels.file.state(4), LayerState::Done);
}
