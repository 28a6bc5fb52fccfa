//! Exactness of the planes on rows that try to break it.

use super::{ColumnOrder, Estimates, HeadPlanes, PlanesLayout, build_planes, estimate, mean_row};
use crate::arch::planes_kernel;
use crate::{Cpu, Dtype, Isa, Matrix, Order};

struct Random(u64);

impl Random {
    fn unit(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn normal(&mut self) -> f32 {
        (0..6).map(|_| self.unit()).sum::<f32>() / 1.414
    }
}

struct Planes {
    layout: PlanesLayout,
    order: ColumnOrder,
    mean: Vec<f32>,
    norms: Vec<f32>,
    blocks: Vec<u8>,
}

fn build(cpu: &Cpu, m: Matrix<'_>) -> Planes {
    let layout = PlanesLayout::new(m.cols());
    let sizes: Vec<f32> = (0..m.cols()).map(|c| ((c * 7) % 13) as f32).collect();
    let order = ColumnOrder::new(&sizes);
    let mean = mean_row(cpu, m).unwrap();
    let n = PlanesLayout::n_blocks(m.rows());
    let (mut norms, mut blocks) = (vec![0.0; n], vec![0; n * layout.block_bytes()]);
    build_planes(cpu, m, &order, &mean, &mut blocks, &mut norms).unwrap();
    Planes { layout, order, mean, norms, blocks }
}

fn bytes(rows: &[f32]) -> Vec<u8> {
    rows.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Checks all `k` against the brute force; returns how often the planes answered.
fn check(cpu: &Cpu, m: Matrix<'_>, h: &[f32]) -> usize {
    let planes = build(cpu, m);
    let Planes { layout, order, mean, norms, blocks } = &planes;
    let view = HeadPlanes::new(layout, order, mean, norms, blocks).unwrap();
    let mut answered = 0;
    for k in [0, 1, 2, 7, 40, m.rows() - 1, m.rows(), m.rows() + 3] {
        if let Some(found) = view.top_k(cpu, m, h, k, &mut Vec::new()).unwrap() {
            let expected = cpu.top_k_rows(m, h, k, Order::Signed).unwrap();
            let bits = |rows: &[crate::Scored]| -> Vec<(usize, u32)> {
                rows.iter().map(|s| (s.row, s.score.to_bits())).collect()
            };
            assert_eq!(bits(&found.rows), bits(&expected), "{m:?} k {k}");
            answered += 1;
        }
    }
    answered
}

#[test]
fn ordinary_rows_are_found_by_the_planes() {
    let cpu = Cpu::new(None, Some(2)).unwrap();
    let mut random = Random(1);
    for cols in [1, 7, 33, 100, 640, 1291] {
        let h: Vec<f32> = (0..cols).map(|c| random.normal() * ((c * 7) % 13) as f32).collect();
        let mut rows: Vec<f32> =
            (0..2003 * cols).map(|i| random.normal() + (i % cols) as f32 * 0.01).collect();
        // As in a real head, a few rows stand out.
        for r in 0..60 {
            for (value, h) in rows[r * 33 * cols..][..cols].iter_mut().zip(&h) {
                *value += h * (0.1 + r as f32 / 200.0);
            }
        }
        let rows = bytes(&rows);
        let m = Matrix::new(Dtype::F32, 2003, cols, &rows).unwrap();
        let answered = check(&cpu, m, &h);
        assert!(cols < 33 || answered >= 4, "{cols} columns: {answered}");
    }
}

#[test]
fn hostile_rows_do_not_break_exactness() {
    let cpu = Cpu::new(None, Some(2)).unwrap();
    let (n, cols) = (1600, 72);
    let mut random = Random(2);
    let plain: Vec<f32> = (0..n * cols).map(|_| random.normal()).collect();
    let h: Vec<f32> = (0..cols).map(|_| random.normal()).collect();
    let fill = |rows: &mut [f32], r: usize, value: f32| rows[r * cols..][..cols].fill(value);
    let mut cases: Vec<Vec<f32>> = Vec::new();
    // All equal; equal in pairs; zeros; one row a thousand times over.
    cases.push(vec![0.25; n * cols]);
    cases.push((0..n * cols).map(|i| plain[i % (n / 2 * cols)]).collect());
    cases.push(vec![0.0; n * cols]);
    let mut same = plain.clone();
    for r in 100..1100 {
        same.copy_within(5 * cols..6 * cols, r * cols);
    }
    cases.push(same);
    for value in [1e36, -1e36, 3e38, 1e-38, 1e-45, f32::INFINITY, f32::NEG_INFINITY] {
        let mut rows = plain.clone();
        fill(&mut rows, 77, value);
        rows[900 * cols] = value;
        cases.push(rows);
    }
    // Differences of the last bit.
    let mut near = plain.clone();
    for r in 0..200 {
        near.copy_within(5 * cols..6 * cols, r * 8 * cols);
        near[r * 8 * cols] = f32::from_bits(near[r * 8 * cols].to_bits() + r as u32 % 3);
    }
    cases.push(near);
    cases.push(plain.iter().map(|v| v * 1e-42).collect());
    cases.push(plain.iter().map(|v| v * 1e30).collect());
    cases.push(plain.iter().map(|v| v.powi(9)).collect());
    for rows in &cases {
        let rows = bytes(rows);
        let m = Matrix::new(Dtype::F32, n, cols, &rows).unwrap();
        for scale in [1.0, 0.0, 1e-38, 1e-45, 1e20, 1e30] {
            let scaled: Vec<f32> = h.iter().map(|v| v * scale).collect();
            if cpu.top_k_rows(m, &scaled, 1, Order::Signed).is_ok() {
                check(&cpu, m, &scaled);
            }
        }
    }
}

#[test]
fn a_nan_is_never_hidden() {
    let cpu = Cpu::new(None, Some(2)).unwrap();
    let (n, cols) = (1600, 40);
    let mut random = Random(3);
    let mut rows: Vec<f32> = (0..n * cols).map(|_| random.normal()).collect();
    let h: Vec<f32> = (0..cols).map(|_| random.normal()).collect();
    rows[700 * cols + 3] = f32::NAN;
    let nan_rows = bytes(&rows);
    rows[700 * cols + 3] = 1.0;
    let finite = bytes(&rows);
    let m = Matrix::new(Dtype::F32, n, cols, &nan_rows).unwrap();
    assert_eq!(check(&cpu, m, &h), 0);
    let m = Matrix::new(Dtype::F32, n, cols, &finite).unwrap();
    for value in [f32::NAN, f32::INFINITY, 3e38] {
        let mut h = h.clone();
        h[1] = value;
        let p = build(&cpu, m);
        let view = HeadPlanes::new(&p.layout, &p.order, &p.mean, &p.norms, &p.blocks).unwrap();
        assert_eq!(view.top_k(&cpu, m, &h, 1, &mut Vec::new()).unwrap(), None);
    }
}

#[test]
fn every_instruction_set_estimates_the_same_bits() {
    let cpu = Cpu::new(None, Some(1)).unwrap();
    let mut random = Random(4);
    for cols in [1, 40, 640, 1291, 2560] {
        let rows = bytes(&(0..48 * cols).map(|_| random.normal()).collect::<Vec<_>>());
        let m = Matrix::new(Dtype::F32, 48, cols, &rows).unwrap();
        let p = build(&cpu, m);
        let view = HeadPlanes::new(&p.layout, &p.order, &p.mean, &p.norms, &p.blocks).unwrap();
        let h: Vec<f32> = (0..cols).map(|_| random.normal() * 30.0).collect();
        let query = view.query_for_test(&h);
        for isa in Isa::available() {
            for block in p.blocks.chunks_exact(p.layout.block_bytes()) {
                let mut twin = Estimates::default();
                estimate(block, &query, &mut twin);
                let mut found = Estimates::default();
                planes_kernel(isa).unwrap()(block, &query, &mut found);
                assert_eq!(twin, found, "{isa}, {cols} columns");
            }
        }
    }
}
