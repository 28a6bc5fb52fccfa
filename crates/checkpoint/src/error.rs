//! Every way in which a model file can be refused.

use std::io;
use std::path::{Path, PathBuf};

use crate::ConfigError;
use crate::gguf::GgufFault;
use crate::safetensors::SafetensorsFault;
use crate::tokenizer::TokenizerFault;

/// What is wrong with a model file, and where. The message says what was expected and what was
/// found; [`CheckpointError::help`] says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done to it: a verb.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A mapped file was changed by somebody else.
    #[error(
        "{} was changed while larql had it open: {expected} bytes then, {found} bytes now",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// Its length when it was opened.
        expected: u64,
        /// Its length now.
        found: u64,
    },
    /// A GGUF file says something that cannot be true.
    #[error("{}, byte {offset}: {fault}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// Where in the file the faulty field begins.
        offset: u64,
        /// What is wrong there.
        fault: Box<GgufFault>,
    },
    /// A safetensors file, or the index of a sharded model, says something that cannot be true.
    #[error("{}: {fault}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: Box<SafetensorsFault>,
    },
    /// A tokenizer cannot be built, used or written.
    #[error("{}: {fault}", path.display())]
    Tokenizer {
        /// The file that it comes from.
        path: PathBuf,
        /// What is wrong with it.
        fault: Box<TokenizerFault>,
    },
    /// The files are sound, but the model in them is not, or not one that larql runs.
    #[error("{}: {source}", path.display())]
    Model {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with the model.
        source: Box<ConfigError>,
    },
}

impl CheckpointError {
    /// An I/O error with the file and the action it belongs to.
    pub(crate) fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), action, source }
    }

    /// A fault of a GGUF file.
    pub(crate) fn gguf(path: &Path, offset: u64, fault: GgufFault) -> Self {
        Self::Gguf { path: path.to_path_buf(), offset, fault: Box::new(fault) }
    }

    /// A fault of a safetensors file.
    pub(crate) fn safetensors(path: &Path, fault: SafetensorsFault) -> Self {
        Self::Safetensors { path: path.to_path_buf(), fault: Box::new(fault) }
    }

    /// A fault of a tokenizer.
    pub(crate) fn tokenizer(path: &Path, fault: TokenizerFault) -> Self {
        Self::Tokenizer { path: path.to_path_buf(), fault: Box::new(fault) }
    }

    /// The file that the error is about, where there is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. }
            | Self::Changed { path, .. }
            | Self::Gguf { path, .. }
            | Self::Safetensors { path, .. }
            | Self::Tokenizer { path, .. }
            | Self::Model { path, .. } => Some(path),
        }
    }

    /// What the reader of the message can do about it, where something can be said.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => Some("check the path".into()),
                io::ErrorKind::PermissionDenied => {
                    Some("ask the file's owner for permission to read it".into())
                }
                _ => None,
            },
            Self::Changed { .. } => Some("open it again once the other program is done".into()),
            Self::Gguf { fault, .. } => fault.help(),
            Self::Safetensors { fault, .. } => Some(fault.help()),
            Self::Tokenizer { fault, .. } => fault.help(),
            Self::Model { source, .. } => source.help(),
        }
    }
}
