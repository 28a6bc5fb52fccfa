//! Cases that every device must answer as the scalar twin does: operation x dtype x odd shape.
//!
//! A device's tests walk [`cases`], run each operation on [`Case::matrix`] and compare with
//! [`Case::twin`]. Values are random with a fixed seed and zero mean; some cases are hostile
//! (largest scales, activations of 3e4).

use crate::{ComputeError, Cpu, Dtype, Isa, Matrix};

/// What kind of numbers a case holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Weights around 0.02, activations around 1.
    Ordinary,
    /// Every bit of the quants and sub-scales set to its extreme, activations of 3e3 to 3e4.
    Extreme,
}

/// One matrix, one vector, one operation's input.
#[derive(Debug, Clone)]
pub struct Case {
    /// Format of the matrix.
    pub dtype: Dtype,
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix.
    pub cols: usize,
    /// Kind of numbers.
    pub values: Values,
    bytes: Vec<u8>,
    x: Vec<f32>,
}

/// Offsets of the half-precision factors in a block of `dtype`.
fn half_offsets(dtype: Dtype) -> &'static [usize] {
    match dtype {
        Dtype::F32 | Dtype::F16 | Dtype::BF16 => &[],
        Dtype::Q4_0 | Dtype::Q5_0 | Dtype::Q8_0 => &[0],
        Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K => &[0, 2],
        Dtype::Q2K => &[80, 82],
        Dtype::Q3K => &[108],
        Dtype::Q6K => &[208],
    }
}

/// A small generator (SplitMix64): the cases must be the same everywhere, for ever.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in -1..1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

impl Case {
    /// A case of its own; the same arguments give the same numbers.
    pub fn new(dtype: Dtype, rows: usize, cols: usize, values: Values) -> Self {
        let mut random = Random((dtype as u64) << 48 | (rows as u64) << 24 | cols as u64);
        let blocks = rows * cols / dtype.block_len();
        let mut bytes = Vec::with_capacity(blocks * dtype.block_bytes());
        for _ in 0..blocks {
            push_block(dtype, values, &mut random, &mut bytes);
        }
        let x = (0..cols)
            .map(|_| match values {
                Values::Ordinary => random.unit(),
                // One in eight is large: the rest of its block must not vanish in the test.
                Values::Extreme => match random.next() % 8 {
                    0 => 3e4_f32.copysign(random.unit()),
                    _ => 3e3 * random.unit(),
                },
            })
            .collect();
        Self { dtype, rows, cols, values, bytes, x }
    }

    /// The matrix.
    ///
    /// # Errors
    /// None for the cases of [`cases`]; columns that are not whole blocks otherwise.
    pub fn matrix(&self) -> Result<Matrix<'_>, ComputeError> {
        Matrix::new(self.dtype, self.rows, self.cols, &self.bytes)
    }

    /// The vector, `[cols]`.
    pub fn x(&self) -> &[f32] {
        &self.x
    }

    /// `n` vectors, `[n, cols]`: the case's own and variations of it.
    pub fn positions(&self, n: usize) -> Vec<f32> {
        let vary =
            |p: usize| self.x.iter().enumerate().map(move |(i, v)| v * (1 + (i + p) % 5) as f32);
        (0..n).flat_map(vary).collect()
    }

    /// The device that says what is right.
    ///
    /// # Errors
    /// None: every machine has the scalar kernels.
    pub fn twin() -> Result<Cpu, ComputeError> {
        Cpu::new(Some(Isa::Scalar), Some(1))
    }
}

fn push_block(dtype: Dtype, values: Values, random: &mut Random, bytes: &mut Vec<u8>) {
    let weight = match values {
        Values::Ordinary => 0.02 * random.unit(),
        Values::Extreme => 1e4 * random.unit(),
    };
    match dtype {
        Dtype::F32 => return bytes.extend(weight.to_le_bytes()),
        Dtype::F16 => return bytes.extend(half::f16::from_f32(weight).to_le_bytes()),
        Dtype::BF16 => return bytes.extend(half::bf16::from_f32(weight).to_le_bytes()),
        _ => {}
    }
    let start = bytes.len();
    let fill = (values == Values::Extreme).then(|| match random.next() % 3 {
        0 => 0x00,
        1 => 0xff,
        _ => 0x80,
    });
    bytes.extend((0..dtype.block_bytes()).map(|_| fill.unwrap_or(random.next() as u8)));
    for offset in half_offsets(dtype) {
        let factor = match values {
            Values::Ordinary => 0.01 * random.unit(),
            Values::Extreme => 65_504.0_f32.copysign(random.unit()),
        };
        let factor = half::f16::from_f32(factor).to_le_bytes();
        bytes[start + offset..][..2].copy_from_slice(&factor);
    }
}

/// Every dtype in shapes that are not kind to vector registers.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in Dtype::ALL {
        let shapes: &[(usize, usize)] = match dtype.block_len() {
            1 => &[(1, 1), (3, 7), (5, 31), (2, 33), (7, 100), (13, 576), (33, 640), (40, 2560)],
            32 => &[(1, 32), (3, 64), (5, 96), (13, 576), (33, 640), (40, 2560)],
            _ => &[(1, 256), (3, 512), (13, 768), (40, 2560)],
        };
        for &(rows, cols) in shapes {
            for values in [Values::Ordinary, Values::Extreme] {
                cases.push(Case::new(dtype, rows, cols, values));
            }
        }
    }
    cases
}
