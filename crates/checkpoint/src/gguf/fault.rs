//! `GgufFault`: one variant per lie that a GGUF file can tell.

use std::path::PathBuf;

use larql_compute::Dtype;

/// What is wrong at one place of a GGUF file. Always shown inside a
/// [`CheckpointError::Gguf`](crate::CheckpointError::Gguf), which adds the file and the offset.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each variant's message explains its fields")]
pub enum GgufFault {
    #[error("the file ends inside {what}: {needed} bytes are needed and {left} are left")]
    Truncated { what: &'static str, needed: u64, left: u64 },
    #[error("not a GGUF file: it begins with {} instead of \"GGUF\"", found.escape_ascii())]
    NotGguf { found: [u8; 4] },
    #[error("a file in the old {name} format, which came before GGUF")]
    LegacyFormat { name: &'static str },
    #[error("a big-endian GGUF file; larql reads little-endian ones")]
    BigEndian,
    #[error("GGUF version 1; larql reads versions 2 and 3")]
    VersionOne,
    #[error("GGUF version {found}; larql reads versions 2 and 3")]
    UnknownVersion { found: u32 },
    #[error("the header announces {found} metadata entries, but the file has room for {limit}")]
    TooManyKeys { found: u64, limit: u64 },
    #[error("the header announces {found} tensors, but the file has room for {limit}")]
    TooManyTensors { found: u64, limit: u64 },
    #[error("{what} of {found} bytes; 1 to {limit} are allowed")]
    NameLength { what: &'static str, found: u64, limit: u64 },
    #[error("{what} is said to be {found} bytes long, but only {left} bytes are left in the file")]
    StringTooLong { what: &'static str, found: u64, left: u64 },
    #[error("{what} is not valid UTF-8")]
    NotUtf8 { what: String },
    #[error("metadata key {key} has the value type {found}; GGUF defines 0 to 12")]
    UnknownValueType { key: String, found: u32 },
    #[error("metadata key {key} holds the boolean {found}; 0 and 1 are allowed")]
    BadBool { key: String, found: u8 },
    #[error(
        "metadata key {key} is said to be an array of {found} elements, but the {left} bytes left \
         in the file hold at most {limit}"
    )]
    ArrayTooLong { key: String, found: u64, limit: u64, left: u64 },
    #[error("metadata key {key} nests arrays more than {limit} deep")]
    ArrayTooDeep { key: String, limit: u32 },
    #[error("metadata key {key} stands twice in the header")]
    DuplicateKey { key: String },
    #[error("general.alignment is {found}; a power of two from 8 to 2^20 is needed")]
    Alignment { found: String },
    #[error("tensor {tensor} has {found} dimensions; 1 to 4 are allowed")]
    DimensionCount { tensor: String, found: u64 },
    #[error("tensor {tensor} has the dimensions {dims:?}, one of which is zero")]
    ZeroDimension { tensor: String, dims: Vec<u64> },
    #[error("tensor {tensor} with the dimensions {dims:?} is larger than the address space")]
    DimensionsOverflow { tensor: String, dims: Vec<u64> },
    #[error(
        "tensor {tensor} has ggml type {number}{}, which larql does not read; it reads {}",
        name.map(|n| format!(" ({n})")).unwrap_or_default(), supported()
    )]
    UnknownDtype { tensor: String, number: u32, name: Option<&'static str> },
    #[error(
        "tensor {tensor} has rows of {cols} elements, not a whole number of {dtype} blocks ({block})"
    )]
    ColumnsNotBlocks { tensor: String, dtype: Dtype, cols: u64, block: u64 },
    #[error(
        "tensor {tensor} begins at data offset {found}, which is not a multiple of the alignment {alignment}"
    )]
    Misaligned { tensor: String, found: u64, alignment: u64 },
    #[error("tensor {tensor} ends at byte {end}, but the file has {file_len} bytes")]
    OutOfRange { tensor: String, end: u128, file_len: u64 },
    #[error("tensor {tensor} begins inside tensor {other}, which ends at byte {other_end}")]
    Overlap { tensor: String, other: String, other_end: u64 },
    #[error("tensor {tensor} is defined twice; the first time in {}", first.display())]
    DuplicateTensor { tensor: String, first: PathBuf },

    #[error("the data of {expected} comes next, not that of {found}")]
    TensorOrder { expected: String, found: String },
    #[error("tensor {tensor} has {expected} bytes, but {found} were written")]
    TensorBytes { tensor: String, expected: u64, found: u64 },

    #[error("this is part {} of a model in {count} files; larql opens the first", number + 1)]
    NotFirstPart { number: u64, count: u64, first: Option<PathBuf> },
    #[error(
        "the file says that it is one of {count} parts, but its name does not end in {expected}"
    )]
    PartName { count: u64, expected: String },
    #[error("the model is in {count} files, and part {} is missing", number + 1)]
    MissingPart { number: u64, count: u64 },
    #[error("{key} is {found}, but {expected} is needed here")]
    PartMismatch { key: &'static str, found: String, expected: u64 },
    #[error("split.count is {found}; a model in 1 to {limit} files is expected")]
    PartCount { found: u64, limit: u64 },
    #[error("all {parts} files together hold {found} tensors; split.tensors.count says {expected}")]
    PartTensors { parts: usize, found: usize, expected: u64 },

    #[error("the metadata key {key} is missing")]
    MissingKey { key: String },
    #[error("metadata key {key} holds {found}, but {expected} is needed")]
    WrongType { key: String, expected: &'static str, found: String },
    #[error(
        "metadata key {key} holds {found} at position {position}, which is not a usable number"
    )]
    NotFinite { key: String, position: usize, found: f64 },
}

/// The dtypes that larql reads, for messages.
fn supported() -> String {
    Dtype::ALL.map(Dtype::name).join(", ")
}

/// Names of ggml's other types, so that a refusal can name what it refuses. Numbers that ggml
/// removed are named too: old files have them.
pub(super) fn ggml_type_name(number: u32) -> Option<&'static str> {
    Some(match number {
        4 => "q4_2, removed from ggml",
        5 => "q4_3, removed from ggml",
        9 => "q8_1",
        15 => "q8_k",
        16 => "iq2_xxs",
        17 => "iq2_xs",
        18 => "iq3_xxs",
        19 => "iq1_s",
        20 => "iq4_nl",
        21 => "iq3_s",
        22 => "iq2_s",
        23 => "iq4_xs",
        24 => "i8",
        25 => "i16",
        26 => "i32",
        27 => "i64",
        28 => "f64",
        29 => "iq1_m",
        31 => "q4_0_4_4, removed from ggml",
        32 => "q4_0_4_8, removed from ggml",
        33 => "q4_0_8_8, removed from ggml",
        34 => "tq1_0",
        35 => "tq2_0",
        36 => "iq4_nl_4_4, removed from ggml",
        37 => "iq4_nl_4_8, removed from ggml",
        38 => "iq4_nl_8_8, removed from ggml",
        39 => "mxfp4",
        40 => "nvfp4",
        41 => "q1_0",
        _ => return None,
    })
}

impl GgufFault {
    /// What the user can do about it.
    pub(crate) fn help(&self) -> Option<String> {
        const DAMAGED: &str = "the file is damaged or was made by a faulty tool: fetch it again and compare its checksum";
        Some(match self {
            Self::Truncated { .. } | Self::OutOfRange { .. } => {
                "the download was probably cut short: fetch the file again and compare its size"
                    .into()
            }
            Self::NotGguf { found: [b'v', b'e', b'r', b's'] } => {
                "this looks like a Git LFS pointer: run `git lfs pull` to get the file itself"
                    .into()
            }
            Self::NotGguf { found: [b'P', b'K', ..] } => {
                "this looks like a PyTorch file: convert it to safetensors or GGUF first".into()
            }
            Self::NotGguf { .. } => {
                "give a .gguf file, a .safetensors file or the directory of a Hugging Face model"
                    .into()
            }
            Self::LegacyFormat { .. } | Self::VersionOne => {
                "convert the model again with a current llama.cpp (convert_hf_to_gguf.py)".into()
            }
            Self::BigEndian => {
                "convert it with gguf_convert_endian.py from llama.cpp's gguf package".into()
            }
            Self::UnknownVersion { .. } => "a newer larql may read it".into(),
            Self::UnknownDtype { .. } => {
                "use a file in one of these types, for example Q4_K_M or Q8_0".into()
            }
            Self::NotFirstPart { first: Some(first), .. } => format!("open {}", first.display()),
            Self::NotFirstPart { first: None, .. } => {
                "open the file whose name ends in -00001-of-….gguf".into()
            }
            Self::PartName { .. } => {
                "give the parts back the names they were published under".into()
            }
            Self::MissingPart { .. } => "fetch all parts into the same directory".into(),
            Self::PartMismatch { .. } | Self::PartTensors { .. } | Self::PartCount { .. } => {
                "the parts do not belong together: fetch all of them again".into()
            }
            // Faults of the program that writes: there is nothing that its user can do.
            Self::TensorOrder { .. } | Self::TensorBytes { .. } => return None,
            Self::MissingKey { .. } | Self::WrongType { .. } | Self::NotFinite { .. } => {
                "the model was converted incompletely: convert it again, or use another file of it"
                    .into()
            }
            _ => DAMAGED.into(),
        })
    }
}
