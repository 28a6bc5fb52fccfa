//! The environment variables that larql reads. These are all of them; the libraries read none.
//!
//! - `NO_COLOR`: no colour unless `--color always` asks for it.
//! - `XDG_CACHE_HOME`: where `larql pull` keeps models (default `~/.cache`).
#![allow(clippy::disallowed_methods, reason = "the one place where the environment is read")]

use std::path::PathBuf;

/// Whether `NO_COLOR` is set to anything but the empty string.
pub(crate) fn no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// `$XDG_CACHE_HOME/larql`, else `~/.cache/larql`; `None` where there is no home directory.
pub(crate) fn cache_dir() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        // The XDG specification says that a relative path is to be ignored.
        .filter(|path| path.is_absolute())
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache")))?;
    Some(base.join("larql"))
}
