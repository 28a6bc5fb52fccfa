//! Block formats: what the bytes of a row mean, and the only place that writes them.
//!
//! One file a format, each with its `#[repr(C)]` block, a size assertion, the scalar
//! dequantiser (the twin that every fast kernel is tested against) and, where larql writes the
//! format, its quantiser. Layouts are ggml's; `docs/NUMERICS.md` has them as tables.
//!
//! Dequantising is bit-equal to the Python package `gguf`: every product and sum is rounded on
//! its own, in the order written, without fused multiply-add.

mod bf16;
mod convert;
mod f16;
mod f32;
pub(crate) mod nibbles;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod scales;
mod search;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use bf16::BlockBF16;
pub use convert::convert_row;
pub use f16::{BlockF16, Half};
pub use f32::BlockF32;
pub use q2_k::BlockQ2K;
pub use q3_k::BlockQ3K;
pub use q4_0::BlockQ4_0;
pub use q4_1::BlockQ4_1;
pub use q4_k::BlockQ4K;
pub use q5_0::BlockQ5_0;
pub use q5_1::BlockQ5_1;
pub use q5_k::BlockQ5K;
pub use q6_k::BlockQ6K;
pub use q8_0::BlockQ8_0;
pub use scales::ScaleMins;

use crate::{ComputeError, Dtype};

/// Elements of a super-block: every `K` format has 256.
pub const SUPER: usize = 256;

/// One block of a format: plain bytes at any address.
pub trait Block:
    Copy + FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Send + Sync + 'static
{
    /// The format.
    const DTYPE: Dtype;

    /// Elements in the block.
    const LEN: usize = Self::DTYPE.block_len();

    /// Writes the block's `LEN` elements. Panics where `out` has another length.
    ///
    /// Whatever the bytes are, this returns: a NaN or infinite scale gives NaN or infinite
    /// elements.
    fn dequantize(&self, out: &mut [f32]);
}

/// A block that larql also writes.
trait Quantize: Block {
    /// The largest magnitude that the format holds without an infinite scale.
    const LIMIT: f32;

    /// The block nearest to `values`: `LEN` finite elements of at most `LIMIT`.
    fn quantize(values: &[f32]) -> Self;
}

/// `bytes` as blocks. Panics where they are not whole blocks: lengths are validated where
/// a matrix is made.
pub fn as_blocks<B: Block>(bytes: &[u8]) -> &[B] {
    match <[B]>::ref_from_bytes(bytes) {
        Ok(blocks) => blocks,
        Err(_) => panic!("{} bytes are not whole blocks of {}", bytes.len(), B::DTYPE),
    }
}

/// Writes the elements of `bytes`, whole blocks of `dtype`, as float32.
///
/// Panics where `out` has not exactly as many elements as the blocks: lengths are validated
/// where a matrix is made.
pub fn dequantize_row(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        Dtype::F32 => f32::decode(bytes, out),
        Dtype::F16 => f16::decode(bytes, out),
        Dtype::BF16 => bf16::decode(bytes, out),
        Dtype::Q4_0 => decode::<BlockQ4_0>(bytes, out),
        Dtype::Q4_1 => decode::<BlockQ4_1>(bytes, out),
        Dtype::Q5_0 => decode::<BlockQ5_0>(bytes, out),
        Dtype::Q5_1 => decode::<BlockQ5_1>(bytes, out),
        Dtype::Q8_0 => decode::<BlockQ8_0>(bytes, out),
        Dtype::Q2K => decode::<BlockQ2K>(bytes, out),
        Dtype::Q3K => decode::<BlockQ3K>(bytes, out),
        Dtype::Q4K => decode::<BlockQ4K>(bytes, out),
        Dtype::Q5K => decode::<BlockQ5K>(bytes, out),
        Dtype::Q6K => decode::<BlockQ6K>(bytes, out),
    }
}

fn decode<B: Block>(bytes: &[u8], out: &mut [f32]) {
    let blocks = as_blocks::<B>(bytes);
    assert_eq!(
        out.len(),
        blocks.len() * B::LEN,
        "elements of {} blocks of {}",
        blocks.len(),
        B::DTYPE
    );
    for (block, values) in blocks.iter().zip(out.chunks_exact_mut(B::LEN)) {
        block.dequantize(values);
    }
}

/// Stores `values` as blocks of `dtype` in `out`.
///
/// F32 is a copy; F16 and BF16 round to nearest even; Q4_0 and Q8_0 give the bytes of the
/// Python package `gguf`; Q4_K and Q6_K search for the smallest squared error.
///
/// # Errors
/// A dtype that larql does not write, a length that is not whole blocks, an `out` of another
/// size, a value that is not finite or that the format's scales cannot hold (both by position).
pub fn quantize_row(dtype: Dtype, values: &[f32], out: &mut [u8]) -> Result<(), ComputeError> {
    check_target(dtype, values.len(), out.len())?;
    quantize_at(dtype, values, 0, out)
}

/// Refuses a dtype without a quantiser and an output of the wrong size.
fn check_target(dtype: Dtype, cols: usize, found: usize) -> Result<(), ComputeError> {
    if !can_quantize(dtype) {
        return Err(ComputeError::NoQuantiser { dtype });
    }
    let expected = dtype.row_bytes(cols)?;
    if found != expected {
        return Err(ComputeError::ByteLength { dtype, rows: 1, cols, expected, found });
    }
    Ok(())
}

/// Whether [`quantize_row`] writes `dtype`.
pub const fn can_quantize(dtype: Dtype) -> bool {
    match dtype {
        Dtype::F32
        | Dtype::F16
        | Dtype::BF16
        | Dtype::Q4_0
        | Dtype::Q8_0
        | Dtype::Q4K
        | Dtype::Q6K => true,
        Dtype::Q4_1 | Dtype::Q5_0 | Dtype::Q5_1 | Dtype::Q2K | Dtype::Q3K | Dtype::Q5K => false,
    }
}

/// [`quantize_row`] on checked lengths; `first` is the position of `values[0]` in the row, so
/// that an error names the element of the row.
fn quantize_at(
    dtype: Dtype,
    values: &[f32],
    first: usize,
    out: &mut [u8],
) -> Result<(), ComputeError> {
    match dtype {
        Dtype::F32 => f32::encode(values, first, out),
        Dtype::F16 => f16::encode(values, first, out),
        Dtype::BF16 => bf16::encode(values, first, out),
        Dtype::Q4_0 => encode::<BlockQ4_0>(values, first, out),
        Dtype::Q8_0 => encode::<BlockQ8_0>(values, first, out),
        Dtype::Q4K => encode::<BlockQ4K>(values, first, out),
        Dtype::Q6K => encode::<BlockQ6K>(values, first, out),
        Dtype::Q4_1 | Dtype::Q5_0 | Dtype::Q5_1 | Dtype::Q2K | Dtype::Q3K | Dtype::Q5K => {
            Err(ComputeError::NoQuantiser { dtype })
        }
    }
}

fn encode<B: Quantize>(values: &[f32], first: usize, out: &mut [u8]) -> Result<(), ComputeError> {
    for (i, (chunk, bytes)) in
        values.chunks_exact(B::LEN).zip(out.chunks_exact_mut(size_of::<B>())).enumerate()
    {
        check_values(B::DTYPE, chunk, B::LIMIT, first + i * B::LEN)?;
        bytes.copy_from_slice(B::quantize(chunk).as_bytes());
    }
    Ok(())
}

/// Refuses the first value that is NaN, infinite or larger than `limit` in magnitude.
fn check_values(
    dtype: Dtype,
    values: &[f32],
    limit: f32,
    first: usize,
) -> Result<(), ComputeError> {
    // Two passes: the common one has no branch and vectorises. As integers, NaN is above every
    // limit too.
    let top = limit.to_bits();
    let bad = values.iter().fold(0, |bad, v| bad | u32::from(v.abs().to_bits() > top));
    if bad == 0 {
        return Ok(());
    }
    for (i, &value) in values.iter().enumerate() {
        let position = first + i;
        if !value.is_finite() {
            return Err(ComputeError::NotFinite { what: "the row to quantise", position, value });
        }
        if value.abs() > limit {
            return Err(ComputeError::BeyondScale { dtype, position, value, limit });
        }
    }
    Ok(())
}
