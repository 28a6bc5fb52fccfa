//! Quantisers: error bounds on any row, and what they refuse.

use larql_compute::{ComputeError, Dtype, blocks, convert_row, dequantize_row, quantize_row};
use proptest::prelude::*;

const WRITTEN: [Dtype; 7] =
    [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::Q4_0, Dtype::Q8_0, Dtype::Q4K, Dtype::Q6K];

fn round_trip(dtype: Dtype, values: &[f32]) -> Result<Vec<f32>, ComputeError> {
    let mut bytes = vec![0xa5; dtype.row_bytes(values.len())?];
    quantize_row(dtype, values, &mut bytes)?;
    let mut back = vec![f32::NAN; values.len()];
    dequantize_row(dtype, &bytes, &mut back);
    Ok(back)
}

/// What an element may be off by, given the largest magnitude of its block: half a step of the
/// format's grid, some room for rounded scales, and half the smallest step (subnormal halves).
fn bound(dtype: Dtype, value: f32, peak: f32) -> f32 {
    let smallest = 2f32.powi(-24);
    match dtype {
        Dtype::F32 => 0.0,
        Dtype::F16 => (value.abs() * 2f32.powi(-11)).max(smallest / 2.0),
        Dtype::BF16 => (value.abs() * 2f32.powi(-8)).max(2f32.powi(-133)),
        // The side opposite to the peak loses a whole step.
        Dtype::Q4_0 => peak / 8.0 * 1.01 + 8.0 * smallest,
        Dtype::Q8_0 => peak / 127.0 * 0.57 + 64.0 * smallest,
        // A range of up to twice the peak in 15 steps, ends clipped by the search, six-bit scales.
        Dtype::Q4K => peak * 0.3 + 64.0 * smallest,
        Dtype::Q6K => peak * 0.06 + 64.0 * smallest,
        Dtype::Q4_1 | Dtype::Q5_0 | Dtype::Q5_1 | Dtype::Q2K | Dtype::Q3K | Dtype::Q5K => {
            unreachable!("not written")
        }
    }
}

fn check_bounds(dtype: Dtype, values: &[f32]) {
    let back = round_trip(dtype, values).unwrap_or_else(|e| panic!("{dtype}: {e}"));
    let chunks = values.chunks(dtype.block_len()).zip(back.chunks(dtype.block_len()));
    for (block, (x, y)) in chunks.enumerate() {
        let peak = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        for (i, (x, y)) in x.iter().zip(y).enumerate() {
            let limit = bound(dtype, *x, peak);
            assert!(
                (x - y).abs() <= limit,
                "{dtype}: block {block}, element {i}: {x:e} came back as {y:e}, peak {peak:e}"
            );
        }
    }
}

/// Rows of whole super-blocks over many magnitudes, with outliers.
fn rows() -> impl Strategy<Value = Vec<f32>> {
    (1usize..4, -30i32..15, any::<bool>()).prop_flat_map(|(blocks, exponent, outliers)| {
        let scale = 2f32.powi(exponent);
        let element = (-1.0f32..1.0, 0u8..64).prop_map(move |(v, rare)| {
            if outliers && rare == 0 { v * scale } else { v * v * v * scale * 0.1 }
        });
        proptest::collection::vec(element, blocks * 256)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_element_stays_within_the_bound(row in rows()) {
        for dtype in WRITTEN {
            check_bounds(dtype, &row);
        }
    }

    /// Whatever the bytes, dequantising returns.
    #[test]
    fn any_bytes_dequantise(bytes in proptest::collection::vec(any::<u8>(), 840)) {
        for dtype in Dtype::ALL {
            let blocks = bytes.len() / dtype.block_bytes();
            let mut values = vec![0.0; blocks * dtype.block_len()];
            dequantize_row(dtype, &bytes[..blocks * dtype.block_bytes()], &mut values);
        }
    }

    /// Any finite row is stored, finite, or refused by a position that is really too large.
    #[test]
    fn any_finite_row_is_finite_or_refused(
        bits in proptest::collection::vec(any::<u32>(), 256),
        exponents in 1u32..255,
    ) {
        // Every sign and mantissa, exponents below the row's own bound.
        let row: Vec<f32> = bits.into_iter()
            .map(|b| f32::from_bits((b & 0x807f_ffff) | (((b >> 23) & 255) % exponents) << 23))
            .collect();
        for dtype in WRITTEN {
            match round_trip(dtype, &row) {
                Ok(back) => prop_assert!(back.iter().all(|v| v.is_finite()), "{}", dtype),
                Err(ComputeError::BeyondScale { position, value, limit, .. }) => {
                    prop_assert_eq!(row[position].to_bits(), value.to_bits());
                    prop_assert!(value.abs() > limit);
                }
                Err(error) => prop_assert!(false, "{}", error),
            }
        }
    }
}

#[test]
fn zeros_stay_zeros() {
    for dtype in WRITTEN {
        let back = round_trip(dtype, &[0.0; 512]).unwrap();
        assert!(back.iter().all(|v| *v == 0.0), "{dtype}");
    }
}

#[test]
fn constant_rows_keep_their_value() {
    for dtype in WRITTEN {
        for value in [1.0f32, -1.0, 0.037, -0.037, 1e3, -1e3, 1e-3, -1e-3] {
            let back = round_trip(dtype, &[value; 512]).unwrap();
            for y in back {
                assert!((y - value).abs() <= value.abs() * 0.008, "{dtype}: {value} became {y}");
            }
        }
    }
}

#[test]
fn tiny_values_become_small_finite_numbers() {
    for dtype in WRITTEN {
        for scale in [1e-45f32, 1e-40, 1e-38, 1e-30, 1e-20, 1e-10, 1e-8, 1e-7, 1e-6] {
            let row: Vec<f32> = (0..256).map(|i| (i as f32 - 100.0) / 128.0 * scale).collect();
            check_bounds(dtype, &row);
        }
    }
}

#[test]
fn values_up_to_the_limit_stay_finite_and_larger_ones_are_refused() {
    for dtype in WRITTEN {
        let mut row = [1.0f32; 512];
        row[300] = -3.4e38;
        let limit = match round_trip(dtype, &row) {
            Ok(back) => {
                assert_eq!((dtype, back[300]), (Dtype::F32, -3.4e38));
                continue;
            }
            Err(ComputeError::BeyondScale { dtype: named, position, value, limit }) => {
                assert_eq!((named, position, value), (dtype, 300, -3.4e38));
                limit
            }
            Err(error) => panic!("{dtype}: {error}"),
        };
        for at_limit in [limit, -limit] {
            for others in [0.0, at_limit, -at_limit] {
                let mut row = [others; 512];
                row[300] = at_limit;
                let back = round_trip(dtype, &row).unwrap();
                assert!(back.iter().all(|v| v.is_finite()), "{dtype}: {at_limit}");
                assert!((back[300] / at_limit - 1.0).abs() < 0.15, "{dtype}: {}", back[300]);
            }
        }
    }
}

#[test]
fn what_is_not_finite_is_refused_by_position() {
    for dtype in WRITTEN {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for position in [0, 31, 255, 256, 511, 1300, 2047] {
                let mut row = vec![0.5f32; 2048];
                row[position] = bad;
                let mut out = vec![0; dtype.row_bytes(2048).unwrap()];
                let direct = quantize_row(dtype, &row, &mut out).unwrap_err();
                let ComputeError::NotFinite { position: named, .. } = direct else {
                    panic!("{dtype}: {direct}")
                };
                assert_eq!(named, position, "{dtype}");
                if dtype == Dtype::F32 {
                    continue;
                }
                // The same position through pieces of a converted row.
                let bytes: Vec<u8> = row.iter().flat_map(|v| v.to_le_bytes()).collect();
                let converted = convert_row(Dtype::F32, &bytes, dtype, &mut out).unwrap_err();
                let ComputeError::NotFinite { position: named, .. } = converted else {
                    panic!("{dtype}: {converted}")
                };
                assert_eq!(named, position, "{dtype}");
            }
        }
    }
}

#[test]
fn converting_equals_dequantising_and_quantising() {
    let values: Vec<f32> = (0..2304).map(|i| ((i * 7919) % 1009) as f32 / 504.0 - 1.0).collect();
    for from in WRITTEN {
        let mut source = vec![0; from.row_bytes(values.len()).unwrap()];
        quantize_row(from, &values, &mut source).unwrap();
        let mut exact = vec![0.0; values.len()];
        dequantize_row(from, &source, &mut exact);
        for to in WRITTEN {
            let size = to.row_bytes(values.len()).unwrap();
            let (mut direct, mut converted) = (vec![0; size], vec![1; size]);
            quantize_row(to, &exact, &mut direct).unwrap();
            convert_row(from, &source, to, &mut converted).unwrap();
            assert_eq!(
                converted,
                if from == to { source.clone() } else { direct },
                "{from} to {to}"
            );
        }
    }
}

#[test]
fn equal_formats_are_copied_whatever_the_values() {
    let bytes = [0xffu8; 176];
    let mut out = [0u8; 176];
    convert_row(Dtype::Q5K, &bytes, Dtype::Q5K, &mut out).unwrap();
    assert_eq!(out, bytes);
}

#[test]
fn lengths_and_formats_are_checked() {
    let refused = |dtype, cols, size| quantize_row(dtype, &vec![0.0; cols], &mut vec![0; size]);
    assert!(matches!(refused(Dtype::Q5K, 256, 176), Err(ComputeError::NoQuantiser { .. })));
    assert!(matches!(
        refused(Dtype::Q4K, 640, 360),
        Err(ComputeError::ColumnsNotBlocks { cols: 640, .. })
    ));
    assert!(matches!(
        refused(Dtype::Q8_0, 64, 67),
        Err(ComputeError::ByteLength { expected: 68, found: 67, .. })
    ));
    assert!(matches!(
        convert_row(Dtype::Q4K, &[0; 143], Dtype::F32, &mut []),
        Err(ComputeError::ByteLength { found: 143, .. })
    ));
    assert!(matches!(
        convert_row(Dtype::Q8_0, &[0; 34], Dtype::Q8_0, &mut [0; 35]),
        Err(ComputeError::ByteLength { found: 35, .. })
    ));
    for dtype in Dtype::ALL {
        assert_eq!(blocks::can_quantize(dtype), WRITTEN.contains(&dtype), "{dtype}");
    }
}
