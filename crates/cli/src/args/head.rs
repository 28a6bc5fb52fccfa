//! `larql lm-head`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct LmHead {
    /// The vindex
    pub(crate) vindex: PathBuf,
    /// Delete the planes
    #[arg(long)]
    pub(crate) delete: bool,
    /// Build planes also of a head that is too small for them to matter
    #[arg(long, conflicts_with = "delete")]
    pub(crate) force: bool,
}
