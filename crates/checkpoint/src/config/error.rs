//! What can be wrong with a model's configuration, or with its tensors in the light of it.

/// Every way in which a configuration is refused. The path stands in the
/// [`CheckpointError`](crate::CheckpointError) around it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The model's family is not one that larql runs.
    #[error("model family `{found}` is not known; larql reads {known}")]
    UnknownFamily {
        /// `general.architecture`, or `model_type` of `config.json`.
        found: String,
        /// The families that are known, comma-separated.
        known: String,
    },
    /// `config.json` is no JSON.
    #[error("not valid JSON: {why}")]
    NotJson {
        /// What the parser says, with line and column.
        why: String,
    },
    /// A field that the family needs is absent.
    #[error("the configuration has no `{key}`, which the {family} family needs")]
    MissingKey {
        /// The field's name in the source.
        key: String,
        /// The family's name.
        family: &'static str,
    },
    /// A field has a type or a value that makes no sense.
    #[error("`{key}` is {found}, where {expected} is expected")]
    BadValue {
        /// The field's name in the source.
        key: String,
        /// What stands there.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// The model is well-formed, but uses something that larql does not implement.
    #[error("`{key}` is {found}: {why}")]
    Unsupported {
        /// The field's name in the source.
        key: String,
        /// What stands there.
        found: String,
        /// What is not implemented.
        why: &'static str,
    },
    /// A tensor that the configuration calls for is absent.
    #[error("tensor `{name}` of shape {expected:?} is missing{hint}")]
    MissingTensor {
        /// Name in the source's own spelling.
        name: String,
        /// Shape that the configuration implies, columns first.
        expected: Vec<usize>,
        /// Empty, or what the reader can do about it.
        hint: &'static str,
    },
    /// A tensor does not have the shape that the configuration implies.
    #[error("tensor `{name}` has shape {found:?} where the configuration implies {expected:?}")]
    WrongShape {
        /// Name in the source's own spelling.
        name: String,
        /// Shape that the configuration implies.
        expected: Vec<usize>,
        /// Shape of the tensor.
        found: Vec<usize>,
    },
}

impl ConfigError {
    /// What the reader of the message can do about it, where something can be said.
    pub(crate) fn help(&self) -> Option<String> {
        match self {
            Self::MissingTensor { .. } | Self::WrongShape { .. } => Some(
                "the file was converted incompletely or does not belong to this configuration: \
                 fetch or convert the model again"
                    .into(),
            ),
            _ => None,
        }
    }

    pub(crate) fn bad(
        key: impl Into<String>,
        found: impl std::fmt::Display,
        expected: impl Into<String>,
    ) -> Self {
        Self::BadValue { key: key.into(), found: found.to_string(), expected: expected.into() }
    }
}
