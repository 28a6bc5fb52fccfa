//! BF16: the upper half of a float32.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Block, check_values};
use crate::{ComputeError, Dtype};

/// One bfloat16.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct BlockBF16 {
    /// The value's bytes, little-endian.
    pub value: [u8; 2],
}

const _: () = assert!(size_of::<BlockBF16>() == Dtype::BF16.block_bytes());

impl Block for BlockBF16 {
    const DTYPE: Dtype = Dtype::BF16;

    fn dequantize(&self, out: &mut [f32]) {
        decode(&self.value, out);
    }
}

pub(super) fn decode(bytes: &[u8], out: &mut [f32]) {
    let (chunks, rest) = bytes.as_chunks::<2>();
    assert!(rest.is_empty() && chunks.len() == out.len(), "bytes of {} bfloat16", out.len());
    for (value, chunk) in out.iter_mut().zip(chunks) {
        *value = f32::from_bits(u32::from(u16::from_le_bytes(*chunk)) << 16);
    }
}

/// Rounds to nearest, ties to even. The largest float32s would round to infinity: refused.
pub(super) fn encode(values: &[f32], first: usize, out: &mut [u8]) -> Result<(), ComputeError> {
    let limit = f32::from_bits(0x7f7f_7fff);
    check_values(Dtype::BF16, values, limit, first)?;
    for (chunk, value) in out.as_chunks_mut::<2>().0.iter_mut().zip(values) {
        let bits = value.to_bits();
        let rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        *chunk = (rounded as u16).to_le_bytes();
    }
    Ok(())
}
