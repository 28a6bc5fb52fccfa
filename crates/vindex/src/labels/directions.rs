//! Output directions of consecutive features, as rows.

use larql_compute::{ComputeError, Matrix, dequantize_row};

use crate::search::norm::length;

/// Columns that are turned into rows together: they share cache lines of the destination.
const TILE: usize = 16;

/// Directions as rows, each scaled by a power of two to a length in [1, 2).
#[derive(Debug, Default)]
pub(super) struct Directions {
    cols: usize,
    values: Vec<f32>, // [len, cols]
    scales: Vec<Scale>,
}

#[derive(Debug, Clone, Copy)]
struct Scale {
    length: f32,
    power: f64,
}

/// One direction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Direction<'a> {
    /// The direction divided by `power`.
    pub(super) values: &'a [f32],
    /// Length of `values`, in [1, 2]; 0 for a direction that is zero.
    pub(super) length: f32,
    /// A power of two.
    pub(super) power: f64,
}

impl Directions {
    /// No directions yet, of `cols` elements each.
    pub(super) fn new(cols: usize) -> Self {
        Self { cols, values: Vec::new(), scales: Vec::new() }
    }

    /// Bytes that one direction takes.
    pub(super) fn bytes_per_direction(cols: usize) -> usize {
        cols * size_of::<f32>() + size_of::<Scale>()
    }

    /// Removes all, keeping the memory.
    pub(super) fn clear(&mut self) {
        self.values.clear();
        self.scales.clear();
    }

    /// Adds the columns `first .. first + n` of `down` (`[cols, n_features]`), each passed through
    /// `apply` first.
    ///
    /// # Errors
    /// A column with a value that is not finite; the position is the column.
    pub(super) fn push_columns(
        &mut self,
        down: Matrix<'_>,
        first: usize,
        n: usize,
        apply: impl Fn(&mut [f32]),
    ) -> Result<(), ComputeError> {
        assert!(down.rows() == self.cols && first + n <= down.cols(), "columns within the matrix");
        let start = self.values.len();
        self.values.resize(start + n * self.cols, 0.0);
        let added = &mut self.values[start..];
        // Only the blocks that hold the columns are dequantised.
        let block = down.dtype().block_len();
        let blocks = first / block..(first + n).div_ceil(block);
        let bytes =
            blocks.start * down.dtype().block_bytes()..blocks.end * down.dtype().block_bytes();
        let skip = first - blocks.start * block;
        let mut rows = vec![0.0; TILE * blocks.len() * block];
        let width = blocks.len() * block;
        for r in (0..self.cols).step_by(TILE) {
            let height = TILE.min(self.cols - r);
            for (i, row) in rows.chunks_exact_mut(width).take(height).enumerate() {
                dequantize_row(down.dtype(), &down.row_bytes(r + i)[bytes.clone()], row);
            }
            for (column, out) in added.chunks_exact_mut(self.cols).enumerate() {
                for (i, out) in out[r..r + height].iter_mut().enumerate() {
                    *out = rows[i * width + skip + column];
                }
            }
        }
        for (i, direction) in added.chunks_exact_mut(self.cols).enumerate() {
            apply(direction);
            let Some(scale) = normalise(direction) else {
                return Err(ComputeError::NotFinite {
                    what: "the output direction of a feature",
                    position: first + i,
                    value: f32::NAN,
                });
            };
            self.scales.push(scale);
        }
        Ok(())
    }

    /// Number of directions.
    pub(super) fn len(&self) -> usize {
        self.scales.len()
    }

    /// Direction `i`.
    pub(super) fn get(&self, i: usize) -> Direction<'_> {
        let Scale { length, power } = self.scales[i];
        Direction { values: &self.values[i * self.cols..(i + 1) * self.cols], length, power }
    }

    /// All directions in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Direction<'_>> {
        (0..self.len()).map(|i| self.get(i))
    }
}

/// Divides by the power of two below the length; `None` where something is not finite.
fn normalise(direction: &mut [f32]) -> Option<Scale> {
    let whole = length(direction);
    if !whole.is_finite() {
        return None;
    }
    if whole == 0.0 {
        return Some(Scale { length: 0.0, power: 1.0 });
    }
    // Sign and exponent alone. The length lies between 2⁻¹⁴⁹ and 2¹⁵⁰, so it is a normal number.
    let power = f64::from_bits(whole.to_bits() & (u64::MAX << 52));
    direction.iter_mut().for_each(|v| *v = (f64::from(*v) / power) as f32);
    Some(Scale { length: length(direction) as f32, power })
}
