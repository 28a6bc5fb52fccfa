//! Q2_K: 256 elements of two bits; sixteen sub-blocks with four-bit scales and minima.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Block, Half, SUPER};
use crate::Dtype;

/// 256 elements `(d * scale) * q - (dmin * min)`, `q` in 0..4, a scale and a minimum for each 16.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct BlockQ2K {
    /// Sub-block `j`: scale in the low, minimum in the high half of byte `j`.
    pub scales: [u8; 16],
    /// Two halves of 128 elements; element `32 * s + l` of a half is bits `2 * s..` of byte `l`.
    pub qs: [u8; 64],
    /// Scale of the scales.
    pub d: Half,
    /// Scale of the minima.
    pub dmin: Half,
}

const _: () = assert!(size_of::<BlockQ2K>() == Dtype::Q2K.block_bytes());

impl Block for BlockQ2K {
    const DTYPE: Dtype = Dtype::Q2K;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), SUPER);
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        for (j, values) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * f32::from(self.scales[j] & 15);
            let min = dmin * f32::from(self.scales[j] >> 4);
            let (half, shift) = (j / 8, 2 * (j % 8 / 2));
            let packed = &self.qs[32 * half + 16 * (j % 2)..][..16];
            for (value, byte) in values.iter_mut().zip(packed) {
                *value = scale * f32::from((byte >> shift) & 3) - min;
            }
        }
    }
}
