//! The arithmetic that every instruction set must reproduce bit for bit, and its scalar twin.
//!
//! Two dot products are fixed here, down to the order of every rounding (`docs/NUMERICS.md` has
//! them in full): the canonical float32 one over dequantised values, and the integer one over a
//! quantised vector of [`Activations`](crate::Activations). What only one instruction set knows is in `arch`.

pub(crate) mod integers;
pub(crate) mod panel;
pub(crate) mod scalar;
pub(crate) mod vector;

/// Accumulators of the canonical float32 dot product: element `i` belongs to lane `i % 32`.
pub(crate) const LANES: usize = 32;

/// Accumulators of the integer dot product: lane `8 * (b % 2) + j` takes elements `4j..4j + 4` of
/// block `b`.
pub(crate) const Q8_LANES: usize = 16;

/// Sums the lanes of the canonical dot product in its fixed order.
#[inline]
pub(crate) fn reduce(a: &[f32; LANES]) -> f32 {
    let s: [f32; 8] = std::array::from_fn(|j| (a[j] + a[j + 8]) + (a[j + 16] + a[j + 24]));
    reduce_8(&s)
}

/// Sums the lanes of the integer dot product in its fixed order: `products`, then the lanes of
/// what the formats' minimums contribute.
#[inline]
pub(crate) fn reduce_q8(products: &[f32; Q8_LANES], minimums: &[f32; 8]) -> f32 {
    let s: [f32; 8] = std::array::from_fn(|j| products[j] + products[j + 8]);
    reduce_8(&s) - reduce_8(minimums)
}

#[inline]
fn reduce_8(s: &[f32; 8]) -> f32 {
    let t: [f32; 4] = std::array::from_fn(|j| s[j] + s[j + 4]);
    (t[0] + t[2]) + (t[1] + t[3])
}
