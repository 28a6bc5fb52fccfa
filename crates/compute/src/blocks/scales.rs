//! The packed scales and minima that Q4_K and Q5_K share.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Eight six-bit scales and eight six-bit minima in twelve bytes.
///
/// Byte `j < 4` has scale `j` in its low six bits and the upper two bits of scale `j + 4` above;
/// byte `4 + j` the same for the minima; byte `8 + j` the low four bits of scale `j + 4` (low
/// half) and of minimum `j + 4` (high half).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(transparent)]
pub struct ScaleMins([u8; 12]);

impl ScaleMins {
    /// The eight scales and the eight minima, each 0..64.
    #[inline(always)]
    pub fn unpack(&self) -> ([u8; 8], [u8; 8]) {
        let b = &self.0;
        let (mut scales, mut mins) = ([0; 8], [0; 8]);
        for j in 0..4 {
            scales[j] = b[j] & 63;
            mins[j] = b[4 + j] & 63;
            scales[4 + j] = (b[8 + j] & 15) | ((b[j] >> 6) << 4);
            mins[4 + j] = (b[8 + j] >> 4) | ((b[4 + j] >> 6) << 4);
        }
        (scales, mins)
    }

    /// Packs scales and minima below 64.
    pub fn pack(scales: [u8; 8], mins: [u8; 8]) -> Self {
        debug_assert!(scales.iter().chain(&mins).all(|&v| v < 64));
        let mut b = [0; 12];
        for j in 0..4 {
            b[j] = scales[j] | ((scales[4 + j] >> 4) << 6);
            b[4 + j] = mins[j] | ((mins[4 + j] >> 4) << 6);
            b[8 + j] = (scales[4 + j] & 15) | ((mins[4 + j] & 15) << 4);
        }
        Self(b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_is_lossless_for_every_value_in_every_place() {
        for value in 0..64u8 {
            for place in 0..8 {
                let (mut scales, mut mins) = ([value ^ 63; 8], [value.wrapping_mul(7) & 63; 8]);
                scales[place] = value;
                mins[7 - place] = value;
                assert_eq!(ScaleMins::pack(scales, mins).unpack(), (scales, mins));
            }
        }
    }
}
