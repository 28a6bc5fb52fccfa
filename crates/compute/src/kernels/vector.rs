//! The float32 arithmetic between the products of a forward pass: norms, non-linearities, and the
//! inner loops of attention. Plain code with a fixed order of every rounding, written in lanes so
//! that it vectorises; `arch::vector` compiles it once for each instruction set, and every one of
//! them gives the same bits.

/// Accumulators of a sum: element `i` belongs to lane `i % 16`.
const LANES: usize = 16;

/// Keys that are held against a query in one pass.
const KEYS: usize = 4;

/// Columns of values that are summed in one pass.
const COLUMNS: usize = 64;

/// The sum of the lanes, halves added until one is left.
#[inline(always)]
fn reduce(lanes: [f32; LANES]) -> f32 {
    let mut lanes = lanes;
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

/// The sum of `term(x[i])`.
#[inline(always)]
fn sum_of(x: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &v) in lanes.iter_mut().zip(chunk) {
            *lane = term(*lane, v);
        }
    }
    for (lane, &v) in lanes.iter_mut().zip(rest) {
        *lane = term(*lane, v);
    }
    reduce(lanes)
}

/// `out = x / sqrt(mean(x^2) + eps) * weight`.
#[inline(always)]
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mean = sum_of(x, |sum, v| v.mul_add(v, sum)) / x.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    for ((out, &x), &w) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * w;
    }
}

/// `out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias`.
#[inline(always)]
pub(crate) fn layer_norm(x: &[f32], [weight, bias]: [&[f32]; 2], eps: f32, out: &mut [f32]) {
    let mean = sum_of(x, |sum, v| sum + v) / x.len() as f32;
    let squares = |sum: f32, v: f32| {
        let d = v - mean;
        d.mul_add(d, sum)
    };
    let scale = 1.0 / (sum_of(x, squares) / x.len() as f32 + eps).sqrt();
    for (((out, &x), &w), &b) in out.iter_mut().zip(x).zip(weight).zip(bias) {
        *out = ((x - mean) * scale).mul_add(w, b);
    }
}

/// `e^x`, within 2 units in the last place; 0 below -87.3, finite above 88.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; `e^r` by its Taylor polynomial of degree 7, whose
/// remainder there is below 6e-9; the power of two by its exponent bits.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LN_2_HIGH: f32 = 0.693_145_75;
    const LN_2_LOW: f32 = 1.428_606_8e-6;
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    let clamped = x.clamp(-87.3, 88.0);
    let n = clamped.mul_add(std::f32::consts::LOG2_E, ROUND) - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, clamped));
    let mut p = 1.0 / 5040.0;
    p = r.mul_add(p, 1.0 / 720.0);
    p = r.mul_add(p, 1.0 / 120.0);
    p = r.mul_add(p, 1.0 / 24.0);
    p = r.mul_add(p, 1.0 / 6.0);
    p = r.mul_add(p, 0.5);
    p = r.mul_add(p, 1.0);
    p = r.mul_add(p, 1.0);
    let power = f32::from_bits(((n as i32 + 127) as u32) << 23);
    if x < -87.3 { 0.0 } else { p * power }
}

/// `x * sigmoid(x)` in place.
#[inline(always)]
pub(crate) fn silu(x: &mut [f32]) {
    for x in x {
        *x /= 1.0 + exp(-*x);
    }
}

/// GELU by its tanh approximation, in place: `x (1 + tanh(u)) / 2 = x sigmoid(2 u)` with
/// `u = sqrt(2 / pi) (x + 0.044715 x^3)`.
#[inline(always)]
pub(crate) fn gelu_tanh(x: &mut [f32]) {
    const TWO_ROOT: f32 = 1.595_769; // 2 sqrt(2 / pi)
    for x in x {
        let cubic = (0.044_715 * *x * *x).mul_add(*x, *x);
        *x /= 1.0 + exp(-TWO_ROOT * cubic);
    }
}

/// `y *= x`.
#[inline(always)]
pub(crate) fn multiply(y: &mut [f32], x: &[f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y *= x;
    }
}

/// `cap * tanh(x / cap)` in place.
#[inline(always)]
pub(crate) fn softcap(x: &mut [f32], cap: f32) {
    for x in x {
        // tanh(z) = 1 - 2 / (e^2z + 1); near 0 that cancels, and z - z^3 / 3 is exact enough.
        let z = *x / cap;
        let near = (z * z * z).mul_add(-1.0 / 3.0, z);
        let far = 1.0 - 2.0 / (exp(2.0 * z) + 1.0);
        *x = cap * if z.abs() < 0.03 { near } else { far };
    }
}

/// The largest element; minus infinity of none. NaN is passed over.
#[inline(always)]
pub(crate) fn max(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &v) in lanes.iter_mut().zip(chunk) {
            *lane = if v > *lane { v } else { *lane };
        }
    }
    rest.iter().chain(&lanes).fold(f32::NEG_INFINITY, |m, &v| if v > m { v } else { m })
}

/// `x[i] = e^(x[i] - shift)`; the sum of them.
#[inline(always)]
pub(crate) fn exp_sum(x: &mut [f32], shift: f32) -> f32 {
    for v in x.iter_mut() {
        *v = exp(*v - shift);
    }
    sum_of(x, |sum, v| sum + v)
}

/// `scores[t] = q · keys[t]`; `keys` is `[scores.len(), q.len()]`.
#[inline(always)]
pub(crate) fn scores(q: &[f32], keys: &[f32], scores: &mut [f32]) {
    let width = q.len();
    if width == 0 {
        return scores.fill(0.0);
    }
    let whole = width / LANES * LANES;
    let (q_chunks, q_rest) = q.as_chunks::<LANES>();
    for (keys, scores) in keys.chunks(KEYS * width).zip(scores.chunks_mut(KEYS)) {
        let mut lanes = [[0.0_f32; LANES]; KEYS];
        if scores.len() == KEYS {
            let (k0, rest) = keys.split_at(width);
            let (k1, rest) = rest.split_at(width);
            let (k2, k3) = rest.split_at(width);
            let chunks = [k0, k1, k2, k3].map(|k| k.as_chunks::<LANES>().0);
            for (c, q) in q_chunks.iter().enumerate() {
                for (lanes, k) in lanes.iter_mut().zip(chunks) {
                    for i in 0..LANES {
                        lanes[i] = q[i].mul_add(k[c][i], lanes[i]);
                    }
                }
            }
        } else {
            for (lanes, key) in lanes.iter_mut().zip(keys.chunks_exact(width)) {
                for (q, k) in q_chunks.iter().zip(key.as_chunks::<LANES>().0) {
                    for i in 0..LANES {
                        lanes[i] = q[i].mul_add(k[i], lanes[i]);
                    }
                }
            }
        }
        for ((score, lanes), key) in scores.iter_mut().zip(&mut lanes).zip(keys.chunks_exact(width))
        {
            for ((lane, &q), &k) in lanes.iter_mut().zip(q_rest).zip(&key[whole..]) {
                *lane = q.mul_add(k, *lane);
            }
            *score = reduce(*lanes);
        }
    }
}

/// `sum = factor * sum + weights · values`; `values` is `[weights.len(), sum.len()]`.
#[inline(always)]
pub(crate) fn weighted_sum(weights: &[f32], values: &[f32], factor: f32, sum: &mut [f32]) {
    let width = sum.len();
    if width == 0 {
        return;
    }
    for (block, sum) in sum.chunks_mut(COLUMNS).enumerate() {
        let rows = values.chunks_exact(width).map(|row| &row[block * COLUMNS..]);
        if let Ok(sum) = <&mut [f32; COLUMNS]>::try_from(&mut *sum) {
            let mut lanes = sum.map(|s| s * factor);
            for (row, &w) in rows.zip(weights) {
                if let Some((row, _)) = row.split_first_chunk::<COLUMNS>() {
                    for (lane, &v) in lanes.iter_mut().zip(row) {
                        *lane = w.mul_add(v, *lane);
                    }
                }
            }
            *sum = lanes;
        } else {
            for s in sum.iter_mut() {
                *s *= factor;
            }
            for (row, &w) in rows.zip(weights) {
                for (s, &v) in sum.iter_mut().zip(row) {
                    *s = w.mul_add(v, *s);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let mut worst = 0.0_f64;
        for i in -870_000..=880_000 {
            let x = i as f32 * 1e-4;
            let truth = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - truth).abs() / truth);
        }
        assert!(worst < 2.0 * f64::from(f32::EPSILON), "{worst:e}");
        assert_eq!(exp(-200.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(1000.0).is_finite());
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn non_linearities_match_their_definitions() {
        for i in -400..=400 {
            let x = i as f32 * 0.05;
            let d = f64::from(x);
            let mut v = [x];
            silu(&mut v);
            assert!((f64::from(v[0]) - d / (1.0 + (-d).exp())).abs() < 2e-6, "silu {x}");
            let mut v = [x];
            gelu_tanh(&mut v);
            let u = (2.0 / std::f64::consts::PI).sqrt() * (d + 0.044_715 * d * d * d);
            assert!((f64::from(v[0]) - 0.5 * d * (1.0 + u.tanh())).abs() < 2e-6, "gelu {x}");
            let mut v = [x * 10.0];
            softcap(&mut v, 30.0);
            assert!((f64::from(v[0]) - 30.0 * (d / 3.0).tanh()).abs() < 1e-5, "softcap {x}");
        }
        let mut huge = [-3e4_f32, 3e4];
        gelu_tanh(&mut huge);
        assert!(huge[0] > -1e-30 && huge[1] == 3e4, "{huge:?}");
    }

    #[test]
    fn attention_loops_match_plain_sums() {
        for (width, n) in [(1, 1), (5, 3), (16, 4), (24, 7), (64, 9), (80, 13), (257, 6)] {
            let number = |i: usize| ((i * 37 + 11) % 101) as f32 / 50.0 - 1.0;
            let q: Vec<f32> = (0..width).map(number).collect();
            let rows: Vec<f32> = (0..width * n).map(|i| number(i + 5)).collect();
            let mut found = vec![0.0; n];
            scores(&q, &rows, &mut found);
            for (t, score) in found.iter().enumerate() {
                let truth: f32 = (0..width).map(|i| q[i] * rows[t * width + i]).sum();
                assert!((score - truth).abs() < 1e-4, "{width} {n}: {score} {truth}");
            }
            let mut sum: Vec<f32> = q.clone();
            weighted_sum(&found, &rows, 0.5, &mut sum);
            for (i, s) in sum.iter().enumerate() {
                let truth: f32 =
                    0.5 * q[i] + (0..n).map(|t| found[t] * rows[t * width + i]).sum::<f32>();
                assert!((s - truth).abs() < 1e-3, "{width} {n}: {s} {truth}");
            }
        }
    }
}
