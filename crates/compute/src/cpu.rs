//! `Cpu`: the CPU as a device; the verbs over a [`Matrix`].

use std::sync::{Mutex, PoisonError};

use crate::arch::{Kernels, gemm};
use crate::pool::{Ranges, physical_cores};
use crate::{ComputeError, Isa, Matrix, Order, Pool, Scored, TopK};

/// Elements of the matrix that one worker takes at a time: some ten microseconds of work, so that
/// taking it costs little and the last worker is never late by much.
const GRAIN: usize = 32 * 1024;

/// The CPU: an instruction set and a pool of threads.
///
/// Every result is the same on any number of threads. `dot_row`, `matvec` and `top_k_rows` share
/// one definition of the dot product and are bit-identical on every instruction set as well
/// (`docs/NUMERICS.md`); `matmul` sums in another order, within the error stated there.
pub struct Cpu {
    kernels: Kernels,
    pool: Pool,
}

impl Cpu {
    /// The CPU with the kernels of `isa` (default: the best here) and `threads` threads (default:
    /// the physical cores).
    ///
    /// # Errors
    /// [`ComputeError::NoSuchKernels`] where this build or CPU lacks the instruction set.
    pub fn new(isa: Option<Isa>, threads: Option<usize>) -> Result<Self, ComputeError> {
        let isa = isa.unwrap_or_else(Isa::detect);
        let kernels = Kernels::new(isa).ok_or_else(|| ComputeError::NoSuchKernels {
            asked: isa.name().to_owned(),
            available: Isa::available().iter().map(|i| i.name()).collect::<Vec<_>>().join(", "),
        })?;
        Ok(Self { kernels, pool: Pool::new(threads.unwrap_or_else(physical_cores)) })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.kernels.isa()
    }

    pub(crate) fn kernels(&self) -> Kernels {
        self.kernels
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The threads.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Row `row`, dequantised into `out` (`[cols]`).
    ///
    /// # Errors
    /// A row outside the matrix, a wrong length of `out`.
    pub fn row(&self, m: Matrix<'_>, row: usize, out: &mut [f32]) -> Result<(), ComputeError> {
        check_row(m, row)?;
        check_len("the output", m.cols(), out.len())?;
        self.kernels.row(m.dtype(), m.row_bytes(row), out);
        Ok(())
    }

    /// The dot product of row `row` with `x` (`[cols]`).
    ///
    /// # Errors
    /// A row outside the matrix, a wrong length of `x`.
    pub fn dot_row(&self, m: Matrix<'_>, row: usize, x: &[f32]) -> Result<f32, ComputeError> {
        check_row(m, row)?;
        check_len("the vector", m.cols(), x.len())?;
        Ok(self.kernels.dot(m.dtype(), m.row_bytes(row), x))
    }

    /// `y[i] += a * m[row, i]` by fused multiply-add; `y` is `[cols]`.
    ///
    /// # Errors
    /// A row outside the matrix, a wrong length of `y`.
    pub fn axpy_row(
        &self,
        m: Matrix<'_>,
        row: usize,
        a: f32,
        y: &mut [f32],
    ) -> Result<(), ComputeError> {
        check_row(m, row)?;
        check_len("the output", m.cols(), y.len())?;
        self.kernels.axpy(m.dtype(), m.row_bytes(row), a, y);
        Ok(())
    }

    /// `y = m x`: `x` is `[cols]`, `y` is `[rows]`.
    ///
    /// # Errors
    /// Wrong lengths.
    pub fn matvec(&self, m: Matrix<'_>, x: &[f32], y: &mut [f32]) -> Result<(), ComputeError> {
        check_len("the vector", m.cols(), x.len())?;
        check_len("the output", m.rows(), y.len())?;
        self.pool.for_each_chunk(y, grain(m), |first, chunk| {
            for (i, y) in chunk.iter_mut().enumerate() {
                *y = self.kernels.dot(m.dtype(), m.row_bytes(first + i), x);
            }
        });
        Ok(())
    }

    /// `y = m x` for `n` vectors at once: `x` is `[n, cols]`, `y` is `[n, rows]`.
    ///
    /// # Errors
    /// Wrong lengths.
    pub fn matmul(
        &self,
        m: Matrix<'_>,
        x: &[f32],
        n: usize,
        y: &mut [f32],
    ) -> Result<(), ComputeError> {
        check_len("the vectors", n.saturating_mul(m.cols()), x.len())?;
        check_len("the output", n.saturating_mul(m.rows()), y.len())?;
        gemm::matmul(self.kernels, &self.pool, &m, x, n, y);
        Ok(())
    }

    /// The `min(k, rows)` rows with the best dot product with `x` (`[cols]`), best first, ties by
    /// lower row. Memory is O(k) for each thread.
    ///
    /// # Errors
    /// A wrong length; [`ComputeError::NanScore`] with the lowest row whose score is NaN.
    pub fn top_k_rows(
        &self,
        m: Matrix<'_>,
        x: &[f32],
        k: usize,
        order: Order,
    ) -> Result<Vec<Scored>, ComputeError> {
        check_len("the vector", m.cols(), x.len())?;
        let best = Mutex::new(Ok(TopK::new(k, order)));
        let ranges = Ranges::new(m.rows(), grain(m));
        let worker = |_, _| {
            let mut top = TopK::new(k, order);
            let mut outcome = Ok(());
            // Ranges rise, so the first NaN of a worker is its lowest.
            while let (Ok(()), Some(range)) = (&outcome, ranges.next()) {
                outcome = range
                    .into_iter()
                    .try_for_each(|r| top.push(r, self.kernels.dot(m.dtype(), m.row_bytes(r), x)));
            }
            let mut best = best.lock().unwrap_or_else(PoisonError::into_inner);
            combine(&mut best, outcome.map(|()| top));
        };
        if m.rows() <= grain(m) {
            worker(0, 1);
        } else {
            self.pool.run(worker);
        }
        best.into_inner().unwrap_or_else(PoisonError::into_inner).map(TopK::into_sorted)
    }
}

impl std::fmt::Debug for Cpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cpu({}, {} threads)", self.isa(), self.threads())
    }
}

/// Rows that one worker takes at a time; the kernels like fours.
pub(crate) fn grain(m: Matrix<'_>) -> usize {
    (GRAIN / m.cols().max(1)).max(1).next_multiple_of(4)
}

/// Adds the outcome of a worker's rows; of two errors the one with the lower row stands.
fn combine(all: &mut Result<TopK, ComputeError>, found: Result<TopK, ComputeError>) {
    let row = |error: &ComputeError| match error {
        ComputeError::NanScore { row } => *row,
        _ => usize::MAX,
    };
    match (&mut *all, found) {
        (Ok(all), Ok(found)) => all.merge(found),
        (Ok(_), Err(error)) => *all = Err(error),
        (Err(_), Ok(_)) => {}
        (Err(old), Err(new)) => {
            if row(&new) < row(old) {
                *old = new;
            }
        }
    }
}

fn check_row(m: Matrix<'_>, row: usize) -> Result<(), ComputeError> {
    if row < m.rows() {
        return Ok(());
    }
    Err(ComputeError::RowOutOfRange { row, rows: m.rows() })
}

pub(crate) fn check_len(
    what: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), ComputeError> {
    if expected == found {
        return Ok(());
    }
    Err(ComputeError::VectorLength { what, expected, found })
}
