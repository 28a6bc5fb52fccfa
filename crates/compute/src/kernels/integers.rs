//! The integers inside the block formats, as the integer dot product sees them.

use crate::blocks::{
    Block, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K,
    BlockQ6K, BlockQ8_0, nibbles,
};

/// 32 elements. Element `e` stands for `d * scales[e / 16] * quants[e] - dmin * mins[e / 16]`.
pub(crate) struct SubBlock {
    pub(crate) quants: [i8; 32],
    pub(crate) scales: [i32; 2],
    pub(crate) mins: [i32; 2],
}

impl SubBlock {
    /// A sub-block whose scale and minimum are the factors of its block alone.
    fn plain(quants: [i8; 32], min: i32) -> Self {
        Self { quants, scales: [1; 2], mins: [min; 2] }
    }
}

/// A block format of integers with scales.
pub(crate) trait Integers: Block {
    /// `d` and `dmin`.
    fn factors(&self) -> (f32, f32);

    /// Elements `32 * s .. 32 * (s + 1)`.
    fn sub_block(&self, s: usize) -> SubBlock;
}

/// `quants - offset`, all of which fit in i8.
fn signed(quants: [u8; 32], offset: i8) -> [i8; 32] {
    quants.map(|q| q as i8 - offset)
}

impl Integers for BlockQ4_0 {
    fn factors(&self) -> (f32, f32) {
        (self.d.to_f32(), 0.0)
    }

    fn sub_block(&self, _: usize) -> SubBlock {
        SubBlock::plain(signed(nibbles::unpack(&self.qs), 8), 0)
    }
}

impl Integers for BlockQ4_1 {
    fn factors(&self) -> (f32, f32) {
        (self.d.to_f32(), -self.m.to_f32())
    }

    fn sub_block(&self, _: usize) -> SubBlock {
        SubBlock::plain(signed(nibbles::unpack(&self.qs), 0), 1)
    }
}

impl Integers for BlockQ5_0 {
    fn factors(&self) -> (f32, f32) {
        (self.d.to_f32(), 0.0)
    }

    fn sub_block(&self, _: usize) -> SubBlock {
        SubBlock::plain(signed(nibbles::unpack_five(&self.qs, self.qh), 16), 0)
    }
}

impl Integers for BlockQ5_1 {
    fn factors(&self) -> (f32, f32) {
        (self.d.to_f32(), -self.m.to_f32())
    }

    fn sub_block(&self, _: usize) -> SubBlock {
        SubBlock::plain(signed(nibbles::unpack_five(&self.qs, self.qh), 0), 1)
    }
}

impl Integers for BlockQ8_0 {
    fn factors(&self) -> (f32, f32) {
        (self.d.to_f32(), 0.0)
    }

    fn sub_block(&self, _: usize) -> SubBlock {
        SubBlock::plain(self.qs, 0)
    }
}

/// The two-bit field of each element of sub-block `s`, placed as in Q2_K and Q3_K.
fn two_bits(qs: &[u8; 64], s: usize) -> [u8; 32] {
    std::array::from_fn(|l| (qs[32 * (s / 4) + l] >> (2 * (s % 4))) & 3)
}

impl Integers for BlockQ2K {
    fn factors(&self) -> (f32, f32) {
        (self.d.to_f32(), self.dmin.to_f32())
    }

    fn sub_block(&self, s: usize) -> SubBlock {
        let both = [self.scales[2 * s], self.scales[2 * s + 1]].map(i32::from);
        SubBlock {
            quants: signed(two_bits(&self.qs, s), 0),
            scales: both.map(|b| b & 15),
            mins: both.map(|b| b >> 4),
        }
    }
}

impl Integers for BlockQ3K {
    fn factors(&self) -> (f32, f32) {
        (self.d.to_f32(), 0.0)
    }

    fn sub_block(&self, s: usize) -> SubBlock {
        let low = two_bits(&self.qs, s);
        let quants = std::array::from_fn(|l| low[l] | (((self.hmask[l] >> s) & 1) << 2));
        let scales = self.scales();
        SubBlock {
            quants: signed(quants, 4),
            scales: [scales[2 * s], scales[2 * s + 1]].map(i32::from),
            mins: [0; 2],
        }
    }
}

/// The four-bit field of each element of sub-block `s`, placed as in Q4_K and Q5_K.
fn four_bits(qs: &[u8; 128], s: usize) -> [u8; 32] {
    std::array::from_fn(|l| (qs[32 * (s / 2) + l] >> (4 * (s % 2))) & 15)
}

impl Integers for BlockQ4K {
    fn factors(&self) -> (f32, f32) {
        (self.d.to_f32(), self.dmin.to_f32())
    }

    fn sub_block(&self, s: usize) -> SubBlock {
        let (scales, mins) = self.scales.unpack();
        SubBlock {
            quants: signed(four_bits(&self.qs, s), 0),
            scales: [i32::from(scales[s]); 2],
            mins: [i32::from(mins[s]); 2],
        }
    }
}

impl Integers for BlockQ5K {
    fn factors(&self) -> (f32, f32) {
        (self.d.to_f32(), self.dmin.to_f32())
    }

    fn sub_block(&self, s: usize) -> SubBlock {
        let (scales, mins) = self.scales.unpack();
        let low = four_bits(&self.qs, s);
        let quants = std::array::from_fn(|l| low[l] | (((self.qh[l] >> s) & 1) << 4));
        SubBlock {
            quants: signed(quants, 0),
            scales: [i32::from(scales[s]); 2],
            mins: [i32::from(mins[s]); 2],
        }
    }
}

impl Integers for BlockQ6K {
    fn factors(&self) -> (f32, f32) {
        (self.d.to_f32(), 0.0)
    }

    fn sub_block(&self, s: usize) -> SubBlock {
        let (half, part) = (s / 4, s % 4);
        let quants = std::array::from_fn(|l| {
            let low = (self.ql[64 * half + 32 * (part % 2) + l] >> (4 * (part / 2))) & 15;
            let high = (self.qh[32 * half + l] >> (2 * part)) & 3;
            low | (high << 4)
        });
        SubBlock {
            quants: signed(quants, 32),
            scales: [self.scales[2 * s], self.scales[2 * s + 1]].map(i32::from),
            mins: [0; 2],
        }
    }
}
