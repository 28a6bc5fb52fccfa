//! Block formats against the Python package `gguf`: fixtures made by
//! `scripts/fixtures/blocks.py`.

use std::path::PathBuf;

use larql_compute::{Dtype, blocks, dequantize_row, quantize_row};

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/blocks"));
    std::fs::read(path.join(name)).unwrap_or_else(|e| panic!("tests/data/blocks/{name}: {e}"))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / 4];
    dequantize_row(Dtype::F32, bytes, &mut values);
    values
}

/// Equal bits; a NaN equals any NaN (which payload comes out is the machine's choice).
fn assert_same(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        let same = f.to_bits() == e.to_bits() || (f.is_nan() && e.is_nan());
        assert!(same, "{what}: element {i} is {f:e}, gguf says {e:e}");
    }
}

fn dequantized(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![f32::NAN; bytes.len() / dtype.block_bytes() * dtype.block_len()];
    dequantize_row(dtype, bytes, &mut values);
    values
}

#[test]
fn random_and_adversarial_blocks_dequantise_as_gguf_does() {
    for dtype in Dtype::ALL {
        let bytes = fixture(&format!("{dtype}.blocks"));
        let expected = floats(&fixture(&format!("{dtype}.f32")));
        assert_same(dtype.name(), &dequantized(dtype, &bytes), &expected);
    }
}

/// Formats that the demo model holds, and how many elements of each are kept.
const REAL: [(Dtype, usize); 5] = [
    (Dtype::F32, 15),
    (Dtype::Q5_0, 480),
    (Dtype::Q8_0, 480),
    (Dtype::Q4K, 3840),
    (Dtype::Q6K, 3840),
];

#[test]
fn blocks_of_the_demo_model_dequantise_as_gguf_does() {
    for (dtype, elements) in REAL {
        let bytes = fixture(&format!("{dtype}.real.blocks"));
        let expected = floats(&fixture(&format!("{dtype}.real.f32")));
        assert_eq!(expected.len(), elements, "{dtype}");
        assert!(expected.iter().any(|v| *v != 0.0), "{dtype}");
        assert_same(dtype.name(), &dequantized(dtype, &bytes), &expected);
    }
}

#[test]
fn blocks_may_stand_at_any_address() {
    for dtype in Dtype::ALL {
        let bytes = fixture(&format!("{dtype}.blocks"));
        let mut shifted = vec![0; bytes.len() + 1];
        shifted[1..].copy_from_slice(&bytes);
        assert_same(dtype.name(), &dequantized(dtype, &shifted[1..]), &dequantized(dtype, &bytes));
    }
}

#[test]
fn plain_formats_and_q4_0_and_q8_0_have_the_bytes_of_gguf() {
    let rows = floats(&fixture("rows.f32"));
    for dtype in [Dtype::F16, Dtype::BF16, Dtype::Q4_0, Dtype::Q8_0] {
        let expected = fixture(&format!("{dtype}.quantized"));
        let size = dtype.row_bytes(256).unwrap();
        for (r, (row, expected)) in rows.chunks(256).zip(expected.chunks(size)).enumerate() {
            let mut bytes = vec![0; size];
            quantize_row(dtype, row, &mut bytes).unwrap();
            for (i, (found, wanted)) in bytes.iter().zip(expected).enumerate() {
                assert_eq!(found, wanted, "{dtype}: row {r}, byte {i}");
            }
        }
    }
}

#[test]
fn f32_is_a_copy_to_the_bit() {
    let bytes = fixture("rows.f32");
    let mut copy = vec![0; bytes.len()];
    quantize_row(Dtype::F32, &floats(&bytes), &mut copy).unwrap();
    assert_eq!(copy, bytes);
}

#[test]
fn the_block_is_the_unit_of_every_format() {
    // Each block decoded alone equals the row decoded whole.
    fn check<B: blocks::Block>() {
        let bytes = fixture(&format!("{}.blocks", B::DTYPE));
        let whole = dequantized(B::DTYPE, &bytes);
        let decoded = blocks::as_blocks::<B>(&bytes).iter().flat_map(|block| {
            let mut values = vec![0.0; B::LEN];
            block.dequantize(&mut values);
            values
        });
        assert_same(B::DTYPE.name(), &decoded.collect::<Vec<_>>(), &whole);
    }
    check::<blocks::BlockF32>();
    check::<blocks::BlockF16>();
    check::<blocks::BlockBF16>();
    check::<blocks::BlockQ4_0>();
    check::<blocks::BlockQ4_1>();
    check::<blocks::BlockQ5_0>();
    check::<blocks::BlockQ5_1>();
    check::<blocks::BlockQ8_0>();
    check::<blocks::BlockQ2K>();
    check::<blocks::BlockQ3K>();
    check::<blocks::BlockQ4K>();
    check::<blocks::BlockQ5K>();
    check::<blocks::BlockQ6K>();
}

/// `scripts/compare_quantizers.py` compares on whole models; this keeps the result.
#[test]
fn q4_k_and_q6_k_lose_no_more_than_llama_cpp_on_rows_of_the_demo_model() {
    let theirs: serde_json::Value =
        serde_json::from_slice(&fixture("quantizer_errors.json")).unwrap();
    for to in [Dtype::Q4K, Dtype::Q6K] {
        for (from, _) in REAL.iter().filter(|(from, _)| *from != Dtype::F32) {
            let row = floats(&fixture(&format!("{from}.real.f32")));
            let row = &row[..row.len() / 256 * 256];
            let mut bytes = vec![0; to.row_bytes(row.len()).unwrap()];
            quantize_row(to, row, &mut bytes).unwrap();
            let back = dequantized(to, &bytes);
            let error: f64 = row.iter().zip(&back).map(|(x, y)| f64::from(x - y).powi(2)).sum();
            let limit = theirs[format!("{from} to {to}")].as_f64().unwrap();
            assert!(error <= limit, "{from} to {to}: {error:e}, llama.cpp {limit:e}");
        }
    }
}
