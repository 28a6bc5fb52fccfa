//! What can go wrong with a vindex: where, what was expected, what was found, what to do.

use std::path::{Path, PathBuf};

use larql_checkpoint::CheckpointError;
use larql_compute::ComputeError;

use crate::files::Level;
use crate::manifest::Modified;

/// Every way in which making, opening or searching a vindex can fail.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VindexError {
    /// The operating system refused a file operation.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried ("read", "create", …).
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The path exists but holds no vindex.
    #[error("{} is not a vindex: {why}; make one with `larql extract-index MODEL -o NAME.vindex`", path.display())]
    NotAVindex {
        /// The path given.
        path: PathBuf,
        /// What is missing.
        why: String,
    },
    /// The leftover of an extraction that never finished.
    #[error(
        "{} is the unfinished work of an extraction that was interrupted; \
         delete it and run `larql extract-index` again",
        path.display()
    )]
    Unfinished {
        /// The temporary directory.
        path: PathBuf,
    },
    /// The vindex is gone, but its former content stands aside: a replacement was interrupted.
    #[error(
        "{} does not exist, but {} does: a replacement was interrupted between two renames; \
         repair with `mv {} {}`",
        path.display(), aside.display(), aside.display(), path.display()
    )]
    Interrupted {
        /// The vindex asked for.
        path: PathBuf,
        /// Where its former content stands.
        aside: PathBuf,
    },
    /// Written by a later larql.
    #[error(
        "{} has format version {found}, but this larql reads versions 1 to {supported}; \
         use a newer larql, or extract again with this one",
        path.display()
    )]
    NewerVersion {
        /// The manifest.
        path: PathBuf,
        /// Version in the manifest.
        found: u64,
        /// Newest version that this build reads.
        supported: u32,
    },
    /// The manifest is not what docs/FORMAT.md says.
    #[error("{}: {why}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// Field and fault.
        why: String,
    },
    /// A file that the manifest names is not there.
    #[error("{} is missing: the manifest names it; {repair}", path.display())]
    MissingFile {
        /// The file.
        path: PathBuf,
        /// The command that brings it back.
        repair: String,
    },
    /// A file does not have the size that the manifest records.
    #[error(
        "{} has {found} bytes where the manifest records {expected}: it was truncated or replaced; {repair}",
        path.display()
    )]
    FileSize {
        /// The file.
        path: PathBuf,
        /// Bytes recorded.
        expected: u64,
        /// Bytes there.
        found: u64,
        /// The command that repairs it.
        repair: String,
    },
    /// A linked source file was written to, or touched, after extraction.
    #[error(
        "{} is linked to the model file it was made from, and that file has changed: it was \
         modified at {found} where the manifest records {expected}; `larql verify {} --repair` \
         accepts it if the content is the same, otherwise {repair}",
        path.display(), vindex.display()
    )]
    SourceChanged {
        /// The linked file.
        path: PathBuf,
        /// The vindex.
        vindex: PathBuf,
        /// Modification time recorded.
        expected: Modified,
        /// Modification time found.
        found: Modified,
        /// The command that extracts again.
        repair: String,
    },
    /// A GGUF header and the manifest disagree.
    #[error("{0}")]
    TensorMismatch(Box<TensorMismatch>),
    /// A matrix that this vindex does not hold.
    #[error("{tensor} is not in {} (level {level}{layers}); {add}", path.display())]
    Absent {
        /// The vindex.
        path: PathBuf,
        /// The canonical name of the tensor.
        tensor: String,
        /// What the vindex holds.
        level: Level,
        /// ", layers A..B" where the vindex holds only those, else empty.
        layers: String,
        /// The command that adds it.
        add: String,
    },
    /// A layer beyond the model's.
    #[error("layer {layer} does not exist: the model has layers 0 to {}", n_layers - 1)]
    NoSuchLayer {
        /// The layer asked for.
        layer: usize,
        /// Layers of the model.
        n_layers: usize,
    },
    /// A feature beyond the layer's.
    #[error("feature {feature} does not exist: layer {layer} has features 0 to {}", n_features - 1)]
    NoSuchFeature {
        /// The layer.
        layer: usize,
        /// The feature asked for.
        feature: usize,
        /// Features of the layer.
        n_features: usize,
    },
    /// A layer without experts was asked for one.
    #[error("layer {layer} has no experts: it is dense; leave out --expert")]
    NotMoe {
        /// The layer.
        layer: usize,
    },
    /// An expert that the layer does not have.
    #[error("expert {expert} does not exist: layer {layer} has experts 0 to {}", n_experts - 1)]
    NoSuchExpert {
        /// The layer.
        layer: usize,
        /// The expert asked for.
        expert: usize,
        /// Experts of the layer; the shared ones together count as the last.
        n_experts: usize,
    },
    /// A token that the vocabulary does not have.
    #[error("token {token} does not exist: the vocabulary has tokens 0 to {}", vocab_size - 1)]
    NoSuchToken {
        /// The token asked for.
        token: u32,
        /// Tokens of the vocabulary.
        vocab_size: usize,
    },
    /// A batch of queries whose length is no multiple of the hidden size.
    #[error(
        "the queries have {found} elements, which is no multiple of the hidden size {expected}"
    )]
    QueryLength {
        /// The hidden size.
        expected: usize,
        /// Elements given.
        found: usize,
    },
    /// A word that has no tokens.
    #[error("the query is empty: give a word of at least one token")]
    EmptyQuery,
    /// A word of more tokens than are compared one by one.
    #[error("the word has {tokens} tokens, and at most {max} are described; describe its parts")]
    LongQuery {
        /// Tokens given.
        tokens: usize,
        /// Most that are taken.
        max: usize,
    },
    /// A feature whose score is NaN.
    #[error(
        "feature {feature} of layer {layer} scores NaN: its row, or the query, holds values that \
         are not finite; `larql verify` tells whether the file is damaged"
    )]
    NanFeature {
        /// The layer.
        layer: usize,
        /// The feature.
        feature: usize,
    },
    /// A router that gives NaN for an expert.
    #[error("the router of layer {layer} gives NaN for expert {expert}")]
    NanRouter {
        /// The layer.
        layer: usize,
        /// The expert.
        expert: usize,
    },
    /// The destination exists.
    #[error("{} exists already; --force replaces it", path.display())]
    Exists {
        /// The destination.
        path: PathBuf,
    },
    /// `--force` would destroy something that is not a vindex.
    #[error("{} is not a vindex, so --force does not replace it; delete it yourself or choose another name", path.display())]
    NotReplaceable {
        /// The destination.
        path: PathBuf,
    },
    /// A vindex to be replaced holds files that are not its own.
    #[error(
        "{} holds files that are not the vindex's, which --force would delete: {}; move them away first",
        path.display(),
        files.join(", ")
    )]
    HoldsOthers {
        /// The vindex.
        path: PathBuf,
        /// The names of those files.
        files: Vec<String>,
    },
    /// An option that makes no sense, or not with this source.
    #[error("{option}: {why}")]
    Option {
        /// The option as the user wrote it (`--dtype q4_1`).
        option: String,
        /// Why it cannot be done, and what can.
        why: String,
    },
    /// The user stopped the work.
    #[error("stopped by the user; {left}")]
    Cancelled {
        /// What is left on disk.
        left: String,
    },
    /// The content of a file beside the weights is broken.
    #[error("{}: {section}: {why}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Part of the file.
        section: String,
        /// What is wrong with it and what to do.
        why: String,
    },
    /// A model file is broken or unknown.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A computation refused its arguments.
    #[error(transparent)]
    Compute(#[from] ComputeError),
}

/// A tensor that a GGUF header and the manifest describe differently.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}: tensor {tensor}: {what} is {found} in the file but {expected} in the manifest; {repair}",
    path.display()
)]
pub struct TensorMismatch {
    /// The weight file.
    pub path: PathBuf,
    /// The tensor's name.
    pub tensor: String,
    /// Which property ("dtype", "shape", "presence").
    pub what: &'static str,
    /// What the manifest says.
    pub expected: String,
    /// What the file says.
    pub found: String,
    /// The command that repairs it.
    pub repair: String,
}

impl VindexError {
    /// An [`VindexError::Io`] for `action` on `path`, made to be used in `map_err`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }
}
