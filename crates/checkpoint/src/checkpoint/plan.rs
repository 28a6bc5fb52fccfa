//! `Plan`: how one canonical tensor is put together from Hugging Face tensors, row by row.

use larql_compute::{Dtype, Matrix};

use super::TensorEntry;
use crate::safetensors::{Safetensors, SafetensorsTensor};

/// Where the rows of a canonical tensor come from. Tensors are named by their index in the
/// [`Safetensors`]; shapes have been checked against the entry's.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Plan {
    /// Rows of tensors that are stacked, one for each expert, or of a single one.
    Rows { parts: Vec<usize>, order: Order },
    /// Columns of a tensor become rows: row `r` is column `r % per_block`, read over the source
    /// rows that begin at `r / per_block * stride`.
    Columns { part: usize, per_block: usize, stride: usize },
    /// A vector whose elements are reordered and shifted; it comes out as F32.
    Vector { part: usize, order: Order, plus: f32 },
    /// Numbers that the source keeps in its configuration; they come out as F32.
    Computed(Vec<f32>),
}

/// Which source row (or element of a vector) stands at a canonical one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The same.
    Same,
    /// Within heads of `head` rows, the two halves are interleaved: 0, head/2, 1, head/2 + 1, …
    Interleave { head: usize },
    /// Of every `stride` source rows, the `len` from `first` on.
    Within { stride: usize, first: usize, len: usize },
}

impl Order {
    fn source(self, row: usize) -> usize {
        match self {
            Self::Same => row,
            Self::Interleave { head } => {
                let (start, i) = (row / head * head, row % head);
                start + i / 2 + i % 2 * (head / 2)
            }
            Self::Within { stride, first, len } => row / len * stride + first + row % len,
        }
    }
}

impl Plan {
    /// The dtype that rows come out in, where the role does not fix it.
    pub(super) fn dtype(&self, files: &Safetensors) -> Dtype {
        match self {
            Self::Rows { parts, .. } => {
                parts.first().map_or(Dtype::F32, |p| files.tensors()[*p].dtype())
            }
            Self::Columns { part, .. } => files.tensors()[*part].dtype(),
            Self::Vector { .. } | Self::Computed(_) => Dtype::F32,
        }
    }

    /// The whole tensor in place, where nothing is to be done to it.
    pub(super) fn matrix<'a>(
        &self,
        files: &'a Safetensors,
        entry: &TensorEntry,
    ) -> Option<Matrix<'a>> {
        let part = match self {
            Self::Rows { parts, order: Order::Same } => match parts.as_slice() {
                [part] => *part,
                _ => return None,
            },
            Self::Vector { part, order: Order::Same, plus } if *plus == 0.0 => *part,
            _ => return None,
        };
        let tensor = &files.tensors()[part];
        if tensor.dtype() != entry.dtype {
            return None;
        }
        Matrix::new(entry.dtype, entry.rows, entry.cols, tensor.bytes()).ok()
    }

    /// Writes row `row` of `entry` to `out`, in the entry's dtype.
    pub(super) fn read_row(
        &self,
        files: &Safetensors,
        entry: &TensorEntry,
        row: usize,
        out: &mut [u8],
    ) {
        assert!(row < entry.rows, "row {row} of {}", entry.rows);
        let width = entry.dtype.block_bytes();
        assert_eq!(out.len(), entry.cols * width, "one row of {}", entry.name);
        match self {
            Self::Rows { parts, order } => {
                let per_part = entry.rows / parts.len();
                let tensor = &files.tensors()[parts[row / per_part]];
                let source = tensor.matrix().row_bytes(order.source(row % per_part));
                if tensor.dtype() == entry.dtype {
                    out.copy_from_slice(source);
                } else {
                    let from = source.chunks_exact(tensor.dtype().block_bytes());
                    for (to, from) in out.chunks_exact_mut(width).zip(from) {
                        to.copy_from_slice(&to_f32(tensor.dtype(), from).to_le_bytes());
                    }
                }
            }
            Self::Columns { part, per_block, stride } => {
                let tensor = &files.tensors()[*part];
                let (first, column) = (row / per_block * stride, row % per_block);
                let bytes = tensor.bytes();
                for (i, to) in out.chunks_exact_mut(width).enumerate() {
                    let at = ((first + i) * tensor.cols() + column) * width;
                    to.copy_from_slice(&bytes[at..at + width]);
                }
            }
            Self::Vector { part, order, plus } => {
                let tensor = &files.tensors()[*part];
                for (i, to) in out.chunks_exact_mut(width).enumerate() {
                    let value = element(tensor, order.source(i)) + plus;
                    to.copy_from_slice(&value.to_le_bytes());
                }
            }
            Self::Computed(values) => {
                for (value, to) in values.iter().zip(out.chunks_exact_mut(width)) {
                    to.copy_from_slice(&value.to_le_bytes());
                }
            }
        }
    }
}

fn element(tensor: &SafetensorsTensor, index: usize) -> f32 {
    let width = tensor.dtype().block_bytes();
    to_f32(tensor.dtype(), &tensor.bytes()[index * width..(index + 1) * width])
}

/// One element of a float tensor; safetensors are read in no other dtypes.
fn to_f32(dtype: Dtype, bytes: &[u8]) -> f32 {
    match (dtype, bytes) {
        (Dtype::F16, &[a, b]) => half::f16::from_le_bytes([a, b]).to_f32(),
        (Dtype::BF16, &[a, b]) => half::bf16::from_le_bytes([a, b]).to_f32(),
        (_, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        _ => f32::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_become_pairs_within_each_head() {
        let order = Order::Interleave { head: 6 };
        let rows: Vec<usize> = (0..12).map(|r| order.source(r)).collect();
        assert_eq!(rows, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
    }

    #[test]
    fn a_part_of_every_head_is_taken() {
        let order = Order::Within { stride: 5, first: 3, len: 2 };
        let rows: Vec<usize> = (0..6).map(|r| order.source(r)).collect();
        assert_eq!(rows, [3, 4, 8, 9, 13, 14]);
    }
}
