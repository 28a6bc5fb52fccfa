//! Q6_K: 256 elements of six bits; sixteen sub-blocks with signed byte scales.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Block, Half, Quantize, SUPER, search};
use crate::Dtype;

/// 256 elements `(d * scale) * (q - 32)`, `q` in 0..64, a signed scale for each 16.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct BlockQ6K {
    /// The low four bits. Of each half of 128 elements, in 64 bytes: elements 0..64 in the low,
    /// 64..128 in the high halves.
    pub ql: [u8; 128],
    /// The upper two bits. Of each half of 128 elements, in 32 bytes: element `32 * r + l` is
    /// bits `2 * r..` of byte `l`.
    pub qh: [u8; 64],
    /// Scales of the sub-blocks.
    pub scales: [i8; 16],
    /// Scale of the scales.
    pub d: Half,
}

const _: () = assert!(size_of::<BlockQ6K>() == Dtype::Q6K.block_bytes());

impl Block for BlockQ6K {
    const DTYPE: Dtype = Dtype::Q6K;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), SUPER);
        let d = self.d.to_f32();
        for (j, values) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * f32::from(self.scales[j]);
            let (half, row, odd) = (j / 8, j % 8 / 2, 16 * (j % 2));
            let low = &self.ql[64 * half + 32 * (row % 2) + odd..][..16];
            let high = &self.qh[32 * half + odd..][..16];
            for ((value, low), high) in values.iter_mut().zip(low).zip(high) {
                let q = ((low >> (4 * (row / 2))) & 15) | (((high >> (2 * row)) & 3) << 4);
                *value = scale * (i32::from(q) - 32) as f32;
            }
        }
    }
}

/// Sub-blocks, and elements of one.
const SUBS: usize = 16;
const LEN: usize = 16;

/// How far the search stretches a sub-block's grid beyond the 32 steps of its peak.
const STRETCH: [f32; 10] = [0.0, -0.9, -0.6, -0.3, 0.3, 0.6, 0.9, -1.2, 1.2, 1.6];

/// The number of steps that the largest scale of a block takes.
const TOPS: [f32; 6] = [128.0, 127.0, 126.0, 125.0, 124.0, 123.0];

impl Quantize for BlockQ6K {
    /// 127 steps of a scale of the largest half, 31 times.
    const LIMIT: f32 = Half::MAX * 127.0 * 31.0;

    /// Searches for the smallest squared error: the least-squares scale of each sub-block over
    /// several grids; byte scales in units of the `d` that costs least; the `q`; and once more
    /// `d` by least squares over the whole block, kept where it helps.
    fn quantize(values: &[f32]) -> Self {
        let mut x = [0.0f32; SUPER];
        x.copy_from_slice(values);
        let subs: [[f32; LEN]; SUBS] =
            std::array::from_fn(|j| std::array::from_fn(|i| x[j * LEN + i]));
        let fits: [Fit; SUBS] = std::array::from_fn(|j| Fit::new(&subs[j]));
        let mut first = Candidate::new(&subs, best_unit(&fits), &fits.map(|f| f.scale));
        first.polish(&subs);
        let refined = first.refine(&subs);
        if refined.error() < first.error() { refined.pack() } else { first.pack() }
    }
}

/// The best scale of a sub-block; another costs `s2 * (difference)^2` more.
#[derive(Clone, Copy)]
struct Fit {
    scale: f32,
    /// Sum of the squares of the `q`.
    s2: f32,
}

impl Fit {
    fn new(x: &[f32; LEN]) -> Self {
        let peak = search::peak(x);
        if peak == 0.0 {
            return Self { scale: 0.0, s2: 0.0 };
        }
        let mut best = Self { scale: 0.0, s2: 0.0 };
        let mut best_gain = -1.0;
        for stretch in STRETCH {
            // The peak becomes -32: the side with one step more.
            let steps = -(32.0 + stretch) / peak;
            let (mut s2, mut sxq) = ([0.0f32; 8], [0.0f32; 8]);
            for eight in x.as_chunks::<8>().0 {
                for l in 0..8 {
                    let q = search::clamp(search::round(eight[l] * steps), -32.0, 31.0);
                    s2[l] += q * q;
                    sxq[l] += eight[l] * q;
                }
            }
            let (s2, sxq) = (search::sum(s2), search::sum(sxq));
            let gain = sxq * sxq / s2;
            if gain > best_gain {
                (best, best_gain) = (Self { scale: sxq / s2, s2 }, gain);
            }
        }
        best
    }
}

/// Scales up to this magnitude are polished.
const SMALL_SCALE: f32 = 64.0;

/// The nearest `q` of a sub-block with this scale, and the squared error.
#[inline(always)]
fn nearest(x: &[f32; LEN], scale: f32) -> ([f32; LEN], f32) {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut q = [0.0f32; LEN];
    let mut error = [0.0f32; 8];
    for (x, q) in x.as_chunks::<8>().0.iter().zip(q.as_chunks_mut::<8>().0) {
        for l in 0..8 {
            q[l] = search::round(search::clamp(x[l] * inverse, -32.0, 31.0));
            let off = scale * q[l] - x[l];
            error[l] += off * off;
        }
    }
    (q, search::sum(error))
}

/// `scale` in whole steps of a byte.
#[inline(always)]
fn steps(scale: f32, inverse_unit: f32) -> f32 {
    search::round(search::clamp(scale * inverse_unit, -128.0, 127.0))
}

/// The unit, of either sign, in which byte scales come closest to the wanted ones.
fn best_unit(fits: &[Fit; SUBS]) -> Half {
    let peak = search::peak(&fits.map(|f| f.scale));
    if peak == 0.0 {
        return Half::from_bits(0);
    }
    let (mut best, mut best_cost) = (peak / -128.0, f32::MAX);
    for top in TOPS {
        let unit = peak / -top;
        let inverse = 1.0 / unit;
        let mut cost = [0.0f32; SUBS];
        for j in 0..SUBS {
            let off = steps(fits[j].scale, inverse) * unit - fits[j].scale;
            cost[j] = fits[j].s2 * off * off;
        }
        let cost = cost.iter().sum::<f32>();
        if cost < best_cost {
            (best, best_cost) = (unit, cost);
        }
    }
    let half = Half::from_f32(search::clamp(best, -Half::MAX, Half::MAX));
    // A subnormal unit can be so coarse that 128 steps of it do not reach the peak.
    if half.to_bits() & 0x7fff < 0x400 && half.to_f32().abs() * 128.5 < peak.abs() {
        return Half::from_bits(half.to_bits() + 1);
    }
    half
}

/// A complete block, and the squared error of each of its sub-blocks.
struct Candidate {
    d: Half,
    scales: [f32; SUBS],
    q: [[f32; LEN]; SUBS],
    errors: [f32; SUBS],
}

impl Candidate {
    /// The scales nearest to `wanted`, and the nearest `q` of every element.
    fn new(subs: &[[f32; LEN]; SUBS], d: Half, wanted: &[f32; SUBS]) -> Self {
        let unit = d.to_f32();
        let inverse_unit = if unit == 0.0 { 0.0 } else { 1.0 / unit };
        let scales = wanted.map(|w| steps(w, inverse_unit));
        let mut new = Self { d, scales, q: [[0.0; LEN]; SUBS], errors: [0.0; SUBS] };
        for (j, x) in subs.iter().enumerate() {
            (new.q[j], new.errors[j]) = nearest(x, unit * scales[j]);
        }
        new
    }

    fn error(&self) -> f32 {
        let (low, high) = self.errors.split_at(8);
        search::sum(std::array::from_fn(|l| low[l] + high[l]))
    }

    /// Tries the neighbours of small scales by their true error: there a step is so large
    /// against the scale that the quadratic form no longer says which is best.
    fn polish(&mut self, subs: &[[f32; LEN]; SUBS]) {
        for (j, x) in subs.iter().enumerate() {
            let scale = self.scales[j];
            if scale.abs() > SMALL_SCALE || self.errors[j] == 0.0 {
                continue;
            }
            for scale in [scale - 2.0, scale - 1.0, scale + 1.0, scale + 2.0] {
                let (q, error) = nearest(x, self.d.to_f32() * scale);
                if error < self.errors[j] {
                    (self.q[j], self.errors[j], self.scales[j]) = (q, error, scale);
                }
            }
        }
    }

    /// The same scales and `q` with `d` by least squares; then the nearest `q` again.
    fn refine(&self, subs: &[[f32; LEN]; SUBS]) -> Self {
        let (mut uu, mut xu) = (0.0f32, 0.0f32);
        for (j, (x, q)) in subs.iter().zip(&self.q).enumerate() {
            let (mut s2, mut sxq) = ([0.0f32; 8], [0.0f32; 8]);
            for (x, q) in x.as_chunks::<8>().0.iter().zip(q.as_chunks::<8>().0) {
                for l in 0..8 {
                    s2[l] += q[l] * q[l];
                    sxq[l] += x[l] * q[l];
                }
            }
            uu += self.scales[j] * self.scales[j] * search::sum(s2);
            xu += self.scales[j] * search::sum(sxq);
        }
        let d = if uu > 0.0 { xu / uu } else { 0.0 };
        let d = Half::from_f32(search::clamp(d, -Half::MAX, Half::MAX));
        Self::new(subs, d, &self.scales.map(|s| s * d.to_f32()))
    }

    fn pack(&self) -> BlockQ6K {
        let mut bytes = [0u8; SUPER];
        for (q, bytes) in self.q.iter().zip(bytes.as_chunks_mut::<LEN>().0) {
            *bytes = q.map(|q| search::byte(q + 32.0));
        }
        let (mut ql, mut qh) = ([0u8; 128], [0u8; 64]);
        for half in 0..2 {
            let row = |r: usize, l: usize| bytes[128 * half + 32 * r + l];
            for l in 0..32 {
                ql[64 * half + l] = (row(0, l) & 15) | ((row(2, l) & 15) << 4);
                ql[64 * half + 32 + l] = (row(1, l) & 15) | ((row(3, l) & 15) << 4);
                qh[32 * half + l] = (row(0, l) >> 4)
                    | ((row(1, l) >> 4) << 2)
                    | ((row(2, l) >> 4) << 4)
                    | ((row(3, l) >> 4) << 6);
            }
        }
        let scales = self.scales.map(|s| search::byte(s + 128.0).wrapping_sub(128) as i8);
        BlockQ6K { ql, qh, scales, d: self.d }
    }
}
