//! Q5_1: 32 elements of five bits, a scale and a minimum.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Block, Half, nibbles};
use crate::Dtype;

/// 32 elements `d * q + m`, `q` in 0..32.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct BlockQ5_1 {
    /// Scale.
    pub d: Half,
    /// The value of `q = 0`.
    pub m: Half,
    /// The fifth bit of element `i` is bit `i`, little-endian.
    pub qh: [u8; 4],
    /// The low four bits: elements 0..16 in the low, 16..32 in the high halves.
    pub qs: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ5_1>() == Dtype::Q5_1.block_bytes());

impl Block for BlockQ5_1 {
    const DTYPE: Dtype = Dtype::Q5_1;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::LEN);
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        for (value, q) in out.iter_mut().zip(nibbles::unpack_five(&self.qs, self.qh)) {
            *value = d * f32::from(q) + m;
        }
    }
}
