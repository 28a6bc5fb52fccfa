//! From one format to another, a row at a time, without a whole row in float32.

use super::{can_quantize, check_target, dequantize_row, quantize_at};
use crate::{ComputeError, Dtype};

/// Elements in flight: a multiple of every block, small enough for the first-level cache.
const PIECE: usize = 1024;

/// Rewrites `bytes`, whole blocks of `from`, as blocks of `to` in `out`. Equal formats are a
/// byte copy, whatever the values; others are dequantised and quantised.
///
/// # Errors
/// Bytes that are not whole blocks; otherwise as [`super::quantize_row`].
pub fn convert_row(
    from: Dtype,
    bytes: &[u8],
    to: Dtype,
    out: &mut [u8],
) -> Result<(), ComputeError> {
    let cols = bytes.len() / from.block_bytes() * from.block_len();
    let expected = from.row_bytes(cols)?;
    if bytes.len() != expected {
        return Err(ComputeError::ByteLength {
            dtype: from,
            rows: 1,
            cols,
            expected,
            found: bytes.len(),
        });
    }
    if from == to {
        if out.len() != bytes.len() {
            return Err(ComputeError::ByteLength {
                dtype: to,
                rows: 1,
                cols,
                expected: bytes.len(),
                found: out.len(),
            });
        }
        out.copy_from_slice(bytes);
        return Ok(());
    }
    debug_assert!(PIECE.is_multiple_of(from.block_len()) && PIECE.is_multiple_of(to.block_len()));
    check_target(to, cols, out.len())?;
    debug_assert!(can_quantize(to));
    let mut values = [0.0f32; PIECE];
    let pieces =
        bytes.chunks(from.row_bytes(PIECE)?).zip(out.chunks_mut(to.row_bytes(PIECE)?)).enumerate();
    for (i, (source, target)) in pieces {
        let len = source.len() / from.block_bytes() * from.block_len();
        dequantize_row(from, source, &mut values[..len]);
        quantize_at(to, &values[..len], i * PIECE, target)?;
    }
    Ok(())
}
