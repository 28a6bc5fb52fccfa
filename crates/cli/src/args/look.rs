//! Flags of the commands that look at a forward pass.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::LayerRange;

#[derive(Debug, Args)]
pub(crate) struct Trace {
    /// The vindex
    pub(crate) vindex: PathBuf,
    /// The text
    pub(crate) prompt: String,
    /// The word whose logit is followed; one token [default: what the model says next]
    #[arg(short, long, value_name = "T")]
    pub(crate) token: Option<String>,
    /// Tokens to show after each layer, and features in all
    #[arg(short = 'k', long, value_name = "K", default_value_t = 5)]
    pub(crate) top: usize,
    /// The position to look at, counted from 0 (where the model wants a BOS, that is 0) [default:
    /// the last]
    #[arg(short, long, value_name = "P")]
    pub(crate) position: Option<usize>,
    /// Also draw what each layer would say at every position up to this one
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Walk {
    /// The vindex
    pub(crate) vindex: PathBuf,
    /// The text
    pub(crate) text: String,
    /// Layers to walk: `3`, `A..B` (B excluded) or `A..=B` [default: all]
    #[arg(long, value_name = "A..B")]
    pub(crate) layers: Option<LayerRange>,
    /// Features to show for each layer and position
    #[arg(short = 'k', long, value_name = "K", default_value_t = 3)]
    pub(crate) top: usize,
    /// What is asked of every layer
    #[arg(long, value_enum, default_value = "residual")]
    pub(crate) query: WalkQuery,
    /// The positions to show: a number counted from 0 (where the model wants a BOS, that is 0),
    /// `last` or `all`
    #[arg(short, long, value_name = "P", default_value = "last")]
    pub(crate) position: Positions,
    /// Also draw the strongest feature of every layer, at every position up to the last one shown
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// What a walk asks of every layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WalkQuery {
    /// The real residual, by a forward pass: the features that fire, by how much they write
    Residual,
    /// The last token's embedding, the same at every layer, without a forward pass: for comparison
    /// only, beyond the first layers it resembles what the model computes poorly
    Embedding,
}

/// Which positions of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Positions {
    /// The last one.
    Last,
    /// All of them.
    All,
    /// One.
    One(usize),
}

impl FromStr for Positions {
    type Err = String;

    fn from_str(text: &str) -> Result<Positions, String> {
        match text {
            "last" => Ok(Positions::Last),
            "all" => Ok(Positions::All),
            number => number
                .parse()
                .map(Positions::One)
                .map_err(|_| "a position is a number counted from 0, `last` or `all`".to_owned()),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Why {
    /// The vindex
    pub(crate) vindex: PathBuf,
    /// The text
    pub(crate) prompt: String,
    /// The word that is asked about; one token [default: what the model says next]
    #[arg(short, long, value_name = "T")]
    pub(crate) token: Option<String>,
    /// The word that it might have said instead; one token [default: everything else, each token
    /// with its probability]
    #[arg(long, value_name = "T2")]
    pub(crate) against: Option<String>,
    /// Compare what features do with what they do at the end of this text, or on average at the
    /// ends of several [default: with their means over a reference text that comes with larql]
    #[arg(long, value_name = "PROMPT2", num_args = 1..)]
    pub(crate) contrast: Vec<String>,
    /// Also set the N features that speak most for the word to what they are compared with, at the
    /// position only, and show what becomes of the word, and of unrelated texts
    #[arg(long, value_name = "N")]
    pub(crate) ablate: Option<std::num::NonZeroUsize>,
    /// Features to show for the word, and against it
    #[arg(short = 'k', long, value_name = "K", default_value_t = 10)]
    pub(crate) top: usize,
    /// The position to look at, counted from 0 (where the model wants a BOS, that is 0) [default:
    /// the last]
    #[arg(short, long, value_name = "P")]
    pub(crate) position: Option<usize>,
}
