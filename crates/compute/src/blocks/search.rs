//! Rounding and sums for the quantisers, written so that they vectorise for any instruction set
//! and give the same bits on each: no fused multiply-add, sums in eight fixed lanes.

/// `x` rounded to the nearest integer, ties to even, for `|x| < 2^22`: adding 1.5 * 2^23 leaves
/// no bits for a fraction. (`f32::round_ties_even` is a function call where SSE4.1 is not assumed.)
#[inline(always)]
pub(super) fn round(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC) - MAGIC
}

/// `x` within `low..=high`. Unlike `f32::clamp`, two instructions: no NaN is expected.
#[inline(always)]
pub(super) fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > low { x } else { low };
    if x < high { x } else { high }
}

/// An integer of 0..=255 held in a float, as a byte; like [`round`], by where the mantissa ends.
#[inline(always)]
pub(super) fn byte(x: f32) -> u8 {
    (x + 8_388_608.0).to_bits() as u8
}

/// The sum of eight lanes.
#[inline(always)]
pub(super) fn sum(lanes: [f32; 8]) -> f32 {
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// The smallest and the largest of `values`.
#[inline(always)]
pub(super) fn range<const N: usize>(values: &[f32; N]) -> (f32, f32) {
    let (mut low, mut high) = ([f32::MAX; 8], [f32::MIN; 8]);
    for eight in values.as_chunks::<8>().0 {
        for l in 0..8 {
            low[l] = if eight[l] < low[l] { eight[l] } else { low[l] };
            high[l] = if eight[l] > high[l] { eight[l] } else { high[l] };
        }
    }
    let smallest = low.into_iter().fold(f32::MAX, |a, b| if b < a { b } else { a });
    let largest = high.into_iter().fold(f32::MIN, |a, b| if b > a { b } else { a });
    (smallest, largest)
}

/// The first value of the largest magnitude, with its sign.
#[inline(always)]
pub(super) fn peak<const N: usize>(values: &[f32; N]) -> f32 {
    let (low, high) = range(values);
    if high > -low {
        high
    } else if high < -low {
        low
    } else {
        *values.iter().find(|v| v.abs() == high.abs()).unwrap_or(&0.0)
    }
}
