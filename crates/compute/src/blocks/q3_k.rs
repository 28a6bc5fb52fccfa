//! Q3_K: 256 elements of three bits; sixteen sub-blocks with six-bit scales.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Block, Half, SUPER};
use crate::Dtype;

/// 256 elements `(d * (scale - 32)) * (q - 4)`, `q` in 0..8, a scale for each 16.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct BlockQ3K {
    /// The third bit: of element `32 * i + l`, bit `i` of byte `l`.
    pub hmask: [u8; 32],
    /// The low two bits, placed as in Q2_K.
    pub qs: [u8; 64],
    /// Low four bits of scale `j` in byte `j % 8` (low half for `j < 8`), upper two bits in
    /// byte `8 + j % 4`, bits `2 * (j / 4)..`.
    pub scales: [u8; 12],
    /// Scale of the scales.
    pub d: Half,
}

const _: () = assert!(size_of::<BlockQ3K>() == Dtype::Q3K.block_bytes());

impl BlockQ3K {
    /// The sixteen scales, -32..32.
    #[inline(always)]
    pub fn scales(&self) -> [i8; 16] {
        std::array::from_fn(|j| {
            let low = (self.scales[j % 8] >> (4 * (j / 8))) & 15;
            let high = (self.scales[8 + j % 4] >> (2 * (j / 4))) & 3;
            (low | (high << 4)) as i8 - 32
        })
    }
}

impl Block for BlockQ3K {
    const DTYPE: Dtype = Dtype::Q3K;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), SUPER);
        let d = self.d.to_f32();
        let scales = self.scales();
        for (j, values) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * f32::from(scales[j]);
            let (half, shift, odd) = (j / 8, 2 * (j % 8 / 2), 16 * (j % 2));
            let low = &self.qs[32 * half + odd..][..16];
            let high = &self.hmask[odd..][..16];
            for ((value, low), high) in values.iter_mut().zip(low).zip(high) {
                let q = ((low >> shift) & 3) | (((high >> (j / 2)) & 1) << 2);
                *value = scale * (i32::from(q) - 4) as f32;
            }
        }
    }
}
