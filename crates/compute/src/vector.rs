//! The operations between the products of a forward pass: norms and non-linearities over
//! `[n, width]` vectors, in parallel where there is enough of it.

use crate::{ComputeError, Cpu};

/// Elements that one worker takes at a time: a share of it must be worth waking a thread for.
const GRAIN: usize = 16 * 1024;

/// A non-linearity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nonlinearity {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU by its tanh approximation.
    GeluTanh,
    /// GELU by the error function.
    Gelu,
}

impl Cpu {
    /// RMS norm of each row of `x`, `[n, weight.len()]`:
    /// `out = x / sqrt(mean(x^2) + eps) * weight`.
    ///
    /// # Errors
    /// Wrong lengths.
    pub fn rms_norm(
        &self,
        x: &[f32],
        weight: &[f32],
        eps: f32,
        out: &mut [f32],
    ) -> Result<(), ComputeError> {
        let kernels = self.kernels().vector();
        self.each_vector(x, weight.len(), out, |x, out| kernels.rms_norm(x, weight, eps, out))
    }

    /// Layer norm of each row of `x`, `[n, weight.len()]`:
    /// `out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias`.
    ///
    /// # Errors
    /// Wrong lengths.
    pub fn layer_norm(
        &self,
        x: &[f32],
        weight: &[f32],
        bias: &[f32],
        eps: f32,
        out: &mut [f32],
    ) -> Result<(), ComputeError> {
        check("the bias", weight.len(), bias.len())?;
        let kernels = self.kernels().vector();
        self.each_vector(x, weight.len(), out, |x, o| kernels.layer_norm(x, [weight, bias], eps, o))
    }

    /// `gate = f(gate) * up`, element by element; `gate = f(gate)` without `up`.
    ///
    /// # Errors
    /// Different lengths.
    pub fn activate(
        &self,
        f: Nonlinearity,
        gate: &mut [f32],
        up: Option<&[f32]>,
    ) -> Result<(), ComputeError> {
        check("the up projection", gate.len(), up.map_or(gate.len(), <[f32]>::len))?;
        let kernels = self.kernels().vector();
        self.pool().for_each_chunk(gate, GRAIN, |first, gate| {
            match f {
                Nonlinearity::Silu => kernels.silu(gate),
                Nonlinearity::GeluTanh => kernels.gelu_tanh(gate),
                Nonlinearity::Gelu => gate.iter_mut().for_each(|x| *x = gelu(*x)),
            }
            if let Some(up) = up {
                kernels.multiply(gate, &up[first..first + gate.len()]);
            }
        });
        Ok(())
    }

    /// `x = cap * tanh(x / cap)`, element by element.
    pub fn softcap(&self, x: &mut [f32], cap: f32) {
        let kernels = self.kernels().vector();
        self.pool().for_each_chunk(x, GRAIN, |_, x| kernels.softcap(x, cap));
    }

    /// Calls `body` with each row of `x` and of `out`, both `[n, width]`.
    fn each_vector(
        &self,
        x: &[f32],
        width: usize,
        out: &mut [f32],
        body: impl Fn(&[f32], &mut [f32]) + Sync,
    ) -> Result<(), ComputeError> {
        check("the output", x.len(), out.len())?;
        let n = x.len().checked_div(width).unwrap_or(0);
        check("the vectors", n * width, x.len())?;
        let grain = (GRAIN / width.max(1)).max(1) * width;
        self.pool().for_each_chunk(out, grain, |first, out| {
            let x = &x[first..first + out.len()];
            for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
                body(x, out);
            }
        });
        Ok(())
    }
}

/// GELU by the error function.
fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2))
}

fn check(what: &'static str, expected: usize, found: usize) -> Result<(), ComputeError> {
    if expected == found {
        return Ok(());
    }
    Err(ComputeError::VectorLength { what, expected, found })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    fn numbers(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + 13) % 2003) as f32 / 100.0 - 10.0).collect()
    }

    fn everything(isa: Isa, threads: usize) -> Vec<u32> {
        let cpu = Cpu::new(Some(isa), Some(threads)).unwrap();
        let mut all = Vec::new();
        for (n, width) in [(1, 1), (3, 17), (90, 640), (2, 33)] {
            let x = numbers(n * width);
            let mut out = vec![0.0; x.len()];
            cpu.rms_norm(&x, &numbers(width), 1e-6, &mut out).unwrap();
            all.extend_from_slice(&out);
            cpu.layer_norm(&x, &numbers(width), &numbers(width), 1e-5, &mut out).unwrap();
            all.extend_from_slice(&out);
            for f in [Nonlinearity::Silu, Nonlinearity::GeluTanh, Nonlinearity::Gelu] {
                out.copy_from_slice(&x);
                cpu.activate(f, &mut out, Some(&x)).unwrap();
                all.extend_from_slice(&out);
            }
            cpu.softcap(&mut out, 30.0);
            all.extend_from_slice(&out);
        }
        all.iter().map(|v| v.to_bits()).collect()
    }

    #[test]
    fn every_instruction_set_and_number_of_threads_gives_the_same_bits() {
        let scalar = everything(Isa::Scalar, 1);
        for isa in Isa::available() {
            assert!(everything(isa, 1) == scalar, "{isa}");
            assert!(everything(isa, 3) == scalar, "{isa}, 3 threads");
        }
    }

    #[test]
    fn norms_match_float64() {
        let cpu = Cpu::new(None, Some(1)).unwrap();
        let (x, w) = (numbers(77), numbers(77));
        let wide: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
        let mean = wide.iter().sum::<f64>() / 77.0;
        let square = wide.iter().map(|v| v * v).sum::<f64>() / 77.0;
        let var = wide.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / 77.0;
        let (mut rms, mut layer) = (vec![0.0; 77], vec![0.0; 77]);
        cpu.rms_norm(&x, &w, 1e-6, &mut rms).unwrap();
        cpu.layer_norm(&x, &w, &w, 1e-5, &mut layer).unwrap();
        for i in 0..77 {
            let w = f64::from(w[i]);
            let truth = wide[i] / (square + 1e-6).sqrt() * w;
            assert!((f64::from(rms[i]) - truth).abs() < 1e-5 * truth.abs().max(1.0));
            let truth = (wide[i] - mean) / (var + 1e-5).sqrt() * w + w;
            assert!((f64::from(layer[i]) - truth).abs() < 1e-5 * truth.abs().max(1.0));
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let cpu = Cpu::new(None, Some(1)).unwrap();
        let mut out = [0.0; 6];
        assert!(cpu.rms_norm(&[0.0; 6], &[1.0; 4], 1e-6, &mut out).is_err());
        assert!(cpu.rms_norm(&[0.0; 4], &[1.0; 4], 1e-6, &mut out).is_err());
        assert!(cpu.layer_norm(&[0.0; 6], &[1.0; 3], &[1.0; 2], 1e-6, &mut out).is_err());
        assert!(cpu.activate(Nonlinearity::Silu, &mut out, Some(&[1.0; 5])).is_err());
    }
}
