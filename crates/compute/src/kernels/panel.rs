//! The integer product of 16 rows with many quantised vectors.
//!
//! Sixteen rows of a block format are unpacked once into a [`Panel`]: bytes in the order in which
//! the product wants them, and a float32 scale for each row and granule. Unpacking costs as much
//! as a few vectors, so this is for prompts, not for single tokens. The sums in a granule are
//! exact integers; between granules float32 rounds in the order written here, which is not that
//! of the dot product of one vector (`docs/NUMERICS.md` states by how much they differ).

use super::integers::{Integers, SubScales};
use crate::activation::{BLOCK, Q8Vector};
use crate::blocks::{self, as_blocks};
use crate::{Dtype, Matrix};

/// Rows of a panel: one for each 32-bit lane of a 512-bit register.
pub(crate) const PANEL_ROWS: usize = 16;

/// Vectors that one call multiplies.
pub(crate) const PANEL_VECTORS: usize = 8;

/// Four consecutive quants of each row.
pub(crate) type Word = [[u8; 4]; PANEL_ROWS];

/// One number for each row.
pub(crate) type Lanes = [f32; PANEL_ROWS];

/// Sixteen unpacked rows: element `k` of row `r` is `scale * (quant - offset) - min`.
#[derive(Debug, Default)]
pub(crate) struct Panel {
    /// `[cols / 4]`.
    pub(crate) words: Vec<Word>,
    /// `[cols / granule]`.
    pub(crate) scales: Vec<Lanes>,
    /// `[cols / granule]`, or empty where the format has no minimums.
    pub(crate) mins: Vec<Lanes>,
    /// Elements that share a scale: 16 or 32.
    pub(crate) granule: usize,
    /// What was added to the quants to make them bytes without sign.
    pub(crate) offset: i32,
}

/// Up to eight vectors as a panel wants them, granule by granule.
#[derive(Debug, Default)]
pub(crate) struct PanelVectors<'a> {
    /// `[cols / 32]` blocks of each vector.
    pub(crate) quants: [&'a [[i8; BLOCK]]; PANEL_VECTORS],
    /// `[cols / 32]` of each vector.
    pub(crate) scales: [&'a [f32]; PANEL_VECTORS],
    /// `[cols / granule]`: of each vector `-offset * (sum of the quants)`, where its integer sums
    /// start.
    pub(crate) starts: Vec<[i32; PANEL_VECTORS]>,
    /// `[cols / granule]`: of each vector `-scale * (sum of the quants)`, which multiplies the
    /// minimums; empty where there are none.
    pub(crate) mins: Vec<[f32; PANEL_VECTORS]>,
}

/// The two steps of the product for one instruction set; the same bits on each.
#[derive(Clone, Copy)]
pub(crate) struct PanelKernels {
    /// Unpacks at most 16 rows of a block format.
    pub(crate) fill: fn(Matrix<'_>, &mut Panel),
    /// Multiplies a panel by eight vectors: `[vector][row]`.
    pub(crate) multiply: fn(&Panel, &PanelVectors<'_>, &mut [Lanes; PANEL_VECTORS]),
}

/// The twin.
pub(crate) const SCALAR: PanelKernels = PanelKernels { fill, multiply };

/// Unpacks `rows`, at most 16 of a block format; the lanes of those that are missing are zero.
#[inline(always)]
pub(crate) fn fill(rows: Matrix<'_>, panel: &mut Panel) {
    match rows.dtype() {
        Dtype::F32 | Dtype::F16 | Dtype::BF16 => panic!("{} has no integers", rows.dtype()),
        Dtype::Q4_0 => panel.fill::<blocks::BlockQ4_0>(rows),
        Dtype::Q4_1 => panel.fill::<blocks::BlockQ4_1>(rows),
        Dtype::Q5_0 => panel.fill::<blocks::BlockQ5_0>(rows),
        Dtype::Q5_1 => panel.fill::<blocks::BlockQ5_1>(rows),
        Dtype::Q8_0 => panel.fill::<blocks::BlockQ8_0>(rows),
        Dtype::Q2K => panel.fill::<blocks::BlockQ2K>(rows),
        Dtype::Q3K => panel.fill::<blocks::BlockQ3K>(rows),
        Dtype::Q4K => panel.fill::<blocks::BlockQ4K>(rows),
        Dtype::Q5K => panel.fill::<blocks::BlockQ5K>(rows),
        Dtype::Q6K => panel.fill::<blocks::BlockQ6K>(rows),
    }
}

impl Panel {
    #[inline(always)]
    fn fill<B: Integers>(&mut self, rows: Matrix<'_>) {
        let n_rows = rows.rows();
        let blocks = as_blocks::<B>(rows.bytes());
        let per_row = blocks.len() / n_rows.max(1);
        let (sub_blocks, granules) = (B::LEN / BLOCK, BLOCK / B::GRANULE);
        let n = per_row * sub_blocks;
        (self.granule, self.offset) = (B::GRANULE, i32::from(B::OFFSET.cast_unsigned()));
        self.words.resize(n * BLOCK / 4, Word::default());
        self.scales.resize(n * granules, Lanes::default());
        self.mins.resize(if B::MINS { n * granules } else { 0 }, Lanes::default());
        if n_rows < PANEL_ROWS {
            self.words.fill(Word::default());
            self.scales.fill(Lanes::default());
            self.mins.fill(Lanes::default());
        }
        for (r, row) in blocks.chunks_exact(per_row.max(1)).enumerate() {
            for (i, block) in row.iter().enumerate() {
                let (d, dmin) = block.factors();
                let SubScales { scales, mins } = block.sub_scales();
                for s in 0..sub_blocks {
                    let b = i * sub_blocks + s;
                    let quants = block.quants(s).map(|q| q.wrapping_add(B::OFFSET).cast_unsigned());
                    let words = &mut self.words[b * 8..(b + 1) * 8];
                    for (word, quants) in words.iter_mut().zip(quants.as_chunks::<4>().0) {
                        word[r] = *quants;
                    }
                    for g in 0..granules {
                        let place = b * granules + g;
                        self.scales[place][r] = d * scales[2 * s + g] as f32;
                        if B::MINS {
                            self.mins[place][r] = dmin * mins[2 * s + g] as f32;
                        }
                    }
                }
            }
        }
    }
}

impl<'a> PanelVectors<'a> {
    /// Prepares `vectors` (one to eight; the last is repeated) for panels like `panel`.
    pub(crate) fn set(&mut self, panel: &Panel, vectors: impl Fn(usize) -> Q8Vector<'a>) {
        let granules = BLOCK / panel.granule;
        self.starts.clear();
        self.starts.resize(panel.scales.len(), Default::default());
        self.mins.clear();
        self.mins.resize(panel.mins.len(), Default::default());
        for v in 0..PANEL_VECTORS {
            let vector = vectors(v);
            self.quants[v] = vector.quants;
            self.scales[v] = vector.scales;
            for (b, halves) in vector.half_sums.iter().enumerate() {
                let [first, last] = halves.map(i32::from);
                let sums = if granules == 1 { [first + last; 2] } else { [first, last] };
                for (g, sum) in sums.into_iter().take(granules).enumerate() {
                    let place = b * granules + g;
                    self.starts[place][v] = -panel.offset * sum;
                    if let Some(mins) = self.mins.get_mut(place) {
                        mins[v] = -vector.scales[b] * sum as f32;
                    }
                }
            }
        }
    }
}

/// The scalar twin of the product. Of each block of 32: `t = sum * scale` of its first granule,
/// `t = fma(sum, scale, t)` of its second, `acc = fma(t, vector's scale, acc)`, and for each
/// granule with minimums `acc = fma(min, -vector's scale * sum of quants, acc)`.
fn multiply(panel: &Panel, vectors: &PanelVectors<'_>, out: &mut [Lanes; PANEL_VECTORS]) {
    let granules = BLOCK / panel.granule;
    for (v, out) in out.iter_mut().enumerate() {
        for (r, out) in out.iter_mut().enumerate() {
            let mut acc = 0.0_f32;
            for (b, quants) in vectors.quants[v].iter().enumerate() {
                let words = &panel.words[b * 8..(b + 1) * 8];
                let products = |word: usize| -> i32 {
                    let quants = &quants[4 * word..4 * word + 4];
                    words[word][r]
                        .iter()
                        .zip(quants)
                        .map(|(w, x)| i32::from(*w) * i32::from(*x))
                        .sum()
                };
                let mut t = 0.0;
                for g in 0..granules {
                    let place = b * granules + g;
                    let words = g * panel.granule / 4..(g + 1) * panel.granule / 4;
                    let sum = vectors.starts[place][v] + words.map(products).sum::<i32>();
                    let scale = panel.scales[place][r];
                    t = if g == 0 { sum as f32 * scale } else { (sum as f32).mul_add(scale, t) };
                }
                acc = t.mul_add(vectors.scales[v][b], acc);
                for place in b * granules..(b + 1) * granules {
                    if let Some(mins) = panel.mins.get(place) {
                        acc = mins[r].mul_add(vectors.mins[place][v], acc);
                    }
                }
            }
            *out = acc;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::panel_kernels;
    use crate::conformance::cases;
    use crate::{Activations, Cpu, Isa};

    #[test]
    fn every_instruction_set_multiplies_panels_as_the_twin_does() {
        let cpu = Cpu::new(Some(Isa::Scalar), Some(1)).unwrap();
        for case in cases().iter().filter(|case| case.dtype.block_len() > 1) {
            let m = case.matrix().unwrap();
            let rows = m.row_range(0..m.rows().min(PANEL_ROWS));
            let mut x = Activations::default();
            x.set(&cpu, &case.positions(3), 3).unwrap();
            let product = |kernels: PanelKernels| {
                let mut panel = Panel::default();
                (kernels.fill)(rows, &mut panel);
                let mut vectors = PanelVectors::default();
                vectors.set(&panel, |v| x.q8_vector(v.min(2)));
                let mut out = [Lanes::default(); PANEL_VECTORS];
                (kernels.multiply)(&panel, &vectors, &mut out);
                out.map(|lanes| lanes.map(|v| if v.is_nan() { f32::NAN } else { v }.to_bits()))
            };
            let twin = product(SCALAR);
            for kernels in Isa::available().into_iter().filter_map(panel_kernels) {
                assert_eq!(twin, product(kernels), "{case:?}");
            }
        }
    }
}
