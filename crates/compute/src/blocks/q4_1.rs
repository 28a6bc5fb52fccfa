//! Q4_1: 32 elements of four bits, a scale and a minimum.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Block, Half, nibbles};
use crate::Dtype;

/// 32 elements `d * q + m`, `q` in 0..16.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct BlockQ4_1 {
    /// Scale.
    pub d: Half,
    /// The value of `q = 0`.
    pub m: Half,
    /// Elements 0..16 in the low, 16..32 in the high halves.
    pub qs: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ4_1>() == Dtype::Q4_1.block_bytes());

impl Block for BlockQ4_1 {
    const DTYPE: Dtype = Dtype::Q4_1;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::LEN);
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        for (value, q) in out.iter_mut().zip(nibbles::unpack(&self.qs)) {
            *value = d * f32::from(q) + m;
        }
    }
}
