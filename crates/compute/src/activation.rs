//! `Q8Activation`: a vector in int8, as the integer kernels want it.
//!
//! Blocks of 32 with one float32 scale each, so a single large activation (they reach 1e4 in real
//! models) costs precision only among its 31 neighbours. Quants stay within ±127: the x86 kernels
//! multiply pairs into 16 bits, and -128 would be the one value that saturates there.

use crate::ComputeError;

/// Elements that share a scale.
pub(crate) const BLOCK: usize = 32;

/// A vector quantised to int8 in blocks of 32.
#[derive(Debug, Clone, PartialEq)]
pub struct Q8Activation {
    len: usize,
    /// `len` quants, padded with zeros to whole blocks.
    quants: Vec<[i8; BLOCK]>,
    /// One scale a block: value = scale * quant.
    scales: Vec<f32>,
    /// For each block the sums of its first and of its last 16 quants: what a format's minimum or
    /// offset is multiplied by.
    half_sums: Vec<[i16; 2]>,
}

impl Q8Activation {
    /// Quantises `values`: scale = max|v| / 127 of the block, quant = v / scale rounded to the
    /// nearest, ties to even.
    ///
    /// # Errors
    /// [`ComputeError::NotFinite`] names the position of a NaN or an infinity.
    pub fn new(values: &[f32]) -> Result<Self, ComputeError> {
        let n_blocks = values.len().div_ceil(BLOCK);
        let mut q8 = Self {
            len: values.len(),
            quants: Vec::with_capacity(n_blocks),
            scales: Vec::with_capacity(n_blocks),
            half_sums: Vec::with_capacity(n_blocks),
        };
        for (b, block) in values.chunks(BLOCK).enumerate() {
            if let Some(i) = block.iter().position(|v| !v.is_finite()) {
                return Err(ComputeError::NotFinite {
                    what: "the activation",
                    position: b * BLOCK + i,
                    value: block[i],
                });
            }
            let largest = block.iter().fold(0.0_f32, |max, v| max.max(v.abs()));
            let scale = largest / 127.0;
            let mut quants = [0; BLOCK];
            if scale > 0.0 {
                for (quant, value) in quants.iter_mut().zip(block) {
                    // A subnormal scale has few bits and may leave the quotient beyond 127.
                    *quant = (value / scale).round_ties_even().clamp(-127.0, 127.0) as i8;
                }
            }
            let sum = |half: &[i8]| half.iter().map(|&q| i16::from(q)).sum();
            q8.half_sums.push([sum(&quants[..16]), sum(&quants[16..])]);
            q8.quants.push(quants);
            q8.scales.push(scale);
        }
        Ok(q8)
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The values that the quants stand for: what the integer kernels multiply by.
    pub fn dequantize(&self) -> Vec<f32> {
        let blocks = self.quants.iter().zip(&self.scales);
        let values = blocks.flat_map(|(quants, &scale)| quants.map(|q| scale * f32::from(q)));
        values.take(self.len).collect()
    }

    /// Quants, block by block.
    pub(crate) fn quants(&self) -> &[[i8; BLOCK]] {
        &self.quants
    }

    /// Scale of each block.
    pub(crate) fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// Sums of the quants of each half block.
    pub(crate) fn half_sums(&self) -> &[[i16; 2]] {
        &self.half_sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_within_half_a_step_at_any_magnitude() {
        for magnitude in [1e-30_f32, 1.0, 3e3, 3e4, 1e37] {
            let values: Vec<f32> =
                (0..77).map(|i| ((i * 37 % 71) as f32 - 35.0) / 35.0 * magnitude).collect();
            let q8 = Q8Activation::new(&values).unwrap();
            let back = q8.dequantize();
            assert_eq!(back.len(), 77);
            for (i, (a, b)) in values.iter().zip(&back).enumerate() {
                let step = q8.scales()[i / BLOCK];
                assert!((a - b).abs() <= step * 0.5001, "{a} against {b}, step {step}");
            }
            assert!(q8.quants().iter().flatten().all(|&q| q > -128));
        }
    }

    #[test]
    fn zeros_and_subnormals_stay_finite() {
        for value in [0.0, -0.0, f32::from_bits(1), f32::from_bits(200)] {
            let back = Q8Activation::new(&[value; 40]).unwrap().dequantize();
            assert!(back.iter().all(|v| v.is_finite() && v.abs() <= 2.0 * value.abs()));
        }
    }

    #[test]
    fn non_finite_values_are_named() {
        let mut values = vec![1.0; 70];
        values[66] = f32::INFINITY;
        let error = Q8Activation::new(&values).unwrap_err();
        assert!(matches!(error, ComputeError::NotFinite { position: 66, .. }), "{error}");
    }
}
