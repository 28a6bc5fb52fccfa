//! The bit fields that the 32-element formats share.

/// Element `i` of 32 four-bit values: ggml stores elements 0..16 in the low halves of 16 bytes
/// and 16..32 in the high halves (planar, not interleaved).
#[inline(always)]
pub(crate) fn unpack(packed: &[u8; 16]) -> [u8; 32] {
    let mut out = [0; 32];
    let (low, high) = out.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(packed) {
        *low = byte & 15;
        *high = byte >> 4;
    }
    out
}

/// Unpacks five-bit values: the low four as [`unpack`], the fifth of element `i` in bit `i` of
/// the little-endian `high`.
#[inline(always)]
pub(crate) fn unpack_five(packed: &[u8; 16], high: [u8; 4]) -> [u8; 32] {
    let mut out = unpack(packed);
    let high = u32::from_le_bytes(high);
    for (i, value) in out.iter_mut().enumerate() {
        *value |= ((high >> i) as u8 & 1) << 4;
    }
    out
}
