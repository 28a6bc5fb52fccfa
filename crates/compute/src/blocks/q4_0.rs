//! Q4_0: 32 elements of four bits and a scale.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Block, Half, Quantize, nibbles, search};
use crate::Dtype;

/// 32 elements `d * (q - 8)`, `q` in 0..16.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct BlockQ4_0 {
    /// Scale.
    pub d: Half,
    /// Elements 0..16 in the low, 16..32 in the high halves.
    pub qs: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ4_0>() == Dtype::Q4_0.block_bytes());

impl Block for BlockQ4_0 {
    const DTYPE: Dtype = Dtype::Q4_0;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::LEN);
        let d = self.d.to_f32();
        for (value, q) in out.iter_mut().zip(nibbles::unpack(&self.qs)) {
            *value = d * (i32::from(q) - 8) as f32;
        }
    }
}

impl Quantize for BlockQ4_0 {
    /// The float32 below 8 * 65520, from where the scale rounds to infinity.
    const LIMIT: f32 = 524_159.97;

    /// The bytes of the `gguf` package: the value of largest magnitude becomes `q = 0`.
    #[inline]
    fn quantize(values: &[f32]) -> Self {
        let mut x = [0.0f32; 32];
        x.copy_from_slice(values);
        let d = search::peak(&x) / -8.0;
        let inverse = inverse(d);
        let mut q = [0u8; 32];
        for (q, x) in q.iter_mut().zip(&x) {
            let shifted = x * inverse + 8.5; // positive: x * inverse >= -8, give or take an ulp
            let nearest = search::round(shifted);
            let floor = if nearest > shifted { nearest - 1.0 } else { nearest };
            *q = search::byte(search::clamp(floor, 0.0, 15.0));
        }
        let mut qs = [0u8; 16];
        for (i, byte) in qs.iter_mut().enumerate() {
            *byte = q[i] | (q[16 + i] << 4);
        }
        Self { d: Half::from_f32(d), qs }
    }
}

/// `1 / d`, or 0 where that is not finite: such a `d` is far below the smallest half, so that
/// the block is zero whatever its `q` are.
#[inline(always)]
pub(super) fn inverse(d: f32) -> f32 {
    let inverse = 1.0 / d;
    if inverse.is_finite() { inverse } else { 0.0 }
}
