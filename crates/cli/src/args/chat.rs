//! Flags of `larql chat`.

use std::path::PathBuf;

use clap::Args;

use super::{Running, Sampling};

#[derive(Debug, Args)]
#[command(
    after_help = "On a terminal, lines can be edited, and the arrow keys bring back earlier \
ones. Ctrl-C ends a reply (pressed again before it has ended: the program), Ctrl-D or /exit the \
chat; /help lists the other commands.\n\n\
A reply ends at the model's end-of-turn tokens, at what the template puts after an answer (where \
that is nothing: at the line that begins the next turn), and at --stop.\n\n\
Where stdin is no terminal, each line is said in turn and only the replies are printed; with --json \
one object a line."
)]
pub(crate) struct Chat {
    /// The vindex
    pub(crate) vindex: PathBuf,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// A chat template (Jinja, as in `tokenizer_config.json`) in place of the model's own
    #[arg(long, value_name = "FILE")]
    pub(crate) template: Option<PathBuf>,
    /// Most tokens of a reply [default: until the model ends it]
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) tokens: Option<usize>,
    #[command(flatten)]
    pub(crate) sampling: Sampling,
    #[command(flatten)]
    pub(crate) running: Running,
}
