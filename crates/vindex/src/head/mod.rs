//! The LM head as a search: which tokens have the highest logits, and all logits.
//!
//! A logit is the canonical float32 dot product of `larql-compute` (`Cpu::dot_row`) of the
//! hidden state after the final norm with a dequantised row of the unembedding. Scales and caps of
//! a family (a logit scale, a softcap) keep the order and are not applied here.
//!
//! The answers of [`LmHead::top_k`] are **exact**: the tokens and scores of a brute force over
//! every row, ties by lower id, whichever way they were found.

mod planes;

use std::sync::PoisonError;

use larql_compute::{Cpu, Matrix, Order, Scored};

use self::planes::PlanesFile;
pub(crate) use self::planes::check_content;
pub use self::planes::{PlanesReport, build_head_planes, delete_head_planes, planes_not_worth};

use crate::{Vindex, VindexError};

/// The LM head of a vindex: a row for each token. Made once, then asked for every position.
#[derive(Debug)]
pub struct LmHead<'a> {
    rows: Matrix<'a>,
    planes: Option<PlanesFile>,
}

/// How the best tokens were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadPath {
    /// A scan of the coarse planes, then the rows that could not be ruled out.
    Planes,
    /// Every row of the head.
    Scan,
}

/// The best tokens of a hidden state.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadTopK {
    /// Token (its row) and logit, highest first, ties by lower id.
    pub tokens: Vec<Scored>,
    /// Bytes of head and planes that were read.
    pub bytes_read: u64,
    /// Rows whose logit was computed.
    pub rescored_rows: usize,
    /// How they were found.
    pub path: HeadPath,
}

impl Vindex {
    /// The LM head (of tied models the embedding), with its coarse planes where it has them.
    ///
    /// # Errors
    /// [`VindexError::Absent`] without unembedding; planes that are broken or of another head.
    pub fn lm_head(&self) -> Result<LmHead<'_>, VindexError> {
        Ok(LmHead { rows: self.unembedding()?, planes: PlanesFile::open(self)? })
    }
}

impl<'a> LmHead<'a> {
    /// The stored rows, `[vocab_size, hidden_size]`.
    pub fn rows(&self) -> Matrix<'a> {
        self.rows
    }

    /// Whether the head has coarse planes.
    pub fn has_planes(&self) -> bool {
        self.planes.is_some()
    }

    /// Bytes on the heap.
    pub fn heap(&self) -> usize {
        self.planes.as_ref().map_or(0, PlanesFile::heap)
    }

    /// The `min(k, vocab_size)` tokens with the highest logits for `h`, the hidden state after the
    /// final norm, `[hidden_size]`.
    ///
    /// # Errors
    /// A wrong length; the lowest token whose logit is NaN.
    pub fn top_k(&self, cpu: &Cpu, h: &[f32], k: usize) -> Result<HeadTopK, VindexError> {
        if let Some(file) = &self.planes {
            let planes = file.planes()?;
            let mut uppers = file.uppers.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(found) = planes.top_k(cpu, self.rows, h, k, &mut uppers)? {
                let read = planes.bytes() + found.rescored * self.rows.row_stride();
                return Ok(HeadTopK {
                    tokens: found.rows,
                    bytes_read: read as u64,
                    rescored_rows: found.rescored,
                    path: HeadPath::Planes,
                });
            }
        }
        Ok(HeadTopK {
            tokens: cpu.top_k_rows(self.rows, h, k, Order::Signed)?,
            bytes_read: self.rows.bytes().len() as u64,
            rescored_rows: self.rows.rows(),
            path: HeadPath::Scan,
        })
    }

    /// All logits of `h`, `[hidden_size]`, into `out`, `[vocab_size]`. Reads the whole head.
    ///
    /// # Errors
    /// Wrong lengths.
    pub fn logits(&self, cpu: &Cpu, h: &[f32], out: &mut [f32]) -> Result<(), VindexError> {
        Ok(cpu.matvec(self.rows, h, out)?)
    }
}
