//! The command tree. What a flag means is said here once, in its doc comment: help and shell
//! completions are generated from it.

mod bench;
mod chat;
mod generate;
mod head;
mod look;
mod values;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use larql_compute::Dtype;
use larql_vindex::labels::LabelScore;
use larql_vindex::{Group, Level};

pub(crate) use bench::{Backend, Bench};
pub(crate) use chat::Chat;
pub(crate) use generate::{ContextArg, DEFAULT_CONTEXT, Run, Running, Sampling, ffn_name};
pub(crate) use head::LmHead;
pub(crate) use look::{Positions, Trace, Walk, WalkQuery, Why};
pub(crate) use values::{FeatureRef, LayerRange};

/// A language model's weights, opened as a database.
#[derive(Debug, Parser)]
#[command(name = "larql", version, max_term_width = 100, propagate_version = true)]
#[command(after_help = "Start here:\n  \
    larql pull gemma-3-270m\n  \
    larql extract-index ~/.cache/larql/gemma-3-270m-q4_k_m.gguf -o gemma-3-270m.vindex\n  \
    larql describe gemma-3-270m.vindex France\n\n\
Environment: NO_COLOR turns colour off; XDG_CACHE_HOME says where `larql pull` keeps models.")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of every command.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Print rows as JSON instead of tables
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    /// When to use colour
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", value_enum)]
    #[arg(help_heading = "Global options")]
    pub(crate) color: ColorChoice,
    /// Show no progress and no remarks
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub(crate) quiet: bool,
    /// Threads to compute with [default: one for each physical core]
    #[arg(long, global = true, value_name = "N", help_heading = "Global options")]
    pub(crate) threads: Option<std::num::NonZeroUsize>,
    /// Kernels to compute with: scalar, avx2, avx512 or neon [default: the fastest that this CPU has]
    #[arg(long, global = true, value_name = "ISA", help_heading = "Global options")]
    pub(crate) cpu: Option<String>,
}

/// When to use colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Also into files and pipes
    Always,
    /// Nowhere
    Never,
}

/// What larql can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say what is in a model file, a model directory or a vindex; or what this machine offers
    Info(Info),
    /// Make a vindex from a GGUF file or a safetensors directory
    #[command(visible_alias = "extract")]
    ExtractIndex(Extract),
    /// Convert between formats and dtypes
    #[command(subcommand)]
    Convert(Convert),
    /// Recompute the SHA-256 of every file of a vindex
    Verify(Verify),
    /// Make a smaller vindex that holds only some roles of another
    Slice(Slice),
    /// Run the model: continue a text
    Run(Run),
    /// Hold a conversation with the model
    Chat(Chat),
    /// Measure the model: speed, memory, perplexity, what walks cost
    Bench(Bench),
    /// Count what a vindex holds: layers, features, bytes by role, label coverage
    Stats(Stats),
    /// Find the features of one layer whose gate rows answer most strongly to a vector
    Knn(Knn),
    /// Show which features fire in every layer while the model reads a text
    Walk(Walk),
    /// Show how a prediction comes about: what each layer would say, and what adds to a logit
    Trace(Trace),
    /// Show which features speak for a prediction, and what becomes of it without them
    Why(Why),
    /// Find the features that write a word
    Describe(Describe),
    /// Show one feature: its norms and its labels
    Feature(Feature),
    /// Show or compute the labels of features
    Labels(Labels),
    /// Build the coarse planes that find the next token without reading the whole LM head
    LmHead(LmHead),
    /// Show what is mapped and what of it is in memory
    Residency(Residency),
    /// Fetch a model into the cache
    Pull(Pull),
    /// Print a completion script for a shell
    Completions(Completions),
}

#[derive(Debug, Args)]
pub(crate) struct Info {
    /// A GGUF file, a safetensors directory or a vindex; without it: this machine
    pub(crate) path: Option<PathBuf>,
    /// List every tensor, not only sums by role and dtype
    #[arg(long, requires = "path")]
    pub(crate) tensors: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Extract {
    /// A GGUF file (of a split one: the first), or a directory with safetensors and config.json
    pub(crate) source: PathBuf,
    /// The vindex to make
    #[arg(short, long, value_name = "VINDEX")]
    pub(crate) output: PathBuf,
    /// How much to take: browse (gates, embeddings, labels), inference, or all
    #[arg(long, default_value = "all", value_parser = values::level())]
    pub(crate) level: Level,
    /// Also store every down matrix with one row for each feature
    #[arg(long)]
    pub(crate) feature_major_down: bool,
    /// When to compute labels
    #[arg(long, value_name = "WHEN", default_value = "lazy", value_enum)]
    pub(crate) labels: LabelsWhen,
    #[command(flatten)]
    pub(crate) label_flags: LabelFlags,
    /// Dtype to store matrices in [default: as they are]
    #[arg(long, value_parser = values::dtype)]
    pub(crate) dtype: Option<Dtype>,
    /// Write one GGUF for each role instead of linking or writing a whole model
    #[arg(long)]
    pub(crate) split: bool,
    /// Copy a GGUF source instead of linking it
    #[arg(long)]
    pub(crate) copy: bool,
    /// Replace a vindex that is there
    #[arg(long, conflicts_with = "resume")]
    pub(crate) force: bool,
    /// Continue the labels of a vindex where they stopped
    #[arg(long)]
    pub(crate) resume: bool,
}

/// When labels are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LabelsWhen {
    /// Now, all of them
    Eager,
    /// Each when it is first shown
    Lazy,
    /// None: features are shown without, until `larql labels --compute`
    None,
}

/// How labels are computed.
#[derive(Debug, Args)]
pub(crate) struct LabelFlags {
    /// How a token is scored against a feature's output direction: `cosine` (only the direction
    /// counts), `dot` (tokens of large norm win) or `centred` (cosine after the mean row is taken
    /// off: fewest hub tokens, loses function words) [default: as the labels that are there, else
    /// cosine]
    #[arg(long, value_parser = values::score())]
    pub(crate) score: Option<LabelScore>,
    /// Tokens that a label keeps for each sign [default: as the labels that are there, else 10]
    #[arg(long, value_name = "K")]
    pub(crate) top_tokens: Option<usize>,
    /// Layers: `3`, `A..B` (B excluded) or `A..=B` [default: all]
    #[arg(long, value_name = "A..B")]
    pub(crate) layers: Option<LayerRange>,
}

impl LabelFlags {
    /// Whether any was given.
    pub(crate) fn any(&self) -> bool {
        self.score.is_some() || self.top_tokens.is_some() || self.layers.is_some()
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Convert {
    /// Make a vindex from a GGUF file; the same as `larql extract-index`
    GgufToVindex(Extract),
    /// Store the matrices of a model in another dtype, and report size and error by role
    Quantize(Quantize),
}

#[derive(Debug, Args)]
pub(crate) struct Quantize {
    /// Dtype to store matrices in: q4k, q6k, q8_0, q4_0, f16 or bf16
    #[arg(value_parser = values::dtype)]
    pub(crate) dtype: Dtype,
    /// A GGUF file, a safetensors directory or a vindex
    pub(crate) source: PathBuf,
    /// The vindex to make
    #[arg(short, long, value_name = "VINDEX")]
    pub(crate) output: PathBuf,
    /// Also store every down matrix with one row for each feature
    #[arg(long)]
    pub(crate) feature_major_down: bool,
    /// Replace a vindex that is there
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// The vindex to check
    pub(crate) vindex: PathBuf,
    /// Where every byte of a linked file is right but its time is not, record the new time
    #[arg(long)]
    pub(crate) repair: bool,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("kept").args(["level", "roles", "layers"]).required(true).multiple(true)))]
pub(crate) struct Slice {
    /// The vindex to take from
    pub(crate) vindex: PathBuf,
    /// The vindex to make
    #[arg(short, long, value_name = "VINDEX")]
    pub(crate) output: PathBuf,
    /// Keep the roles of a level
    #[arg(long, value_parser = values::level())]
    pub(crate) level: Option<Level>,
    /// Keep exactly these roles, joined by commas
    #[arg(long, visible_alias = "role", value_delimiter = ',', conflicts_with = "level")]
    #[arg(value_parser = values::group())]
    pub(crate) roles: Vec<Group>,
    /// Keep these layers: `3`, `A..B` (B excluded) or `A..=B` [default: all]
    #[arg(long, value_name = "A..B")]
    pub(crate) layers: Option<LayerRange>,
    /// Replace a vindex that is there
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Stats {
    /// The vindex
    pub(crate) vindex: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Knn {
    /// The vindex
    pub(crate) vindex: PathBuf,
    /// The layer whose gate rows are searched
    #[arg(short, long)]
    pub(crate) layer: usize,
    #[command(flatten)]
    pub(crate) query: KnnQuery,
    /// How many features to return
    #[arg(short = 'k', long, value_name = "K", default_value_t = 10)]
    pub(crate) top: usize,
    /// Order by the score's size, or by the score with its sign
    #[arg(long, value_enum, default_value = "abs")]
    pub(crate) order: OrderArg,
    /// Search one expert of a mixture-of-experts layer only
    #[arg(long, value_name = "N")]
    pub(crate) expert: Option<usize>,
    /// Search the experts that the layer's router chooses for the vector
    #[arg(long, conflicts_with = "expert")]
    pub(crate) routed: bool,
}

/// Where the query vector comes from.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct KnnQuery {
    /// The embedding of a word's last token, through the layer's norm
    #[arg(long, value_name = "WORD")]
    pub(crate) token: Option<String>,
    /// A vector from a file: .npy, or JSON with an array of numbers
    #[arg(long, value_name = "FILE")]
    pub(crate) vector: Option<PathBuf>,
    /// The gate row of another feature
    #[arg(long, value_name = "LAYER:FEATURE")]
    pub(crate) row: Option<FeatureRef>,
}

/// The order of scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrderArg {
    /// By |score|, strongest first
    Abs,
    /// By score, highest first
    Signed,
}

#[derive(Debug, Args)]
pub(crate) struct Describe {
    /// The vindex
    pub(crate) vindex: PathBuf,
    /// The word, as it stands inside a sentence
    pub(crate) word: String,
    /// How many features to return
    #[arg(short = 'k', long, value_name = "K", default_value_t = 20)]
    pub(crate) top: usize,
    /// Layers to search: `3`, `A..B` (B excluded) or `A..=B` [default: all]
    #[arg(long, value_name = "A..B")]
    pub(crate) layers: Option<LayerRange>,
    /// Leave out features whose cosine is smaller than this
    #[arg(long, value_name = "COSINE", default_value_t = 0.0)]
    pub(crate) min: f32,
    /// What is asked of every feature
    #[arg(long, value_enum, default_value = "output")]
    pub(crate) query: DescribeQuery,
}

/// What `describe` asks of every feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DescribeQuery {
    /// Whether its output points along the word's unembedding
    Output,
    /// Whether its gate row answers to the embedding of the word's last token, the customary way:
    /// for comparison only, it finds rows of large norm rather than features about the word
    Embedding,
}

#[derive(Debug, Args)]
pub(crate) struct Feature {
    /// The vindex
    pub(crate) vindex: PathBuf,
    /// The feature
    #[arg(value_name = "LAYER:FEATURE")]
    pub(crate) feature: FeatureRef,
}

#[derive(Debug, Args)]
pub(crate) struct Labels {
    /// The vindex
    pub(crate) vindex: PathBuf,
    /// Show the labels of this layer
    #[arg(short, long, conflicts_with_all = ["compute", "resume"])]
    pub(crate) layer: Option<usize>,
    /// Compute all labels anew
    #[arg(long, conflicts_with = "resume")]
    pub(crate) compute: bool,
    /// Compute the labels that are missing
    #[arg(long)]
    pub(crate) resume: bool,
    #[command(flatten)]
    pub(crate) flags: LabelFlags,
}

#[derive(Debug, Args)]
pub(crate) struct Residency {
    /// The vindex
    pub(crate) vindex: PathBuf,
}

// The comments are help texts first: brackets and addresses stand in them as users type them.
#[allow(rustdoc::broken_intra_doc_links, rustdoc::bare_urls)]
#[derive(Debug, Args)]
pub(crate) struct Pull {
    /// The model: gemma-3-270m, hf://ORG/REPO[@REVISION] or hf://ORG/REPO[@REVISION]/FILE.gguf
    pub(crate) model: String,
    /// Where to put it: a file, or for hf:// a directory [default: in larql's cache directory]
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: Option<PathBuf>,
    /// Fetch it even where it is already there and whole
    #[arg(long)]
    pub(crate) force: bool,
    /// For hf://: a file with an access token, for models that are gated or private
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// For hf://: the hub or a mirror of it [default: https://huggingface.co]
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_tree_is_consistent() {
        Cli::command().debug_assert();
    }
}
