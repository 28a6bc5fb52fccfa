//! `KvBuffer`: the keys and values of one layer.

use crate::{ComputeError, Cpu, Dtype, quantize_row};

/// Positions that attention takes at a time. A buffer holds whole tiles, so that a tile's rows
/// stand together even where the buffer is a ring.
pub(super) const TILE: usize = 64;

/// What a [`KvBuffer`] holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Elements of a key head.
    pub head_dim: usize,
    /// Elements of a value head.
    pub head_dim_v: usize,
    /// Whether a value is the first `head_dim_v` elements of its key and not stored again (the
    /// latent of multi-head latent attention).
    pub values_in_keys: bool,
}

/// Keys and values of the latest positions of one layer: a ring of `capacity` positions, of which
/// position `p` has slot `p % capacity`. Stored as `[n_kv_heads, capacity, head_dim]`.
#[derive(Debug)]
pub struct KvBuffer {
    shape: KvShape,
    dtype: Dtype,
    capacity: usize,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl KvBuffer {
    /// A buffer for at least `positions` positions, in F32, F16 or Q8_0. The memory is taken when
    /// it is first written.
    ///
    /// # Errors
    /// A head that is not whole blocks of `dtype`, values wider than the keys that hold them, a
    /// size beyond the address space.
    pub fn new(shape: KvShape, dtype: Dtype, positions: usize) -> Result<Self, ComputeError> {
        let KvShape { n_kv_heads, head_dim, head_dim_v, values_in_keys } = shape;
        if values_in_keys && head_dim_v > head_dim {
            return Err(ComputeError::VectorLength {
                what: "a value within its key",
                expected: head_dim,
                found: head_dim_v,
            });
        }
        let capacity = positions.max(1).next_multiple_of(TILE);
        let bytes = |dim: usize| -> Result<usize, ComputeError> {
            let too_large = ComputeError::TooLarge { dtype, rows: capacity, cols: dim };
            let row = dtype.row_bytes(dim)?;
            n_kv_heads.checked_mul(capacity).and_then(|n| n.checked_mul(row)).ok_or(too_large)
        };
        let keys = vec![0; bytes(head_dim)?];
        let values = vec![0; if values_in_keys { 0 } else { bytes(head_dim_v)? }];
        Ok(Self { shape, dtype, capacity, keys, values })
    }

    /// What it holds.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// How keys and values are stored.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Positions that it holds at a time.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        self.keys.len() + self.values.len()
    }

    /// Bytes of the keys and values of one position.
    pub fn position_bytes(&self) -> usize {
        self.bytes() / self.capacity
    }

    /// Stores the keys, `[n, n_kv_heads, head_dim]`, and values, `[n, n_kv_heads, head_dim_v]`, of
    /// the positions from `first` on, over those of `capacity` positions before. Values that are
    /// part of their keys are not given.
    ///
    /// # Errors
    /// Wrong lengths, more positions than the capacity; a number that `dtype` cannot hold.
    pub fn write(
        &mut self,
        first: usize,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), ComputeError> {
        let KvShape { n_kv_heads, head_dim, head_dim_v, values_in_keys } = self.shape;
        let n = keys.len().checked_div(n_kv_heads * head_dim).unwrap_or(0);
        let expected = if values_in_keys { 0 } else { n * n_kv_heads * head_dim_v };
        let lengths = [
            ("the keys", n.min(self.capacity) * n_kv_heads * head_dim, keys.len()),
            ("the values", expected, values.len()),
        ];
        for (what, expected, found) in lengths {
            if expected != found {
                return Err(ComputeError::VectorLength { what, expected, found });
            }
        }
        let (dtype, capacity) = (self.dtype, self.capacity);
        store(dtype, capacity, first, (n_kv_heads, head_dim), keys, &mut self.keys)?;
        store(dtype, capacity, first, (n_kv_heads, head_dim_v), values, &mut self.values)
    }

    /// The keys and values of `n` positions from `first` on, which are within one tile, of one
    /// head: `[n, head_dim]` and `[n, head_dim_v]`.
    pub(super) fn tile(
        &self,
        cpu: &Cpu,
        head: usize,
        first: usize,
        keys: &mut [f32],
        values: &mut [f32],
    ) {
        let KvShape { head_dim, head_dim_v, values_in_keys, .. } = self.shape;
        let slot = head * self.capacity + first % self.capacity;
        let rows = |bytes: &[u8], dim: usize, out: &mut [f32]| {
            let row = self.dtype.block_bytes() * (dim / self.dtype.block_len());
            let len = out.len() / dim.max(1) * row;
            cpu.kernels().row(self.dtype, &bytes[slot * row..slot * row + len], out);
        };
        rows(&self.keys, head_dim, keys);
        if values_in_keys {
            let pairs = keys.chunks_exact(head_dim).zip(values.chunks_exact_mut(head_dim_v));
            pairs.for_each(|(key, value)| value.copy_from_slice(&key[..head_dim_v]));
        } else {
            rows(&self.values, head_dim_v, values);
        }
    }
}

/// Stores rows `[n, heads, dim]` into `[heads, capacity, dim]`.
fn store(
    dtype: Dtype,
    capacity: usize,
    first: usize,
    (heads, dim): (usize, usize),
    rows: &[f32],
    out: &mut [u8],
) -> Result<(), ComputeError> {
    if rows.is_empty() {
        return Ok(());
    }
    let row_bytes = dtype.row_bytes(dim)?;
    for (i, row) in rows.chunks_exact(dim).enumerate() {
        let (position, head) = (first + i / heads, i % heads);
        let slot = head * capacity + position % capacity;
        quantize_row(dtype, row, &mut out[slot * row_bytes..(slot + 1) * row_bytes])?;
    }
    Ok(())
}
