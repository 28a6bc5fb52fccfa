//! `larql pull hf://ORG/REPO`: a model from the Hugging Face hub, or from a mirror of it.
//!
//! Each file goes to `.NAME.part` beside its target, is checked, and all are renamed at the end:
//! what is in place is whole. Parts outlive an interruption, and the next pull goes on from them.

mod client;
mod source;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

use self::client::Client;
use self::source::{Listed, Source};
use super::{cannot, lock, sha256_of};
use crate::args::Pull;
use crate::context::Context;
use crate::environment;
use crate::error::{Diagnostic, Failure};
use crate::progress::Bars;
use crate::render::{Column, Page, Report, Table, units};

const ENDPOINT: &str = "https://huggingface.co";

#[derive(Serialize)]
struct Pulled {
    model: String,
    /// The commit that the revision stood for.
    commit: String,
    /// What to extract from: the directory, or the GGUF file.
    path: PathBuf,
    files: Vec<PulledFile>,
    bytes: u64,
    seconds: f64,
}

#[derive(Serialize)]
struct PulledFile {
    name: String,
    bytes: u64,
    /// Checked; the hub gives none for small files.
    sha256: Option<String>,
    /// Whether it had to be fetched; else it was there and whole.
    fetched: bool,
}

pub(super) fn run(args: &Pull, context: &Context) -> Result<(), Failure> {
    let begun = Instant::now();
    let source = Source::parse(&args.model)?;
    let endpoint = args.endpoint.as_deref().unwrap_or(ENDPOINT);
    let client = Client::new(endpoint, args.token_file.as_deref())?;
    let dir = directory(args, &source)?;
    let bars = Bars::new(context);
    let listing = client.list(&source, &bars)?;
    let commit = listing.sha.clone();
    if commit.is_empty() || !commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(Diagnostic::new(format!("the hub names no commit, but {commit:?}")).into());
    }
    let wanted = source.select(&listing)?;
    fs::create_dir_all(&dir).map_err(|error| cannot("create", &dir, &error))?;
    let _lock = lock(&dir, context)?;

    let mut files = Vec::new();
    for listed in wanted {
        files.push(fetch(&client, &source, &commit, listed, &dir, args.force, &bars)?);
    }
    for file in files.iter().filter(|file| file.fetched) {
        let target = dir.join(&file.name);
        fs::rename(part(&dir, &file.name), &target)
            .map_err(|error| cannot("rename into place", &target, &error))?;
    }
    let path = match &source.file {
        Some(file) => dir.join(base(file)),
        None => dir,
    };
    let bytes = files.iter().map(|file| file.bytes).sum();
    let seconds = begun.elapsed().as_secs_f64();
    context.emit(&Pulled { model: args.model.clone(), commit, path, files, bytes, seconds })
}

/// `-o`, else a directory of the repository and revision in the cache.
fn directory(args: &Pull, source: &Source) -> Result<PathBuf, Failure> {
    if let Some(dir) = &args.output {
        if dir.is_file() || (!dir.exists() && dir.extension().is_some_and(|e| e == "gguf")) {
            let told = Diagnostic::new("for a model on the hub, -o names a directory");
            return Err(told.at_path(dir).help("files keep their names in it").into());
        }
        return Ok(dir.clone());
    }
    let mut below = source.repository.clone();
    if source.revision != "main" {
        below += &format!("@{}", source.revision.replace(['/', '\\', ':'], "-"));
    }
    environment::cache_dir().map(|cache| cache.join("hf").join(below)).ok_or_else(|| {
        Diagnostic::new("there is no home directory to keep models in")
            .help("say where with -o DIR, or set XDG_CACHE_HOME")
            .into()
    })
}

/// Brings one file, checked, to its part; or finds it in place and whole.
fn fetch(
    client: &Client,
    source: &Source,
    commit: &str,
    listed: &Listed,
    dir: &Path,
    force: bool,
    bars: &Bars,
) -> Result<PulledFile, Failure> {
    let name = base(&listed.name);
    let Some(size) = listed.size else {
        return Err(Diagnostic::new(format!("the hub does not say how long {name} is")).into());
    };
    let (target, part) = (dir.join(name), part(dir, name));
    let sha256 = listed.lfs.as_ref().map(|lfs| lfs.sha256.to_ascii_lowercase());
    let pulled = |fetched| PulledFile {
        name: name.to_owned(),
        bytes: size,
        sha256: sha256.clone(),
        fetched,
    };
    let Some(expected) = &sha256 else {
        // Without a hash nothing says that what is there is of this commit. Such files are small.
        remove(&part)?;
        client.fetch(source, (commit, &listed.name, size), &part, bars)?;
        return Ok(pulled(true));
    };
    let there = fs::metadata(&target).is_ok_and(|found| found.is_file() && found.len() == size);
    if there && !force && hash(&target, bars)? == *expected {
        return Ok(pulled(false));
    }
    loop {
        let resumed = part.exists();
        client.fetch(source, (commit, &listed.name, size), &part, bars)?;
        let found = hash(&part, bars)?;
        if found == *expected {
            return Ok(pulled(true));
        }
        remove(&part)?;
        // The part may have been of another revision: once more, from the beginning.
        if !resumed {
            let what = "what was fetched is not the file: its SHA-256 is wrong";
            return Err(Diagnostic::new(what)
                .at(format!("hf://{}/{}", source.repository, listed.name))
                .note(format!("expected {expected}"))
                .note(format!("found    {found}"))
                .help("fetch again; if it stays so, this endpoint does not serve the real file")
                .into());
        }
    }
}

/// The last part of a path in the repository, which is the file's name here.
fn base(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

fn part(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!(".{name}.part"))
}

fn hash(path: &Path, bars: &Bars) -> Result<String, Failure> {
    sha256_of(path, bars).map_err(|failure| match failure {
        Failure::Cancelled(_) => cancelled(),
        failure => failure,
    })
}

fn remove(path: &Path) -> Result<(), Failure> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(cannot("delete", path, &error))
        }
        _ => Ok(()),
    }
}

fn cancelled() -> Failure {
    Failure::Cancelled("what was fetched is kept; the same command goes on from there".to_owned())
}

impl Report for Pulled {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.fields(&[
            ("model", self.model.clone()),
            ("commit", self.commit.clone()),
            ("path", self.path.display().to_string()),
            ("size", units::bytes(self.bytes)),
        ])?;
        let mut table =
            Table::new([Column::text("file"), Column::number("size"), Column::text("state")]);
        for file in &self.files {
            let state = match (file.fetched, &file.sha256) {
                (false, _) => "there already, SHA-256 verified",
                (true, Some(_)) => "fetched, SHA-256 verified",
                (true, None) => "fetched, length verified",
            };
            table.row([file.name.clone(), units::bytes(file.bytes), state.to_owned()]);
        }
        page.table(&table)
    }
}
