//! `larql bench`.

use std::path::PathBuf;

use clap::Args;
use larql_inference::{FfnMode, Keep, KvDtype};

use super::generate::{ffn, keep, kv};

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// The vindex
    pub(crate) vindex: PathBuf,
    /// What to measure, joined by commas: cpu
    #[arg(long, value_name = "NAMES", default_value = "cpu", value_delimiter = ',')]
    #[arg(value_parser = backend)]
    pub(crate) backends: Vec<Backend>,
    /// The text that the model continues
    #[arg(long, value_name = "TEXT", default_value = "Paris is the capital of")]
    pub(crate) prompt: String,
    /// Tokens of the prompt: another text is put before it to make so many [default: 512, or what
    /// the model's context allows]
    #[arg(long, value_name = "N")]
    pub(crate) prompt_tokens: Option<usize>,
    /// Tokens to generate, each timed
    #[arg(short = 'n', long, value_name = "N", default_value = "30")]
    pub(crate) tokens: std::num::NonZeroUsize,
    /// Tokens to generate before, untimed; 0: the first pages come from the disk
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) warmup: usize,
    /// Also show the time of every operation, what is in memory, and all caches
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// How keys and values are stored: f16, q8_0 or f32
    #[arg(long, value_name = "DTYPE", default_value = "f16", value_parser = kv)]
    pub(crate) kv: KvDtype,
    /// Which features of every FFN take part: `dense` (all), `walk:K` or `walk:P%`
    #[arg(long, value_name = "MODE", default_value = "dense", value_parser = ffn)]
    pub(crate) ffn: FfnMode,
    #[command(flatten)]
    pub(crate) quality: Quality,
}

/// Measuring how good the answers are, instead of how fast.
#[derive(Debug, Args)]
#[command(next_help_heading = "Quality instead of speed")]
pub(crate) struct Quality {
    /// The perplexity of a text, in windows as llama.cpp's `perplexity` cuts it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ffn_sweep", "prompt_tokens", "verbose"])]
    pub(crate) perplexity: Option<PathBuf>,
    /// What walks of the FFN cost: for each K the agreement with `--ffn dense`
    #[arg(long, conflicts_with_all = ["ffn", "prompt_tokens", "verbose"])]
    pub(crate) ffn_sweep: bool,
    /// The text of `--ffn-sweep` [default: the beginning of "Alice's Adventures in Wonderland"]
    #[arg(long, value_name = "FILE", requires = "ffn_sweep")]
    pub(crate) text: Option<PathBuf>,
    /// The walks of `--ffn-sweep`: features a layer, or percent of them
    #[arg(long, value_name = "K,…", value_delimiter = ',', value_parser = keep)]
    #[arg(default_value = "1%,2%,5%,10%,25%,50%,100%", requires = "ffn_sweep")]
    pub(crate) keep: Vec<Keep>,
    /// Tokens of a window of `--perplexity` and `--ffn-sweep`; its second half is foretold
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) window: usize,
}

/// What a model can be run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    /// The CPU.
    Cpu,
}

impl Backend {
    /// Its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Backend::Cpu => "cpu",
        }
    }
}

fn backend(name: &str) -> Result<Backend, String> {
    match name {
        "cpu" => Ok(Backend::Cpu),
        "gpu" | "metal" => Err("this larql runs models on the CPU only: --backends cpu".to_owned()),
        _ => Err("the backends are: cpu".to_owned()),
    }
}
