//! The names of everything in a vindex directory, in one place: files, role groups, levels.
//!
//! File names say what a file is for, never how it is encoded: the manifest says that and the
//! GGUF header proves it.

use larql_checkpoint::config::FfnLayout;
use larql_checkpoint::{ModelConfig, Role};
use serde::{Deserialize, Serialize};

/// The manifest's file name.
pub const MANIFEST: &str = "index.json";

/// What a file in a vindex holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FileKind {
    /// A GGUF with all weights (or one part of a split one).
    Model,
    /// The GGUF of one role group.
    Weights,
    /// The tokenizer as the source had it.
    Tokenizer,
    /// Labels of every feature.
    DownMeta,
    /// The down projections, one row per feature.
    DownFeatures,
    /// Feature clusters.
    Clusters,
    /// One layer's HNSW graph.
    Ann,
}

impl FileKind {
    /// Whether the file can be deleted and made again from the others. A derived file may be
    /// absent from a vindex that opens; a weight file may not.
    pub const fn is_derived(self) -> bool {
        match self {
            Self::Model | Self::Weights | Self::Tokenizer => false,
            Self::DownMeta | Self::DownFeatures | Self::Clusters | Self::Ann => true,
        }
    }
}

/// Feature labels.
pub const DOWN_META: &str = "down_meta.bin";
/// Transposed down projections.
pub const DOWN_FEATURES: &str = "down_features.gguf";
/// Coarse planes of the LM head. The manifest does not name them: they say themselves which head
/// they are of.
pub const LM_HEAD_PLANES: &str = "lm_head.planes";
/// Mean activations of all features. As with the planes, they say themselves what they are of.
pub const FEATURE_MEANS: &str = "feature_means.bin";
/// The source's tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";
/// Files that a tokenizer is read from, besides [`TOKENIZER`].
pub const TOKENIZER_EXTRAS: [&str; 2] = ["tokenizer_config.json", "chat_template.jinja"];
/// All weights in one GGUF.
pub const MODEL: &str = "model.gguf";

/// The name of part `part` of `parts` (from 1) of a GGUF with all weights; GGUF's own pattern for
/// split files, which its readers follow by name.
pub fn model_part(part: usize, parts: usize) -> String {
    if parts == 1 { MODEL.to_owned() } else { format!("model-{part:05}-of-{parts:05}.gguf") }
}

/// Which weights stand together in one file after a slice or a split extraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Token and position embeddings and the final norm.
    Embeddings,
    /// The FFN keys, the norms around the FFN, the router.
    Gate,
    /// Up (where it is not the key) and down projections.
    Ffn,
    /// Attention and its norms.
    Attention,
    /// The unembedding, where it is not the embedding.
    LmHead,
    /// Tensors that larql has no role for.
    Other,
}

impl Group {
    /// Every group, in the order in which files are written.
    pub const ALL: [Self; 6] =
        [Self::Embeddings, Self::Gate, Self::Ffn, Self::Attention, Self::LmHead, Self::Other];

    /// The group's file.
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::Embeddings => "embeddings.gguf",
            Self::Gate => "gate_vectors.gguf",
            Self::Ffn => "ffn_weights.gguf",
            Self::Attention => "attn_weights.gguf",
            Self::LmHead => "lm_head.gguf",
            Self::Other => "other.gguf",
        }
    }

    /// The name used in flags (`larql slice --roles gate,ffn`).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embeddings => "embeddings",
            Self::Gate => "gate",
            Self::Ffn => "ffn",
            Self::Attention => "attention",
            Self::LmHead => "lm_head",
            Self::Other => "other",
        }
    }

    /// The group of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|g| g.name() == name)
    }

    /// The lowest level that includes the group.
    pub const fn level(self) -> Level {
        match self {
            Self::Embeddings | Self::Gate | Self::LmHead => Level::Browse,
            Self::Ffn | Self::Attention => Level::Inference,
            Self::Other => Level::All,
        }
    }
}

/// How much of a model a vindex holds. Each level includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Embeddings, unembedding, FFN keys and norms: KNN, embedding walks, features, labels.
    Browse,
    /// Everything a forward pass reads.
    Inference,
    /// Every tensor of the source, those that larql has no use for included.
    All,
}

impl Level {
    /// Every level, from least to most.
    pub const ALL: [Self; 3] = [Self::Browse, Self::Inference, Self::All];

    /// The name used in flags and in the manifest.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Browse => "browse",
            Self::Inference => "inference",
            Self::All => "all",
        }
    }

    /// The level of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|l| l.name() == name)
    }
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::fmt::Display for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Whether a model's FFN keys stand in its up matrices.
pub fn up_holds_keys(config: &ModelConfig) -> bool {
    config.ffn != FfnLayout::Gated
}

/// The group of a role. `up_holds_keys`: the family has no gate matrices of their own (GPT-2's
/// keys are the up rows, Phi-3's gate rows stand in the same matrix as its up rows).
pub fn group_of(role: Role, up_holds_keys: bool) -> Group {
    match role {
        Role::TokenEmbd | Role::PositionEmbd | Role::OutputNorm | Role::OutputNormBias => {
            Group::Embeddings
        }
        Role::Output => Group::LmHead,
        Role::FfnUp | Role::FfnUpBias if up_holds_keys => Group::Gate,
        Role::FfnGate
        | Role::FfnGateExps
        | Role::FfnGateShexp
        | Role::FfnGateInp
        | Role::ExpProbsBias
        | Role::FfnNorm
        | Role::FfnNormBias
        | Role::PostFfnNorm => Group::Gate,
        Role::FfnUp
        | Role::FfnUpBias
        | Role::FfnUpExps
        | Role::FfnUpShexp
        | Role::FfnDown
        | Role::FfnDownBias
        | Role::FfnDownExps
        | Role::FfnDownShexp => Group::Ffn,
        Role::RopeFreqs
        | Role::RopeFactorsLong
        | Role::RopeFactorsShort
        | Role::AttnNorm
        | Role::AttnNormBias
        | Role::AttnQ
        | Role::AttnQBias
        | Role::AttnK
        | Role::AttnKBias
        | Role::AttnV
        | Role::AttnVBias
        | Role::AttnQkv
        | Role::AttnQkvBias
        | Role::AttnOutput
        | Role::AttnOutputBias
        | Role::AttnQNorm
        | Role::AttnKNorm
        | Role::PostAttnNorm
        | Role::AttnQA
        | Role::AttnQANorm
        | Role::AttnQB
        | Role::AttnKvA
        | Role::AttnKvANorm
        | Role::AttnKvB
        | Role::AttnKB
        | Role::AttnVB => Group::Attention,
    }
}
