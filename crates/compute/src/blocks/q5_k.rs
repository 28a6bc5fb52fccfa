//! Q5_K: 256 elements of five bits; eight sub-blocks with six-bit scales and minima.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Block, Half, SUPER, ScaleMins};
use crate::Dtype;

/// 256 elements `(d * scale) * q - (dmin * min)`, `q` in 0..32, a scale and a minimum for each 32.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct BlockQ5K {
    /// Scale of the scales.
    pub d: Half,
    /// Scale of the minima.
    pub dmin: Half,
    /// Scales and minima of the sub-blocks.
    pub scales: ScaleMins,
    /// The fifth bit: of element `32 * i + l`, bit `i` of byte `l`.
    pub qh: [u8; 32],
    /// The low four bits, placed as in Q4_K.
    pub qs: [u8; 128],
}

const _: () = assert!(size_of::<BlockQ5K>() == Dtype::Q5K.block_bytes());

impl Block for BlockQ5K {
    const DTYPE: Dtype = Dtype::Q5K;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), SUPER);
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        let (scales, mins) = self.scales.unpack();
        for (j, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = (d * f32::from(scales[j]), dmin * f32::from(mins[j]));
            let low = &self.qs[32 * (j / 2)..][..32];
            for ((value, low), high) in values.iter_mut().zip(low).zip(&self.qh) {
                let q = ((low >> (4 * (j % 2))) & 15) | (((high >> j) & 1) << 4);
                *value = scale * f32::from(q) - min;
            }
        }
    }
}
