//! `SafetensorsFault`: one variant per lie that a safetensors file or an index can tell.

use std::path::PathBuf;

/// What is wrong with a safetensors file or the index of a sharded model. Always shown inside a
/// [`CheckpointError::Safetensors`](crate::CheckpointError::Safetensors), which adds the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each variant's message explains its fields")]
pub enum SafetensorsFault {
    #[error("the file has {len} bytes; a safetensors file begins with a header length of 8")]
    TooSmall { len: u64 },
    #[error("the header is said to be {found} bytes long; at most {limit} are allowed")]
    HeaderTooLarge { found: u64, limit: u64 },
    #[error("the header is said to be {found} bytes long, but only {left} are left in the file")]
    HeaderTruncated { found: u64, left: u64 },
    #[error("not a safetensors file: the header does not begin with '{{'")]
    NotAnObject,
    #[error("the header is not valid UTF-8 from its byte {valid} on")]
    NotUtf8 { valid: usize },
    #[error("the JSON is not what is expected here: {why}")]
    Json { why: String },
    #[error("tensor {tensor} stands twice in the header")]
    DuplicateTensor { tensor: String },
    #[error("tensor {tensor} has the dtype {found}; larql reads F32, F16 and BF16")]
    UnknownDtype { tensor: String, found: String },
    #[error("tensor {tensor} has the shape {shape:?}, which has no elements")]
    ZeroDimension { tensor: String, shape: Vec<u64> },
    #[error("tensor {tensor} with the shape {shape:?} is larger than the address space")]
    ShapeOverflow { tensor: String, shape: Vec<u64> },
    #[error(
        "tensor {tensor} has the data offsets {begin}..{end}, which is {} bytes, but its dtype and \
         shape take {expected}", end.wrapping_sub(*begin)
    )]
    Length { tensor: String, begin: u64, end: u64, expected: u64 },
    #[error(
        "tensor {tensor} begins at data offset {found}, but {expected} is where the one before ends"
    )]
    NotContiguous { tensor: String, found: u64, expected: u64 },
    #[error("the header describes {expected} bytes of data, but the file has {found}")]
    DataLength { expected: u64, found: u64 },
    #[error("the safetensors crate refuses the header: {why}")]
    Crate { why: String },

    #[error(
        "there is neither model.safetensors nor model.safetensors.index.json in this directory"
    )]
    NoModel,
    #[error("tensor {tensor} is listed twice")]
    DuplicateInIndex { tensor: String },
    #[error("the index names the shard {shard:?}, which is not inside the model's directory")]
    ShardOutside { shard: String },
    #[error("the index names the shard {shard}, which is missing")]
    MissingShard { shard: String },
    #[error("the index says that tensor {tensor} is in {shard}, but it is not there")]
    NotInShard { tensor: String, shard: String },
    #[error("tensor {tensor} is in two shards; the first is {}", first.display())]
    InTwoShards { tensor: String, first: PathBuf },
}

impl SafetensorsFault {
    /// What the user can do about it.
    pub(crate) fn help(&self) -> String {
        match self {
            Self::TooSmall { .. } | Self::HeaderTruncated { .. } | Self::DataLength { .. } => {
                "the download was probably cut short: fetch the file again and compare its size"
            }
            Self::UnknownDtype { .. } => "convert the model to BF16 or F16 first",
            Self::NoModel => {
                "give a .gguf file, a .safetensors file or the directory of a Hugging Face model"
            }
            Self::MissingShard { .. } => "fetch all shards into the same directory",
            Self::ShardOutside { .. } => "do not use this model unless you trust where it is from",
            Self::NotInShard { .. } | Self::InTwoShards { .. } => {
                "the shards do not belong to this index: fetch all of them again"
            }
            Self::HeaderTooLarge { .. } | Self::NotAnObject | Self::NotUtf8 { .. } => {
                "check that this is a safetensors file, not a PyTorch one or a Git LFS pointer"
            }
            Self::Json { .. }
            | Self::DuplicateTensor { .. }
            | Self::DuplicateInIndex { .. }
            | Self::ZeroDimension { .. }
            | Self::ShapeOverflow { .. }
            | Self::Length { .. }
            | Self::NotContiguous { .. }
            | Self::Crate { .. } => {
                "the file is damaged or was made by a faulty tool: fetch it again and compare its checksum"
            }
        }
        .to_owned()
    }
}
