//! `Activations`: vectors that are about to be multiplied, also in int8, as the integer kernels
//! want them.
//!
//! Blocks of 32 with one float32 scale each, so a single large activation (they reach 1e4 in real
//! models) costs precision only among its 31 neighbours. Quants stay within ±127: the x86 kernels
//! multiply pairs into 16 bits, and -128 would be the one value that saturates there.

use crate::{ComputeError, Cpu};

/// Elements that share a scale.
pub(crate) const BLOCK: usize = 32;

/// Elements that one worker quantises at a time.
const GRAIN: usize = 16 * 1024;

/// Vectors that are about to be projected: `[n, cols]`, in float32 for the float formats and in
/// int8 for the block formats. Quantised once, whatever number of matrices follow.
#[derive(Debug, Default)]
pub struct Activations {
    n: usize,
    cols: usize,
    /// `[n, cols]`.
    values: Vec<f32>,
    /// `[n, blocks of cols]`; the last block of a vector is padded with zeros.
    quants: Vec<[i8; BLOCK]>,
    /// `[n, blocks]`, one scale a block: value = scale * quant.
    scales: Vec<f32>,
    /// `[n, blocks]`: the sums of the first and of the last 16 quants of each block, which a
    /// format's minimum or offset is multiplied by.
    half_sums: Vec<[i16; 2]>,
}

/// One vector of [`Activations`] in int8, or as many of its blocks as are at hand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Q8Vector<'a> {
    /// Quants, block by block.
    pub(crate) quants: &'a [[i8; BLOCK]],
    /// Scale of each block.
    pub(crate) scales: &'a [f32],
    /// Sums of the quants of each half block.
    pub(crate) half_sums: &'a [[i16; 2]],
}

/// A vector and the place of its quantised form.
pub(crate) struct ToQuantize<'a> {
    /// The vector, `[cols]`.
    pub(crate) values: &'a [f32],
    /// `[blocks]` each.
    pub(crate) quants: &'a mut [[i8; BLOCK]],
    pub(crate) scales: &'a mut [f32],
    pub(crate) half_sums: &'a mut [[i16; 2]],
    /// Whether all values are; the rest means nothing where they are not.
    pub(crate) finite: bool,
}

impl Activations {
    /// Takes over the `n` vectors `x`, `[n, cols]`, and quantises them: of each 32 elements,
    /// scale = max|v| / 127, quant = v / scale rounded to the nearest, ties to even.
    ///
    /// # Errors
    /// A length that is not a multiple of `n`; a NaN or an infinity, by its position in `x`. What
    /// was held before is lost then.
    pub fn set(&mut self, cpu: &Cpu, x: &[f32], n: usize) -> Result<(), ComputeError> {
        (self.n, self.cols) = (0, 0);
        let cols = x.len().checked_div(n).unwrap_or(0);
        if n * cols != x.len() {
            return Err(ComputeError::VectorLength {
                what: "the vectors",
                expected: n * cols,
                found: x.len(),
            });
        }
        self.values.clear();
        self.values.extend_from_slice(x);
        let blocks = cols.div_ceil(BLOCK);
        self.quants.resize(n * blocks, [0; BLOCK]);
        self.scales.resize(n * blocks, 0.0);
        self.half_sums.resize(n * blocks, [0; 2]);
        if cols > 0 {
            let mut vectors: Vec<ToQuantize<'_>> = x
                .chunks_exact(cols)
                .zip(self.quants.chunks_exact_mut(blocks))
                .zip(self.scales.chunks_exact_mut(blocks))
                .zip(self.half_sums.chunks_exact_mut(blocks))
                .map(|(((values, quants), scales), half_sums)| ToQuantize {
                    values,
                    quants,
                    scales,
                    half_sums,
                    finite: false,
                })
                .collect();
            cpu.pool().for_each_chunk(&mut vectors, GRAIN.div_ceil(cols), |_, vectors| {
                for vector in vectors {
                    cpu.kernels().quantize(vector);
                }
            });
            if vectors.iter().any(|vector| !vector.finite)
                && let Some(position) = x.iter().position(|v| !v.is_finite())
            {
                let (what, value) = ("the activation", x[position]);
                return Err(ComputeError::NotFinite { what, position, value });
            }
        }
        (self.n, self.cols) = (n, cols);
        Ok(())
    }

    /// Number of vectors.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Elements of a vector.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of memory that it holds.
    pub fn memory(&self) -> usize {
        self.values.capacity() * size_of::<f32>()
            + self.quants.capacity() * BLOCK
            + self.scales.capacity() * size_of::<f32>()
            + self.half_sums.capacity() * size_of::<[i16; 2]>()
    }

    /// The vectors, `[n, cols]`.
    pub fn values(&self) -> &[f32] {
        &self.values[..self.n * self.cols]
    }

    /// All vectors in int8, one after the other.
    pub(crate) fn q8(&self) -> Q8Vector<'_> {
        let blocks = self.n * self.cols.div_ceil(BLOCK);
        Q8Vector {
            quants: &self.quants[..blocks],
            scales: &self.scales[..blocks],
            half_sums: &self.half_sums[..blocks],
        }
    }

    /// Vector `p` in int8. Panics where there is none, as slices do.
    pub(crate) fn q8_vector(&self, p: usize) -> Q8Vector<'_> {
        let blocks = self.cols.div_ceil(BLOCK);
        let all = self.q8();
        let range = p * blocks..(p + 1) * blocks;
        Q8Vector {
            quants: &all.quants[range.clone()],
            scales: &all.scales[range.clone()],
            half_sums: &all.half_sums[range],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    fn devices() -> Vec<Cpu> {
        let new = |isa: &Isa| Cpu::new(Some(*isa), Some(3)).unwrap();
        Isa::available().iter().map(new).collect()
    }

    /// What a block is, by its definition: scale, quants, half sums.
    fn defined(values: &[f32]) -> (f32, [i8; BLOCK], [i16; 2]) {
        let scale = values.iter().fold(0.0_f32, |max, v| max.max(v.abs())) / 127.0;
        let mut quants = [0; BLOCK];
        if scale > 0.0 {
            for (quant, v) in quants.iter_mut().zip(values) {
                *quant = (v / scale).round_ties_even().clamp(-127.0, 127.0) as i8;
            }
        }
        let sum = |half: &[i8]| half.iter().map(|&q| i16::from(q)).sum();
        (scale, quants, [sum(&quants[..16]), sum(&quants[16..])])
    }

    /// 77 values with ties, zeros and both signs.
    fn values(magnitude: f32) -> Vec<f32> {
        let value = |i: usize| match i % 9 {
            0 => ((i % 255) as f32 - 126.5) / 127.0,
            1 => 0.0,
            2 => -1.0,
            _ => ((i * 37 % 71) as f32 - 35.0) / 35.0,
        };
        (0..77).map(|i| value(i) * magnitude).collect()
    }

    #[test]
    fn every_instruction_set_quantises_as_defined() {
        let tiny = f32::from_bits(1);
        for magnitude in [0.0, -0.0, tiny, f32::from_bits(200), 1e-30, 1.0, 127.0, 3e4, 3e38] {
            let x = [values(magnitude), values(-0.3 * magnitude), vec![magnitude; 77]].concat();
            for cpu in devices() {
                let mut activations = Activations::default();
                activations.set(&cpu, &x, 3).unwrap();
                assert_eq!((activations.n(), activations.cols()), (3, 77));
                assert_eq!(activations.values(), x);
                for (p, x) in x.chunks(77).enumerate() {
                    let q8 = activations.q8_vector(p);
                    for (b, block) in x.chunks(BLOCK).enumerate() {
                        let (scale, quants, half_sums) = defined(block);
                        assert_eq!(q8.scales[b].to_bits(), scale.to_bits(), "{cpu:?}");
                        assert_eq!(q8.quants[b], quants, "{magnitude} {cpu:?}");
                        assert_eq!(q8.half_sums[b], half_sums, "{magnitude} {cpu:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn error_is_within_half_a_step_at_any_magnitude() {
        for magnitude in [1e-30_f32, 1.0, 3e3, 3e4, 1e37] {
            let x = values(magnitude);
            let mut activations = Activations::default();
            activations.set(&devices()[0], &x, 1).unwrap();
            let q8 = activations.q8_vector(0);
            for (i, v) in x.iter().enumerate() {
                let (step, quant) = (q8.scales[i / BLOCK], q8.quants[i / BLOCK][i % BLOCK]);
                let back = step * f32::from(quant);
                assert!((v - back).abs() <= step * 0.5001, "{v} against {back}, step {step}");
                assert!(quant > -128);
            }
        }
    }

    #[test]
    fn non_finite_values_are_named() {
        for (position, bad) in
            [(0, f32::NAN), (66, f32::INFINITY), (70 + 69, -f32::NAN), (150, f32::NEG_INFINITY)]
        {
            for cpu in devices() {
                let mut x = vec![1.0; 4 * 70];
                x[position] = bad;
                x[4 * 70 - 1] = f32::NAN;
                let mut activations = Activations::default();
                let error = activations.set(&cpu, &x, 4).unwrap_err();
                let ComputeError::NotFinite { position: named, .. } = error else {
                    panic!("{error}")
                };
                assert_eq!(named, position);
                assert_eq!((activations.n(), activations.values().len()), (0, 0));
            }
        }
    }

    #[test]
    fn no_vectors_and_uneven_lengths() {
        let (cpu, mut activations) = (&devices()[0], Activations::default());
        activations.set(cpu, &[], 0).unwrap();
        activations.set(cpu, &[], 3).unwrap();
        assert_eq!((activations.n(), activations.cols()), (3, 0));
        let error = activations.set(cpu, &[1.0; 7], 2).unwrap_err();
        assert!(matches!(error, ComputeError::VectorLength { .. }), "{error}");
        assert!(activations.set(cpu, &[1.0], 0).is_err());
    }
}
