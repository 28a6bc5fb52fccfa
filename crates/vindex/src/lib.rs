//! The vindex: a model's weights as GGUF files, an index beside them, and everything that makes,
//! opens, checks and cuts one. docs/FORMAT.md describes it on disk.
#![forbid(unsafe_code)]

mod atomic;
mod error;
mod extract;
pub mod files;
pub mod hash;
mod head;
pub mod labels;
pub mod manifest;
mod means;
mod open;
mod progress;
mod quantize;
mod residency;
pub mod search;
mod slice;
mod stats;
mod verify;

pub use atomic::{replace_file, replace_file_with};
pub use error::{TensorMismatch, VindexError};
pub use extract::{Deviation, ExtractOptions, ExtractReport, Fallback, FileSize, extract};
pub use files::{FileKind, Group, Level};
pub use head::{
    HeadPath, HeadTopK, LmHead, PlanesReport, build_head_planes, delete_head_planes,
    planes_not_worth,
};
pub use manifest::{FileEntry, Manifest, ManifestFault, TensorEntry, WeightsOrigin};
pub use means::FeatureMeans;
pub use open::{Vindex, advice};
pub use progress::{NoProgress, Progress};
pub use quantize::{QuantizeOptions, QuantizeReport, RoleError, quantize};
pub use residency::{HeapUse, Residency, RoleResidency};
pub use slice::{SliceOptions, SliceReport, narrow, slice};
pub use stats::{GroupStats, LayerStats, Stats};
pub use verify::{FileCheck, FileState, VerifyOptions, VerifyReport, verify};
