//! The integers inside the block formats, as the integer dot product sees them.

use crate::blocks::{
    Block, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K,
    BlockQ6K, BlockQ8_0, nibbles,
};

/// The integer factors of a block, one for each 16 elements; a block of 32 uses the first two.
pub(crate) struct SubScales {
    pub(crate) scales: [i32; 16],
    pub(crate) mins: [i32; 16],
}

/// A block format of integers with scales: element `e` stands for
/// `d * scales[e / 16] * quant - dmin * mins[e / 16]`.
pub(crate) trait Integers: Block {
    /// Elements that share a sub-scale: 16 or 32.
    const GRANULE: usize = 32;

    /// What, added to the quants (wrapping), makes them bytes without sign.
    const OFFSET: i8;

    /// Whether it has minimums.
    const MINS: bool = false;

    /// `d` and `dmin`.
    fn factors(&self) -> (f32, f32);

    /// What multiplies `d` and `dmin`; 1 where a block has no scales of its own inside.
    fn sub_scales(&self) -> SubScales {
        SubScales { scales: [1; 16], mins: [1; 16] }
    }

    /// The quants of elements `32 * s .. 32 * (s + 1)`.
    fn quants(&self, s: usize) -> [i8; 32];
}

/// Each of eight factors twice, in i32.
fn twice(factors: [u8; 8]) -> [i32; 16] {
    std::array::from_fn(|j| i32::from(factors[j / 2]))
}

/// `quants - offset`, all of which fit in i8.
fn signed(quants: [u8; 32], offset: i8) -> [i8; 32] {
    quants.map(|q| q as i8 - offset)
}

impl Integers for BlockQ4_0 {
    const OFFSET: i8 = 8;

    fn factors(&self) -> (f32, f32) {
        (self.d.to_f32(), 0.0)
    }

    fn quants(&self, _: usize) -> [i8; 32] {
        signed(nibbles::unpack(&self.qs), 8)
    }
}

impl Integers for BlockQ4_1 {
    const OFFSET: i8 = 0;
    const MINS: bool = true;

    fn factors(&self) -> (f32, f32) {
        (self.d.to_f32(), -self.m.to_f32())
    }

    fn quants(&self, _: usize) -> [i8; 32] {
        signed(nibbles::unpack(&self.qs), 0)
    }
}

impl Integers for BlockQ5_0 {
    const OFFSET: i8 = 16;

    fn factors(&self) -> (f32, f32) {
        (self.d.to_f32(), 0.0)
    }

    fn quants(&self, _: usize) -> [i8; 32] {
        signed(nibbles::unpack_five(&self.qs, self.qh), 16)
    }
}

impl Integers for BlockQ5_1 {
    const OFFSET: i8 = 0;
    const MINS: bool = true;

    fn factors(&self) -> (f32, f32) {
        (self.d.to_f32(), -self.m.to_f32())
    }

    fn quants(&self, _: usize) -> [i8; 32] {
        signed(nibbles::unpack_five(&self.qs, self.qh), 0)
    }
}

impl Integers for BlockQ8_0 {
    const OFFSET: i8 = -128;

    fn factors(&self) -> (f32, f32) {
        (self.d.to_f32(), 0.0)
    }

    fn quants(&self, _: usize) -> [i8; 32] {
        self.qs
    }
}

/// The two-bit field of each element of sub-block `s`, placed as in Q2_K and Q3_K.
fn two_bits(qs: &[u8; 64], s: usize) -> [u8; 32] {
    std::array::from_fn(|l| (qs[32 * (s / 4) + l] >> (2 * (s % 4))) & 3)
}

impl Integers for BlockQ2K {
    const GRANULE: usize = 16;
    const OFFSET: i8 = 0;
    const MINS: bool = true;

    fn factors(&self) -> (f32, f32) {
        (self.d.to_f32(), self.dmin.to_f32())
    }

    fn sub_scales(&self) -> SubScales {
        let packed = self.scales.map(i32::from);
        SubScales { scales: packed.map(|p| p & 15), mins: packed.map(|p| p >> 4) }
    }

    fn quants(&self, s: usize) -> [i8; 32] {
        signed(two_bits(&self.qs, s), 0)
    }
}

impl Integers for BlockQ3K {
    const GRANULE: usize = 16;
    const OFFSET: i8 = 4;

    fn factors(&self) -> (f32, f32) {
        (self.d.to_f32(), 0.0)
    }

    fn sub_scales(&self) -> SubScales {
        SubScales { scales: self.scales().map(i32::from), mins: [0; 16] }
    }

    fn quants(&self, s: usize) -> [i8; 32] {
        let low = two_bits(&self.qs, s);
        signed(std::array::from_fn(|l| low[l] | (((self.hmask[l] >> s) & 1) << 2)), 4)
    }
}

/// The four-bit field of each element of sub-block `s`, placed as in Q4_K and Q5_K.
fn four_bits(qs: &[u8; 128], s: usize) -> [u8; 32] {
    std::array::from_fn(|l| (qs[32 * (s / 2) + l] >> (4 * (s % 2))) & 15)
}

impl Integers for BlockQ4K {
    const OFFSET: i8 = 0;
    const MINS: bool = true;

    fn factors(&self) -> (f32, f32) {
        (self.d.to_f32(), self.dmin.to_f32())
    }

    fn sub_scales(&self) -> SubScales {
        let (scales, mins) = self.scales.unpack();
        SubScales { scales: twice(scales), mins: twice(mins) }
    }

    fn quants(&self, s: usize) -> [i8; 32] {
        signed(four_bits(&self.qs, s), 0)
    }
}

impl Integers for BlockQ5K {
    const OFFSET: i8 = 0;
    const MINS: bool = true;

    fn factors(&self) -> (f32, f32) {
        (self.d.to_f32(), self.dmin.to_f32())
    }

    fn sub_scales(&self) -> SubScales {
        let (scales, mins) = self.scales.unpack();
        SubScales { scales: twice(scales), mins: twice(mins) }
    }

    fn quants(&self, s: usize) -> [i8; 32] {
        let low = four_bits(&self.qs, s);
        signed(std::array::from_fn(|l| low[l] | (((self.qh[l] >> s) & 1) << 4)), 0)
    }
}

impl Integers for BlockQ6K {
    const GRANULE: usize = 16;
    const OFFSET: i8 = 32;

    fn factors(&self) -> (f32, f32) {
        (self.d.to_f32(), 0.0)
    }

    fn sub_scales(&self) -> SubScales {
        SubScales { scales: self.scales.map(i32::from), mins: [0; 16] }
    }

    fn quants(&self, s: usize) -> [i8; 32] {
        let (half, part) = (s / 4, s % 4);
        let quants = std::array::from_fn(|l| {
            let low = (self.ql[64 * half + 32 * (part % 2) + l] >> (4 * (part / 2))) & 15;
            let high = (self.qh[32 * half + l] >> (2 * part)) & 3;
            low | (high << 4)
        });
        signed(quants, 32)
    }
}
