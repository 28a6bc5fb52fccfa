//! Making the planes of a head.

use super::{HOT_OFFSET, LANES, LEVEL_OFFSET, LEVELS, PlanesLayout, WORD};
use crate::{ComputeError, Cpu, Matrix};

/// The smallest scale that is stored: far from where float32 loses bits.
const SMALLEST: f32 = 1e-30;
/// Rows whose sum one worker takes at a time.
const MEAN_ROWS: usize = 4096;
/// Rounds of the search for the best scale.
const ROUNDS: usize = 3;

/// The columns of a head by how large the hidden state usually is there, largest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnOrder(Vec<u32>);

impl ColumnOrder {
    /// From the mean |h| of each column; NaN counts as zero, ties by lower column.
    pub fn new(mean_abs: &[f32]) -> Self {
        let mut order: Vec<u32> = (0..mean_abs.len() as u32).collect();
        let size = |column: u32| {
            let size = mean_abs[column as usize].abs();
            if size.is_nan() { 0.0 } else { size }
        };
        order.sort_by(|&a, &b| size(b).total_cmp(&size(a)).then(a.cmp(&b)));
        Self(order)
    }

    /// From the columns themselves; `None` where they are no permutation.
    pub fn from_columns(columns: Vec<u32>) -> Option<Self> {
        let mut seen = vec![false; columns.len()];
        for &column in &columns {
            let seen = seen.get_mut(column as usize)?;
            if std::mem::replace(seen, true) {
                return None;
            }
        }
        Some(Self(columns))
    }

    /// The columns, in order.
    pub fn columns(&self) -> &[u32] {
        &self.0
    }
}

/// The mean of the rows of `m` whose values are all finite, `[cols]`.
///
/// # Errors
/// None for a valid matrix.
pub fn mean_row(cpu: &Cpu, m: Matrix<'_>) -> Result<Vec<f32>, ComputeError> {
    let cols = m.cols();
    let mut parts = vec![(vec![0.0_f64; cols], 0_usize); m.rows().div_ceil(MEAN_ROWS)];
    cpu.pool().for_each_chunk(&mut parts, 1, |first, parts| {
        let mut row = vec![0.0; cols];
        for (i, (sums, n)) in parts.iter_mut().enumerate() {
            let start = (first + i) * MEAN_ROWS;
            for r in start..m.rows().min(start + MEAN_ROWS) {
                cpu.kernels().row(m.dtype(), m.row_bytes(r), &mut row);
                if row.iter().all(|v| v.is_finite()) {
                    *n += 1;
                    sums.iter_mut().zip(&row).for_each(|(sum, v)| *sum += f64::from(*v));
                }
            }
        }
    });
    let n: usize = parts.iter().map(|(_, n)| n).sum();
    Ok((0..cols)
        .map(|c| {
            let sum: f64 = parts.iter().map(|(sums, _)| sums[c]).sum();
            let mean = (sum / n.max(1) as f64) as f32;
            if mean.is_finite() { mean } else { 0.0 }
        })
        .collect())
}

/// The planes of consecutive rows of a head, 16 rows a block: into `blocks`,
/// `[n_blocks, block_bytes]`, and `norms`, `[n_blocks]`: no row of the block, and no row that its
/// codes stand for, is longer. Infinite where a row has no place in the planes; it is then always
/// looked at.
///
/// # Errors
/// Wrong lengths.
pub fn build_planes(
    cpu: &Cpu,
    m: Matrix<'_>,
    order: &ColumnOrder,
    mean: &[f32],
    blocks: &mut [u8],
    norms: &mut [f32],
) -> Result<(), ComputeError> {
    let layout = PlanesLayout::new(m.cols());
    let (n, size) = (PlanesLayout::n_blocks(m.rows()), layout.block_bytes());
    crate::cpu::check_len("the column order", m.cols(), order.0.len())?;
    crate::cpu::check_len("the mean row", m.cols(), mean.len())?;
    crate::cpu::check_len("the planes", n * size, blocks.len())?;
    crate::cpu::check_len("the norms", n, norms.len())?;
    let nearest = nearest_levels();
    let mut both: Vec<(&mut [u8], &mut f32)> = blocks.chunks_exact_mut(size).zip(norms).collect();
    cpu.pool().for_each_chunk(&mut both, 16, |first, blocks| {
        let (mut row, mut sorted) = (vec![0.0; m.cols()], vec![0.0; layout.padded]);
        for (i, (block, norm)) in blocks.iter_mut().enumerate() {
            block.fill(0);
            let mut longest = 0.0_f64;
            for lane in 0..LANES {
                let r = (first + i) * LANES + lane;
                if r >= m.rows() {
                    break;
                }
                cpu.kernels().row(m.dtype(), m.row_bytes(r), &mut row);
                let own = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
                for (to, &column) in sorted.iter_mut().zip(&order.0) {
                    let column = column as usize;
                    *to = f64::from(row[column]) - f64::from(mean[column]);
                }
                let coded = encode(&layout, &nearest, &sorted, block, lane);
                longest = match coded {
                    Some(coded) if own.is_finite() => longest.max(own).max(coded),
                    _ => f64::INFINITY,
                };
            }
            **norm = (longest * (1.0 + 1e-6)) as f32;
        }
    });
    Ok(())
}

/// The code nearest to each whole number of level units from -80 on.
fn nearest_levels() -> [u8; 161] {
    std::array::from_fn(|i| {
        let value = i as i32 - 80;
        let distance =
            |code: &u8| (i32::from(LEVELS[usize::from(*code)]) - LEVEL_OFFSET - value).abs();
        (0..16).min_by_key(distance).unwrap_or(0)
    })
}

/// `value` as a bfloat16, rounded up in size.
fn bf16_up(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits >> 16) + u32::from(bits & 0xffff != 0)) as u16
}

fn bf16(bits: u16) -> f64 {
    f64::from(f32::from_bits(u32::from(bits) << 16))
}

/// Writes one row into its lane of a block. Returns the length of what the codes stand for; `None`
/// where they cannot.
fn encode(
    layout: &PlanesLayout,
    nearest: &[u8; 161],
    sorted: &[f64],
    block: &mut [u8],
    lane: usize,
) -> Option<f64> {
    let mut square = 0.0;
    let mut codes = [0_u8; super::WIDEST];
    for (s, segment) in layout.segments.iter().enumerate() {
        let values = &sorted[segment.clone()];
        let codes = &mut codes[..values.len()];
        let hot = s < layout.n_hot;
        let scale = if hot { code_hot(values, codes) } else { code_cold(nearest, values, codes) }?;
        let unit = bf16(scale);
        let (mut error, mut own) = (0.0, 0.0);
        for (code, value) in codes.iter().zip(values) {
            let coded = unit * f64::from(level(hot, *code));
            error += (value - coded).powi(2);
            own += coded * coded;
        }
        square += own;
        let steps = if unit == 0.0 {
            0.0
        } else {
            // The factor covers the rounding of this very sum.
            (error.sqrt() * (1.0 + 1e-9) / (unit * layout.error_unit(s))).ceil()
        };
        if steps.is_nan() || steps > 255.0 {
            return None;
        }
        let at = layout.scales() + 2 * (LANES * s + lane);
        block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        block[layout.errors() + LANES * s + lane] = steps as u8;
        for (i, &code) in codes.iter().enumerate() {
            let column = segment.start + i;
            let (word, j) = (column / WORD, column % WORD);
            if hot {
                block[64 * word + WORD * lane + j] = code;
            } else {
                let word = word - layout.hot() / WORD;
                let at = layout.cold_codes() + 64 * (word / 2) + WORD * lane + j;
                block[at] |= code << (4 * (word % 2));
            }
        }
    }
    Some(square.sqrt())
}

fn level(hot: bool, code: u8) -> i32 {
    if hot {
        i32::from(code) - HOT_OFFSET
    } else {
        i32::from(LEVELS[usize::from(code)]) - LEVEL_OFFSET
    }
}

fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0_f64, |m, v| if v.is_finite() { m.max(v.abs()) } else { f64::INFINITY })
}

/// Codes of 8 bits; returns the scale, a bfloat16.
fn code_hot(values: &[f64], codes: &mut [u8]) -> Option<u16> {
    let largest = largest(values);
    if largest == 0.0 {
        codes.fill(HOT_OFFSET as u8);
        return Some(0);
    }
    let scale = bf16_up(((largest / 127.0) as f32).max(SMALLEST));
    let unit = bf16(scale);
    if !unit.is_finite() {
        return None;
    }
    for (code, value) in codes.iter_mut().zip(values) {
        *code = ((value / unit).round() as i32 + HOT_OFFSET) as u8;
    }
    Some(scale)
}

/// Codes of 4 bits by least squares; returns the scale, a bfloat16.
fn code_cold(nearest: &[u8; 161], values: &[f64], codes: &mut [u8]) -> Option<u16> {
    let largest = largest(values);
    if largest == 0.0 {
        codes.fill(0);
        return Some(0);
    }
    let widest = bf16_up(((largest / 63.0) as f32).max(SMALLEST));
    if !bf16(widest).is_finite() {
        return None;
    }
    let rms = (values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64).sqrt();
    let mut scale = bf16_up(((rms / 23.05) as f32).max(SMALLEST)).min(widest);
    for round in 0..ROUNDS {
        let inverse = 1.0 / bf16(scale);
        let (mut product, mut square) = (0.0, 0.0);
        for (code, value) in codes.iter_mut().zip(values) {
            let at = (value * inverse).clamp(-80.0, 80.0).round() as i32 + 80;
            *code = nearest[at as usize];
            let level = f64::from(level(false, *code));
            product += level * value;
            square += level * level;
        }
        if round + 1 < ROUNDS && product > 0.0 {
            scale = bf16_up(((product / square) as f32).max(SMALLEST)).min(widest);
        }
    }
    Some(scale)
}
