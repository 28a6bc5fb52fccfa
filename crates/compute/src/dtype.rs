//! `Dtype`: the only enum of element formats in the project.

use crate::ComputeError;

/// How the elements of a matrix are stored. Numbers, names and layouts are ggml's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are the documentation: they are ggml's own")]
pub enum Dtype {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

/// One line of the table that every property of a dtype is read from.
struct Entry {
    dtype: Dtype,
    name: &'static str,
    ggml_type: u32,
    block_len: usize,
    block_bytes: usize,
}

/// ggml's type numbers have holes (4 and 5 were removed), so they are written out.
#[rustfmt::skip]
const TABLE: [Entry; 13] = [
    Entry { dtype: Dtype::F32,  name: "f32",  ggml_type: 0,  block_len: 1,   block_bytes: 4 },
    Entry { dtype: Dtype::F16,  name: "f16",  ggml_type: 1,  block_len: 1,   block_bytes: 2 },
    Entry { dtype: Dtype::BF16, name: "bf16", ggml_type: 30, block_len: 1,   block_bytes: 2 },
    Entry { dtype: Dtype::Q4_0, name: "q4_0", ggml_type: 2,  block_len: 32,  block_bytes: 18 },
    Entry { dtype: Dtype::Q4_1, name: "q4_1", ggml_type: 3,  block_len: 32,  block_bytes: 20 },
    Entry { dtype: Dtype::Q5_0, name: "q5_0", ggml_type: 6,  block_len: 32,  block_bytes: 22 },
    Entry { dtype: Dtype::Q5_1, name: "q5_1", ggml_type: 7,  block_len: 32,  block_bytes: 24 },
    Entry { dtype: Dtype::Q8_0, name: "q8_0", ggml_type: 8,  block_len: 32,  block_bytes: 34 },
    Entry { dtype: Dtype::Q2K,  name: "q2_k", ggml_type: 10, block_len: 256, block_bytes: 84 },
    Entry { dtype: Dtype::Q3K,  name: "q3_k", ggml_type: 11, block_len: 256, block_bytes: 110 },
    Entry { dtype: Dtype::Q4K,  name: "q4_k", ggml_type: 12, block_len: 256, block_bytes: 144 },
    Entry { dtype: Dtype::Q5K,  name: "q5_k", ggml_type: 13, block_len: 256, block_bytes: 176 },
    Entry { dtype: Dtype::Q6K,  name: "q6_k", ggml_type: 14, block_len: 256, block_bytes: 210 },
];

impl Dtype {
    /// Every dtype, in the order of the enum.
    pub const ALL: [Self; 13] = {
        let mut all = [Self::F32; 13];
        let mut i = 0;
        while i < 13 {
            all[i] = TABLE[i].dtype;
            i += 1;
        }
        all
    };

    const fn entry(self) -> &'static Entry {
        &TABLE[self as usize]
    }

    /// Lower-case name, as it stands in flags, manifests and tables (`q4_k`).
    pub const fn name(self) -> &'static str {
        self.entry().name
    }

    /// The dtype of that name; `q4k` and `Q4_K` mean `q4_k`.
    pub fn from_name(name: &str) -> Option<Self> {
        let plain = |s: &str| s.replace('_', "").to_ascii_lowercase();
        let wanted = plain(name);
        Self::ALL.into_iter().find(|d| plain(d.name()) == wanted)
    }

    /// ggml's type number, as it stands in a GGUF tensor header.
    pub const fn ggml_type(self) -> u32 {
        self.entry().ggml_type
    }

    /// The dtype of a ggml type number; `None` for one that larql does not read.
    pub fn from_ggml_type(number: u32) -> Option<Self> {
        TABLE.iter().find(|e| e.ggml_type == number).map(|e| e.dtype)
    }

    /// Elements in one block (1 for the float types).
    pub const fn block_len(self) -> usize {
        self.entry().block_len
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        self.entry().block_bytes
    }

    /// Mean bits an element, scales included.
    pub fn bits_per_element(self) -> f64 {
        self.block_bytes() as f64 * 8.0 / self.block_len() as f64
    }

    /// Bytes of a row of `cols` elements.
    ///
    /// # Errors
    /// [`ComputeError::ColumnsNotBlocks`] where `cols` is not a multiple of the block.
    pub fn row_bytes(self, cols: usize) -> Result<usize, ComputeError> {
        if !cols.is_multiple_of(self.block_len()) {
            return Err(ComputeError::ColumnsNotBlocks {
                dtype: self,
                cols,
                block: self.block_len(),
            });
        }
        (cols / self.block_len()).checked_mul(self.block_bytes()).ok_or(ComputeError::TooLarge {
            dtype: self,
            rows: 1,
            cols,
        })
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_follows_the_enum() {
        for (i, dtype) in Dtype::ALL.into_iter().enumerate() {
            assert_eq!(dtype as usize, i);
            assert_eq!(Dtype::from_name(dtype.name()), Some(dtype));
            assert_eq!(Dtype::from_ggml_type(dtype.ggml_type()), Some(dtype));
        }
        assert_eq!(Dtype::from_name("Q4K"), Some(Dtype::Q4K));
        assert_eq!(Dtype::from_ggml_type(4), None);
    }

    #[test]
    fn odd_columns_are_refused_by_name() {
        let error = Dtype::Q4K.row_bytes(640).unwrap_err();
        assert!(error.to_string().contains("640 columns cannot be stored as q4_k"));
        assert_eq!(Dtype::Q5_0.row_bytes(640), Ok(440));
    }
}
