//! Q4_K: 256 elements of four bits; eight sub-blocks with six-bit scales and minima.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Block, Half, Quantize, SUPER, ScaleMins, search};
use crate::Dtype;

/// 256 elements `(d * scale) * q - (dmin * min)`, `q` in 0..16, a scale and a minimum for each 32.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct BlockQ4K {
    /// Scale of the scales.
    pub d: Half,
    /// Scale of the minima.
    pub dmin: Half,
    /// Scales and minima of the sub-blocks.
    pub scales: ScaleMins,
    /// Four groups of 64 elements in 32 bytes: the group's first 32 elements in the low halves,
    /// the other 32 in the high halves.
    pub qs: [u8; 128],
}

const _: () = assert!(size_of::<BlockQ4K>() == Dtype::Q4K.block_bytes());

impl Block for BlockQ4K {
    const DTYPE: Dtype = Dtype::Q4K;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), SUPER);
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        let (scales, mins) = self.scales.unpack();
        for (j, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = (d * f32::from(scales[j]), dmin * f32::from(mins[j]));
            let packed = &self.qs[32 * (j / 2)..][..32];
            for (value, byte) in values.iter_mut().zip(packed) {
                *value = scale * f32::from((byte >> (4 * (j % 2))) & 15) - min;
            }
        }
    }
}

/// Sub-blocks, and elements of one.
const SUBS: usize = 8;
const LEN: usize = 32;

/// How far beyond the fifteen steps of a sub-block's range the search stretches its grid
/// (positive: the ends are clipped, the middle gets finer).
const STRETCH: [f32; 8] = [0.0, -0.4, -0.8, 0.4, 0.8, 1.2, 1.6, 2.0];

impl Quantize for BlockQ4K {
    /// A minimum of 63 times the largest half.
    const LIMIT: f32 = Half::MAX * 63.0;

    /// Searches for the smallest squared error, in four steps: the least-squares line of each
    /// sub-block over several grids; six-bit scales and minima, and the `d` and `dmin` they are
    /// in units of, for the smallest growth of that error; the `q`; and once more `d` and
    /// `dmin` by least squares over the whole block, kept where it helps.
    fn quantize(values: &[f32]) -> Self {
        let mut x = [0.0f32; SUPER];
        x.copy_from_slice(values);
        let subs: [[f32; LEN]; SUBS] =
            std::array::from_fn(|j| std::array::from_fn(|i| x[j * LEN + i]));
        let lines: [Line; SUBS] = std::array::from_fn(|j| Line::fit(&subs[j]));
        let mut first = Candidate::new(&subs, Grid::choose(&lines));
        first.polish(&subs, &lines);
        let refined = first.refine(&subs);
        if refined.error() < first.error() { refined.pack() } else { first.pack() }
    }
}

/// The best line `scale * q - min` through a sub-block, and how the squared error grows around
/// it: by `s2 * ds^2 - 2 * s1 * ds * dm + LEN * dm^2`.
#[derive(Clone, Copy)]
struct Line {
    scale: f32,
    /// Below 0 where every element is positive: the format then has to take 0.
    min: f32,
    /// Sum of the `q`.
    s1: f32,
    /// Sum of their squares.
    s2: f32,
}

impl Line {
    fn fit(x: &[f32; LEN]) -> Self {
        let (low, high) = search::range(x);
        let low = if low < 0.0 { low } else { 0.0 };
        if high <= low {
            return Self { scale: 0.0, min: -low, s1: 0.0, s2: 0.0 };
        }
        let mean = total(x) / LEN as f32;
        let centred = x.map(|v| v - mean);
        let mut best = Self { scale: 0.0, min: 0.0, s1: 0.0, s2: 0.0 };
        let mut best_gain = -1.0;
        for stretch in STRETCH {
            let steps = (15.0 + stretch) / (high - low);
            let (line, gain) = Self::on_grid(&centred, mean, steps, (mean - low) * steps);
            if gain > best_gain {
                (best, best_gain) = (line, gain);
            }
        }
        // Once more, on the grid that the best line itself implies.
        let steps = 1.0 / best.scale;
        if steps.is_finite() {
            let (line, gain) = Self::on_grid(&centred, mean, steps, (mean + best.min) * steps);
            if gain > best_gain {
                best = line;
            }
        }
        best
    }

    /// The least-squares line for the `q` that `centred * steps + offset` rounds to, and by how
    /// much it lowers the sum of squares (of the centred elements).
    #[inline(always)]
    fn on_grid(centred: &[f32; LEN], mean: f32, steps: f32, offset: f32) -> (Self, f32) {
        let (mut s1, mut s2, mut sxq) = ([0.0f32; 8], [0.0f32; 8], [0.0f32; 8]);
        for eight in centred.as_chunks::<8>().0 {
            for l in 0..8 {
                let q = search::clamp(search::round(eight[l] * steps + offset), 0.0, 15.0);
                s1[l] += q;
                s2[l] += q * q;
                sxq[l] += eight[l] * q;
            }
        }
        let (s1, s2, sxq) = (search::sum(s1), search::sum(s2), search::sum(sxq));
        let n = LEN as f32;
        let spread = s2 - s1 * s1 / n;
        let scale = if spread > 0.0 { sxq / spread } else { 0.0 };
        let min = scale * s1 / n - mean;
        if spread > 0.0 && min >= 0.0 {
            return (Self { scale, min, s1, s2 }, sxq * scale);
        }
        // No room for a minimum: the line through the origin.
        let product = sxq + mean * s1;
        if s2 == 0.0 {
            return (Self { scale: 0.0, min: -mean, s1, s2 }, 0.0);
        }
        let through = product / s2;
        let gain = product * through - n * mean * mean;
        if spread > 0.0 {
            (Self { scale, min, s1, s2 }, gain)
        } else {
            (Self { scale: through, min: 0.0, s1, s2 }, gain)
        }
    }

    /// The best scale where the minimum cannot be below 0.
    fn usable_scale(&self) -> f32 {
        if self.min < 0.0 && self.s2 > 0.0 {
            self.scale - self.s1 / self.s2 * self.min
        } else {
            self.scale
        }
    }

    /// The best minimum for a given scale.
    #[inline(always)]
    fn min_for(&self, scale: f32) -> f32 {
        self.min + self.s1 / LEN as f32 * (scale - self.scale)
    }
}

fn total(x: &[f32; LEN]) -> f32 {
    let mut lanes = [0.0f32; 8];
    for eight in x.as_chunks::<8>().0 {
        for l in 0..8 {
            lanes[l] += eight[l];
        }
    }
    search::sum(lanes)
}

/// What a block says about its sub-blocks' lines.
#[derive(Clone, Copy)]
struct Grid {
    d: Half,
    dmin: Half,
    scales: [f32; SUBS],
    mins: [f32; SUBS],
}

/// The number of six-bit steps that the largest scale (or minimum) of a block may take. Above 63
/// it is clipped, which pays where the other sub-blocks gain more.
const TOPS: [f32; 10] = [63.0, 62.0, 61.0, 60.0, 59.0, 58.0, 57.0, 56.0, 55.0, 64.0];

impl Grid {
    /// The six-bit scales and minima that cost least, by the lines' own error forms.
    fn choose(lines: &[Line; SUBS]) -> Self {
        let wanted = lines.map(|line| line.usable_scale());
        let weight = lines.map(|line| line.s2 - line.s1 * line.s1 / LEN as f32);
        let d = best_unit(&wanted, &weight);
        let scales = steps(&wanted, d.to_f32());
        let mut mins = [0.0; SUBS];
        for j in 0..SUBS {
            let min = lines[j].min_for(scales[j] * d.to_f32());
            mins[j] = if min > 0.0 { min } else { 0.0 };
        }
        let dmin = best_unit(&mins, &[LEN as f32; SUBS]);
        Self { d, dmin, scales, mins: steps(&mins, dmin.to_f32()) }
    }

    /// The nearest `q` of a sub-block with these six-bit numbers, and the squared error.
    #[inline(always)]
    fn nearest(&self, x: &[f32; LEN], scale: f32, min: f32) -> ([f32; LEN], f32) {
        let (scale, min) = (self.d.to_f32() * scale, self.dmin.to_f32() * min);
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let mut q = [0.0f32; LEN];
        let mut error = [0.0f32; 8];
        for (x, q) in x.as_chunks::<8>().0.iter().zip(q.as_chunks_mut::<8>().0) {
            for l in 0..8 {
                q[l] = search::round(search::clamp((x[l] + min) * inverse, 0.0, 15.0));
                let off = scale * q[l] - min - x[l];
                error[l] += off * off;
            }
        }
        (q, search::sum(error))
    }
}

/// Six-bit scales up to this one are polished.
const SMALL_SCALE: f32 = 16.0;

/// `wanted` in whole steps of `unit`, 0..=63.
#[inline(always)]
fn steps(wanted: &[f32; SUBS], unit: f32) -> [f32; SUBS] {
    let inverse = if unit > 0.0 { 1.0 / unit } else { 0.0 };
    wanted.map(|v| search::clamp(search::round(search::clamp(v * inverse, 0.0, 63.0)), 0.0, 63.0))
}

/// The half in units of which six-bit numbers come closest to `wanted` (none below 0).
fn best_unit(wanted: &[f32; SUBS], weight: &[f32; SUBS]) -> Half {
    let (_, largest) = search::range(wanted);
    if largest <= 0.0 {
        return Half::from_bits(0);
    }
    let (mut best, mut best_cost) = (largest / 63.0, f32::MAX);
    for top in TOPS {
        let unit = largest / top;
        let near = steps(wanted, unit);
        let mut cost = [0.0f32; SUBS];
        for j in 0..SUBS {
            let off = near[j] * unit - wanted[j];
            cost[j] = weight[j] * off * off;
        }
        let cost = search::sum(cost);
        if cost < best_cost {
            (best, best_cost) = (unit, cost);
        }
    }
    half_unit(best, largest)
}

/// `unit` as a half; upwards where the nearest half is so coarse (a subnormal) that 63 steps of
/// it would not reach `largest`.
fn half_unit(unit: f32, largest: f32) -> Half {
    let half = Half::from_f32(if unit < Half::MAX { unit } else { Half::MAX });
    if half.to_bits() < 0x400 && half.to_f32() * 63.5 < largest {
        return Half::from_bits(half.to_bits() + 1);
    }
    half
}

/// A complete block, and the squared error of each of its sub-blocks.
struct Candidate {
    grid: Grid,
    q: [[f32; LEN]; SUBS],
    errors: [f32; SUBS],
}

impl Candidate {
    /// The nearest `q` of every element.
    fn new(subs: &[[f32; LEN]; SUBS], grid: Grid) -> Self {
        let mut new = Self { grid, q: [[0.0; LEN]; SUBS], errors: [0.0; SUBS] };
        for (j, x) in subs.iter().enumerate() {
            (new.q[j], new.errors[j]) = grid.nearest(x, grid.scales[j], grid.mins[j]);
        }
        new
    }

    fn error(&self) -> f32 {
        search::sum(self.errors)
    }

    /// Tries the neighbours of small six-bit scales, by their true error: there a step is so
    /// large against the scale that the lines' error forms no longer say which is best.
    fn polish(&mut self, subs: &[[f32; LEN]; SUBS], lines: &[Line; SUBS]) {
        let (d, dmin) = (self.grid.d.to_f32(), self.grid.dmin.to_f32());
        let per_dmin = if dmin > 0.0 { 1.0 / dmin } else { 0.0 };
        for (j, x) in subs.iter().enumerate() {
            let scale = self.grid.scales[j];
            if scale > SMALL_SCALE || self.errors[j] == 0.0 {
                continue;
            }
            for scale in [scale - 1.0, scale, scale + 1.0] {
                if scale < 0.0 {
                    continue;
                }
                let min =
                    search::round(search::clamp(lines[j].min_for(scale * d) * per_dmin, 1.0, 62.0));
                for min in [min - 1.0, min, min + 1.0] {
                    let (q, error) = self.grid.nearest(x, scale, min);
                    if error < self.errors[j] {
                        (self.q[j], self.errors[j]) = (q, error);
                        (self.grid.scales[j], self.grid.mins[j]) = (scale, min);
                    }
                }
            }
        }
    }

    /// The same scales, minima and `q` with `d` and `dmin` by least squares; then the nearest
    /// `q` again.
    fn refine(&self, subs: &[[f32; LEN]; SUBS]) -> Self {
        // x ~ d * u - dmin * v, with u = scale * q and v = min.
        let (mut uu, mut uv, mut vv, mut xu, mut xv) = (0.0f32, 0.0f32, 0.0f32, 0.0f32, 0.0f32);
        for (j, (x, q)) in subs.iter().zip(&self.q).enumerate() {
            let (mut s1, mut s2) = ([0.0f32; 8], [0.0f32; 8]);
            let (mut sx, mut sxq) = ([0.0f32; 8], [0.0f32; 8]);
            for (x, q) in x.as_chunks::<8>().0.iter().zip(q.as_chunks::<8>().0) {
                for l in 0..8 {
                    s1[l] += q[l];
                    s2[l] += q[l] * q[l];
                    sx[l] += x[l];
                    sxq[l] += x[l] * q[l];
                }
            }
            let (scale, min) = (self.grid.scales[j], self.grid.mins[j]);
            uu += scale * scale * search::sum(s2);
            uv += scale * min * search::sum(s1);
            vv += min * min * LEN as f32;
            xu += scale * search::sum(sxq);
            xv += min * search::sum(sx);
        }
        let determinant = uu * vv - uv * uv;
        let (d, dmin) = if determinant > 1e-6 * uu * vv {
            ((xu * vv - xv * uv) / determinant, (xu * uv - xv * uu) / determinant)
        } else if uu > 0.0 {
            (xu / uu, 0.0)
        } else if vv > 0.0 {
            (0.0, -xv / vv)
        } else {
            (0.0, 0.0)
        };
        let half = |v: f32| Half::from_f32(search::clamp(v, 0.0, Half::MAX));
        Self::new(subs, Grid { d: half(d), dmin: half(dmin), ..self.grid })
    }

    fn pack(&self) -> BlockQ4K {
        let mut qs = [0u8; 128];
        for (group, bytes) in qs.as_chunks_mut::<LEN>().0.iter_mut().enumerate() {
            let (low, high) = (&self.q[2 * group], &self.q[2 * group + 1]);
            for i in 0..LEN {
                bytes[i] = search::byte(low[i] + 16.0 * high[i]);
            }
        }
        let scales =
            ScaleMins::pack(self.grid.scales.map(search::byte), self.grid.mins.map(search::byte));
        BlockQ4K { d: self.grid.d, dmin: self.grid.dmin, scales, qs }
    }
}
