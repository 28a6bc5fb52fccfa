//! Every instruction set of this machine against the scalar twin.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use larql_compute::conformance::{Case, Values, cases};
use larql_compute::{Activations, ComputeError, Cpu, Dtype, Isa, Matrix, Order, Scored, TopK};

/// The devices under test: every instruction set, on several numbers of threads.
fn devices() -> Vec<Cpu> {
    let isas = Isa::available();
    let all = isas.iter().flat_map(|&isa| [1, 2, 3, 5].map(|threads| (isa, threads)));
    all.map(|(isa, threads)| Cpu::new(Some(isa), Some(threads)).unwrap()).collect()
}

/// Bit-equal; one NaN is as good as another.
fn assert_same(what: &str, cpu: &Cpu, case: &Case, expected: &[f32], found: &[f32]) {
    assert_eq!(expected.len(), found.len());
    for (i, (e, f)) in expected.iter().zip(found).enumerate() {
        assert!(
            e.to_bits() == f.to_bits() || (e.is_nan() && f.is_nan()),
            "{what} of {} {}x{} {:?} on {cpu:?}: element {i} is {f:e}, the twin says {e:e}",
            case.dtype,
            case.rows,
            case.cols,
            case.values,
        );
    }
}

#[test]
fn rows_and_axpy_are_bit_equal() {
    for case in cases() {
        let (m, twin) = (case.matrix().unwrap(), Case::twin().unwrap());
        for cpu in devices().iter().filter(|cpu| cpu.threads() == 1) {
            for row in 0..case.rows {
                let (mut expected, mut found) = (vec![0.5; case.cols], vec![0.5; case.cols]);
                twin.row(m, row, &mut expected).unwrap();
                cpu.row(m, row, &mut found).unwrap();
                assert_same("row", cpu, &case, &expected, &found);
                twin.axpy_row(m, row, -1.7, &mut expected).unwrap();
                cpu.axpy_row(m, row, -1.7, &mut found).unwrap();
                assert_same("axpy_row", cpu, &case, &expected, &found);
            }
        }
    }
}

#[test]
fn float_products_are_bit_equal_on_any_number_of_threads() {
    let devices = devices();
    for case in cases() {
        let (m, twin) = (case.matrix().unwrap(), Case::twin().unwrap());
        let mut expected = vec![0.0; case.rows];
        twin.matvec(m, case.x(), &mut expected).unwrap();
        for cpu in &devices {
            let mut found = vec![0.0; case.rows];
            cpu.matvec(m, case.x(), &mut found).unwrap();
            assert_same("matvec", cpu, &case, &expected, &found);
            let dots: Vec<f32> =
                (0..case.rows).map(|r| cpu.dot_row(m, r, case.x()).unwrap()).collect();
            assert_same("dot_row", cpu, &case, &expected, &dots);
        }
    }
}

#[test]
fn the_float_product_follows_its_definition() {
    for case in cases() {
        let (m, twin) = (case.matrix().unwrap(), Case::twin().unwrap());
        let mut weights = vec![0.0; case.cols];
        for row in 0..case.rows {
            twin.row(m, row, &mut weights).unwrap();
            let mut a = [0.0_f32; 32];
            for i in 0..case.cols {
                a[i % 32] = weights[i].mul_add(case.x()[i], a[i % 32]);
            }
            let s: Vec<f32> = (0..8).map(|j| (a[j] + a[j + 8]) + (a[j + 16] + a[j + 24])).collect();
            let t: Vec<f32> = (0..4).map(|j| s[j] + s[j + 4]).collect();
            let expected = (t[0] + t[2]) + (t[1] + t[3]);
            let found = twin.dot_row(m, row, case.x()).unwrap();
            assert_same("dot_row", &twin, &case, &[expected], &[found]);
        }
    }
}

#[test]
fn integer_products_are_bit_equal_and_within_the_proven_bound() {
    let devices = devices();
    for case in cases() {
        let (m, twin) = (case.matrix().unwrap(), Case::twin().unwrap());
        let mut expected = vec![0.0; case.rows];
        twin.project(m, &activations(&twin, case.x(), 1), &mut expected).unwrap();
        check_bound(&case, m, case.x(), &expected);
        for cpu in &devices {
            let mut found = vec![0.0; case.rows];
            cpu.project(m, &activations(cpu, case.x(), 1), &mut found).unwrap();
            assert_same("project", cpu, &case, &expected, &found);
        }
    }
}

#[test]
fn products_of_many_vectors_are_within_the_proven_bound_on_any_number_of_threads() {
    let devices = devices();
    for case in cases() {
        let m = case.matrix().unwrap();
        for n in [2, 16, 21] {
            let x = case.positions(n);
            let mut by_isa: Vec<(Isa, Vec<f32>)> = Vec::new();
            for cpu in &devices {
                let mut found = vec![f32::NAN; n * case.rows];
                cpu.project(m, &activations(cpu, &x, n), &mut found).unwrap();
                if let Some((_, first)) = by_isa.iter().find(|(isa, _)| *isa == cpu.isa()) {
                    assert_same("project", cpu, &case, first, &found);
                    continue;
                }
                for (x, found) in x.chunks(case.cols).zip(found.chunks(case.rows)) {
                    check_bound(&case, m, x, found);
                }
                by_isa.push((cpu.isa(), found));
            }
        }
    }
}

fn activations(cpu: &Cpu, x: &[f32], n: usize) -> Activations {
    let mut activations = Activations::default();
    activations.set(cpu, x, n).unwrap();
    activations
}

/// What the integer product multiplies by: `x` on a grid of max|x| / 127 for each 32 elements.
fn on_its_grid(x: &[f32]) -> Vec<f32> {
    let block = |block: &[f32]| {
        let scale = block.iter().fold(0.0_f32, |max, v| max.max(v.abs())) / 127.0;
        block.iter().map(|v| scale * (v / scale).round_ties_even()).collect::<Vec<f32>>()
    };
    x.chunks(32).flat_map(block).collect()
}

/// |g.x - integer product| <= |g| |x - x^|, and a little for float32's own rounding.
fn check_bound(case: &Case, m: Matrix<'_>, x: &[f32], scores: &[f32]) {
    let twin = Case::twin().unwrap();
    let x_hat = on_its_grid(x);
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|v| v * v).sum::<f64>().sqrt();
    let error = norm(&mut x.iter().zip(&x_hat).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    let mut weights = vec![0.0; case.cols];
    for (row, &score) in scores.iter().enumerate() {
        twin.row(m, row, &mut weights).unwrap();
        let terms = weights.iter().zip(x).map(|(g, x)| f64::from(*g) * f64::from(*x));
        let exact: f64 = terms.sum();
        let length = norm(&mut weights.iter().map(|g| f64::from(*g)));
        let reach = length * norm(&mut x.iter().map(|x| f64::from(*x)));
        let bound = length * error + 4e-6 * reach + minimums_slack(case, x);
        assert!(
            (exact - f64::from(score)).abs() <= bound,
            "{} {}x{} {:?} row {row}: {score} against {exact}, bound {bound}",
            case.dtype,
            case.rows,
            case.cols,
            case.values,
        );
    }
}

/// What float32's rounding can add where `d * q` and the minimum cancel: it is relative to them,
/// not to their difference, so to the largest minimum of the case (63 sub-scales).
fn minimums_slack(case: &Case, x: &[f32]) -> f64 {
    let has_minimums =
        matches!(case.dtype, Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q2K | Dtype::Q4K | Dtype::Q5K);
    if !has_minimums {
        return 0.0;
    }
    let factor = match case.values {
        Values::Ordinary => 0.01,
        Values::Extreme => 65_504.0,
    };
    let total: f64 = on_its_grid(x).iter().map(|v| f64::from(v.abs())).sum();
    2e-6 * 63.0 * factor * total
}

/// The table of `docs/NUMERICS.md`: errors on a 40 x 2560 matrix against float64, the float path
/// relative to the sum of |products|, the integer path to the product of the norms.
#[test]
fn tolerances_of_the_table_hold() {
    let cpu = Cpu::new(None, Some(1)).unwrap();
    for dtype in Dtype::ALL {
        let case = Case::new(dtype, 40, 2560, Values::Ordinary);
        let m = case.matrix().unwrap();
        let (mut float, mut integer) = (vec![0.0; 40], vec![0.0; 40]);
        cpu.matvec(m, case.x(), &mut float).unwrap();
        cpu.project(m, &activations(&cpu, case.x(), 1), &mut integer).unwrap();
        let (mut float_error, mut integer_error) = (0.0_f64, 0.0_f64);
        let mut weights = vec![0.0; case.cols];
        for row in 0..40 {
            cpu.row(m, row, &mut weights).unwrap();
            let terms = weights.iter().zip(case.x()).map(|(g, x)| f64::from(*g) * f64::from(*x));
            let (exact, reach) =
                terms.fold((0.0, 0.0), |(sum, reach), t| (sum + t, reach + t.abs()));
            let square = |v: &[f32]| v.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
            let norms = (square(&weights) * square(case.x())).sqrt();
            float_error = float_error.max((f64::from(float[row]) - exact).abs() / reach);
            integer_error = integer_error.max((f64::from(integer[row]) - exact).abs() / norms);
        }
        println!("| `{dtype}` | {float_error:.1e} | {integer_error:.1e} |");
        assert!(float_error <= 1e-7, "{dtype}: {float_error:e}");
        assert!(integer_error <= 3e-4, "{dtype}: {integer_error:e}");
    }
}

#[test]
fn matmul_agrees_with_matvec_within_its_bound() {
    let devices = devices();
    for case in cases() {
        let m = case.matrix().unwrap();
        for n in [0, 1, 2, 5, 19] {
            let x = case.positions(n);
            for cpu in &devices {
                let mut found = vec![f32::NAN; n * case.rows];
                cpu.matmul(m, &x, n, &mut found).unwrap();
                check_matmul(cpu, &case, m, &x, &found);
            }
        }
    }
}

fn check_matmul(cpu: &Cpu, case: &Case, m: Matrix<'_>, x: &[f32], found: &[f32]) {
    let mut weights = vec![0.0; case.cols];
    for row in 0..case.rows {
        cpu.row(m, row, &mut weights).unwrap();
        for (p, x) in x.chunks_exact(case.cols).enumerate() {
            let exact = cpu.dot_row(m, row, x).unwrap();
            let reach: f32 = weights.iter().zip(x).map(|(w, x)| (w * x).abs()).sum();
            let y = found[p * case.rows + row];
            assert!((exact - y).abs() <= 2e-6 * reach, "{cpu:?} {case:?}: {y} against {exact}");
        }
    }
}

#[test]
fn top_k_equals_sorting_everything() {
    let devices = devices();
    for case in cases() {
        let m = case.matrix().unwrap();
        let mut scores = vec![0.0; case.rows];
        Case::twin().unwrap().matvec(m, case.x(), &mut scores).unwrap();
        for order in [Order::Abs, Order::Signed] {
            let mut sorted: Vec<Scored> =
                scores.iter().enumerate().map(|(row, &score)| Scored { row, score }).collect();
            sorted.sort_by(|a, b| {
                let by_key = order.key(b.score).partial_cmp(&order.key(a.score)).unwrap();
                by_key.then(a.row.cmp(&b.row))
            });
            for k in [0, 1, 3, case.rows, case.rows + 10] {
                for cpu in &devices {
                    let found = cpu.top_k_rows(m, case.x(), k, order).unwrap();
                    assert_eq!(found, sorted[..k.min(case.rows)], "{cpu:?} k={k}");
                }
            }
        }
    }
}

#[test]
fn ties_go_to_the_lower_row_on_any_number_of_threads() {
    // 4096 equal rows of 64: many chunks, all tied but one.
    let mut bytes: Vec<u8> =
        std::iter::repeat_n(1.0_f32.to_le_bytes(), 4096 * 64).flatten().collect();
    bytes[3000 * 256..][..4].copy_from_slice(&(-500.0_f32).to_le_bytes());
    let m = Matrix::new(Dtype::F32, 4096, 64, &bytes).unwrap();
    for cpu in devices() {
        let found = cpu.top_k_rows(m, &[1.0; 64], 4, Order::Abs).unwrap();
        assert_eq!(found.iter().map(|s| s.row).collect::<Vec<_>>(), [3000, 0, 1, 2]);
        assert_eq!(found[0].score, -437.0);
    }
}

#[test]
fn nan_rows_are_named_lowest_first() {
    let devices = devices();
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Q8_0, Dtype::Q6K] {
        let case = Case::new(dtype, 900, 256, Values::Ordinary);
        let mut bytes = case.matrix().unwrap().bytes().to_vec();
        let (stride, value) = (case.matrix().unwrap().row_stride(), [0xff; 4]);
        let offset = if dtype == Dtype::Q6K { 206 } else { 0 };
        for row in [871, 412, 650] {
            bytes[row * stride + offset..][..4].copy_from_slice(&value);
        }
        let m = Matrix::new(dtype, 900, 256, &bytes).unwrap();
        for cpu in &devices {
            let error = cpu.top_k_rows(m, case.x(), 5, Order::Abs).unwrap_err();
            assert_eq!(error, ComputeError::NanScore { row: 412 }, "{dtype} {cpu:?}");
        }
    }
}

#[test]
fn memory_of_a_top_k_is_bounded_by_k() {
    let mut top = TopK::new(usize::MAX, Order::Abs);
    top.push(3, 1.0).unwrap();
    assert_eq!(top.into_sorted().len(), 1);
}

#[test]
fn wrong_lengths_are_errors() {
    let case = Case::new(Dtype::Q8_0, 3, 64, Values::Ordinary);
    let (m, cpu) = (case.matrix().unwrap(), Cpu::new(None, Some(2)).unwrap());
    let wrong = |error: ComputeError| matches!(error, ComputeError::VectorLength { .. });
    let (mut three, mut four) = ([0.0; 3], [0.0; 4]);
    assert!(wrong(cpu.matvec(m, &[0.0; 63], &mut three).unwrap_err()));
    assert!(wrong(cpu.matvec(m, case.x(), &mut four).unwrap_err()));
    assert!(wrong(cpu.matmul(m, case.x(), 2, &mut three).unwrap_err()));
    assert!(wrong(cpu.matmul(m, &[], usize::MAX, &mut three).unwrap_err()));
    assert!(wrong(cpu.row(m, 0, &mut three).unwrap_err()));
    assert!(wrong(cpu.dot_row(m, 0, &three).unwrap_err()));
    assert!(wrong(cpu.axpy_row(m, 0, 1.0, &mut three).unwrap_err()));
    assert!(wrong(cpu.top_k_rows(m, &three, 1, Order::Abs).unwrap_err()));
    assert!(wrong(cpu.project(m, &activations(&cpu, &four, 1), &mut three).unwrap_err()));
    assert!(wrong(cpu.project(m, &activations(&cpu, case.x(), 1), &mut four).unwrap_err()));
    assert_eq!(
        cpu.dot_row(m, 3, case.x()).unwrap_err(),
        ComputeError::RowOutOfRange { row: 3, rows: 3 }
    );
}
