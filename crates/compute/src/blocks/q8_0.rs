//! Q8_0: 32 signed bytes and a scale.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Block, Half, Quantize, q4_0::inverse, search};
use crate::Dtype;

/// 32 elements `q * d`, `q` a signed byte.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct BlockQ8_0 {
    /// Scale.
    pub d: Half,
    /// The elements.
    pub qs: [i8; 32],
}

const _: () = assert!(size_of::<BlockQ8_0>() == Dtype::Q8_0.block_bytes());

impl Block for BlockQ8_0 {
    const DTYPE: Dtype = Dtype::Q8_0;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::LEN);
        let d = self.d.to_f32();
        for (value, q) in out.iter_mut().zip(self.qs) {
            *value = f32::from(q) * d;
        }
    }
}

impl Quantize for BlockQ8_0 {
    /// The float32 below 127 * 65520, from where the scale rounds to infinity.
    const LIMIT: f32 = 8_321_039.5;

    /// The bytes of the `gguf` package and of ggml: nearest, ties away from zero.
    #[inline]
    fn quantize(values: &[f32]) -> Self {
        let mut x = [0.0f32; 32];
        x.copy_from_slice(values);
        let (low, high) = search::range(&x);
        let peak = if high > -low { high } else { -low };
        let d = peak.abs() / 127.0; // of zeros, +0
        let inverse = inverse(d);
        let mut qs = [0i8; 32];
        for (q, x) in qs.iter_mut().zip(&x) {
            let y = x * inverse;
            let even = search::round(y);
            let rest = y - even; // exact
            let up = if rest == 0.5 && y > 0.0 { 1.0 } else { 0.0 };
            let down = if rest == -0.5 && y < 0.0 { 1.0 } else { 0.0 };
            *q = search::byte(even + up - down + 128.0).wrapping_sub(128) as i8;
        }
        Self { d: Half::from_f32(d), qs }
    }
}
