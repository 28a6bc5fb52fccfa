//! F32: the elements themselves, little-endian.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Block, check_values};
use crate::{ComputeError, Dtype};

/// One float32.
#[derive(
    Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct BlockF32 {
    /// The value's bytes, little-endian.
    pub value: [u8; 4],
}

const _: () = assert!(size_of::<BlockF32>() == Dtype::F32.block_bytes());

impl Block for BlockF32 {
    const DTYPE: Dtype = Dtype::F32;

    fn dequantize(&self, out: &mut [f32]) {
        decode(&self.value, out);
    }
}

pub(super) fn decode(bytes: &[u8], out: &mut [f32]) {
    let (chunks, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty() && chunks.len() == out.len(), "bytes of {} float32", out.len());
    for (value, chunk) in out.iter_mut().zip(chunks) {
        *value = f32::from_le_bytes(*chunk);
    }
}

pub(super) fn encode(values: &[f32], first: usize, out: &mut [u8]) -> Result<(), ComputeError> {
    check_values(Dtype::F32, values, f32::MAX, first)?;
    for (chunk, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(values) {
        *chunk = value.to_le_bytes();
    }
    Ok(())
}
