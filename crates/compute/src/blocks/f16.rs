//! F16: IEEE half precision, as a format of its own and as the scale of every other format.

use half::slice::HalfFloatSliceExt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Block, check_values};
use crate::{ComputeError, Dtype};

/// A half-precision number as two little-endian bytes, at any address.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(transparent)]
pub struct Half([u8; 2]);

impl Half {
    /// The largest finite half.
    pub const MAX: f32 = 65504.0;

    /// The number of these bits.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits.to_le_bytes())
    }

    /// The bits.
    pub const fn to_bits(self) -> u16 {
        u16::from_le_bytes(self.0)
    }

    /// The nearest half, ties to even; beyond the range, infinity.
    pub fn from_f32(value: f32) -> Self {
        Self::from_bits(half::f16::from_f32(value).to_bits())
    }

    /// The same number as a float32: exact, subnormals included. Without a branch or a look-up,
    /// so that loops over it vectorise.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let sign = (bits & 0x8000) << 16;
        let exponent = bits & 0x7c00;
        let rebiased = ((bits & 0x7fff) << 13) + (112 << 23);
        let normal = if exponent == 0x7c00 { rebiased + (112 << 23) } else { rebiased };
        // A subnormal is its mantissa times 2^-24.
        let subnormal = ((bits & 0x3ff) as f32 * f32::from_bits(0x3380_0000)).to_bits();
        f32::from_bits(sign | if exponent == 0 { subnormal } else { normal })
    }
}

/// One half.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct BlockF16 {
    /// The value.
    pub value: Half,
}

const _: () = assert!(size_of::<BlockF16>() == Dtype::F16.block_bytes());

impl Block for BlockF16 {
    const DTYPE: Dtype = Dtype::F16;

    fn dequantize(&self, out: &mut [f32]) {
        decode(&self.value.0, out);
    }
}

pub(super) fn decode(bytes: &[u8], out: &mut [f32]) {
    let (chunks, rest) = bytes.as_chunks::<2>();
    assert!(rest.is_empty() && chunks.len() == out.len(), "bytes of {} halves", out.len());
    for (value, chunk) in out.iter_mut().zip(chunks) {
        *value = Half(*chunk).to_f32();
    }
}

pub(super) fn encode(values: &[f32], first: usize, out: &mut [u8]) -> Result<(), ComputeError> {
    const PIECE: usize = 512;
    // Halfway between the largest half and the next power of two: from here on, infinity.
    let limit = f32::from_bits(65520f32.to_bits() - 1);
    check_values(Dtype::F16, values, limit, first)?;
    let mut halves = [half::f16::ZERO; PIECE];
    for (chunk, bytes) in values.chunks(PIECE).zip(out.chunks_mut(2 * PIECE)) {
        let halves = &mut halves[..chunk.len()];
        halves.convert_from_f32_slice(chunk);
        for (two, half) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(halves) {
            *two = half.to_bits().to_le_bytes();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_widens_as_ieee_says() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) =
                (Half::from_bits(bits).to_f32(), half::f16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()),
                "{bits:#06x}: {ours} and {theirs}"
            );
        }
    }
}
