//! `verify`: every SHA-256 of a vindex, recomputed in parallel. It works from the manifest alone,
//! so that it can say what is wrong with a vindex that does not open.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::extract::default_threads;
use crate::files::{FEATURE_MEANS, LM_HEAD_PLANES, MANIFEST};
use crate::hash::{self, SEGMENT, Sha, Span};
use crate::manifest::{FileEntry, Manifest, Modified};
use crate::{Progress, VindexError, atomic};

/// How to verify.
#[derive(Debug, Clone, Default)]
pub struct VerifyOptions {
    /// Worker threads; `None` for one per core.
    pub threads: Option<usize>,
    /// Where every byte is right but a linked file's modification time is not, record the new one.
    pub repair: bool,
}

/// What was found, file by file, in the manifest's order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// One line a file.
    pub files: Vec<FileCheck>,
    /// Files in the directory that the manifest does not name.
    pub extra_files: Vec<String>,
    /// Bytes hashed.
    pub bytes: u64,
    /// Whether new modification times were recorded.
    pub repaired: bool,
}

impl VerifyReport {
    /// Whether every file is what the manifest says.
    pub fn is_sound(&self) -> bool {
        self.files.iter().all(|file| match file.state {
            FileState::Sound | FileState::Growing | FileState::Absent => true,
            FileState::Touched => self.repaired,
            FileState::Missing | FileState::Size | FileState::Damaged => false,
        })
    }
}

/// The state of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileCheck {
    /// Its name within the vindex.
    pub name: String,
    /// What it is like.
    pub state: FileState,
    /// Size recorded.
    pub size: u64,
    /// What differs, where something does.
    pub detail: Option<String>,
}

/// What a file can be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileState {
    /// Every byte is as recorded.
    Sound,
    /// Every byte is as recorded, but the modification time of a linked file is not.
    Touched,
    /// A derived file that is still being filled: there is no hash yet.
    Growing,
    /// A derived file that is not there; it can be built again.
    Absent,
    /// Not there.
    Missing,
    /// Another size than recorded.
    Size,
    /// Other bytes than recorded.
    Damaged,
}

/// Recomputes every hash of the vindex in `dir`.
///
/// # Errors
/// No readable manifest; a file that the system does not let us read;
/// [`VindexError::Cancelled`]. Faults of what is in the files are in the report.
pub fn verify(
    dir: &Path,
    options: &VerifyOptions,
    progress: &dyn Progress,
) -> Result<VerifyReport, VindexError> {
    let mut manifest = Manifest::read(dir)?;
    let mut files = manifest
        .files
        .iter()
        .map(|entry| presence(dir, entry))
        .collect::<Result<Vec<FileCheck>, VindexError>>()?;
    let paths: Vec<PathBuf> = manifest.files.iter().map(|e| dir.join(&e.name)).collect();
    let mut spans = Vec::new();
    for (i, entry) in manifest.files.iter().enumerate() {
        if matches!(files[i].state, FileState::Sound | FileState::Touched) {
            spans.extend(hash::spans(i, entry.size));
        }
    }
    let bytes = spans.iter().map(|span| span.len).sum();
    progress.start("verifying", bytes, "bytes");
    let threads = options.threads.unwrap_or_else(default_threads);
    let shas = hash::hash_spans(&paths, &spans, threads, progress)?;
    progress.finish();
    for (span, sha) in spans.iter().zip(shas) {
        let entry = &manifest.files[span.file];
        if recorded(entry, span) != Some(sha) {
            let check = &mut files[span.file];
            check.state = FileState::Damaged;
            let note = format!("bytes {}..{} differ", span.offset, span.offset + span.len);
            // The first damaged segment is named, the others are counted by their own notes.
            match &mut check.detail {
                Some(detail) if detail.ends_with("differ") => *detail = format!("{detail}, {note}"),
                detail => *detail = Some(note),
            }
        }
    }
    let mut repaired = false;
    if options.repair && files.iter().any(|file| file.state == FileState::Touched) {
        for (entry, check) in manifest.files.iter_mut().zip(&files) {
            if check.state == FileState::Touched {
                let path = dir.join(&entry.name);
                let meta = std::fs::metadata(&path).map_err(VindexError::io("read", &path))?;
                entry.modified = Some(Modified::of(&meta).map_err(VindexError::io("read", &path))?);
            }
        }
        atomic::replace_file(&dir.join(MANIFEST), &manifest.to_vec()?)?;
        repaired = true;
    }
    let mut bytes = bytes;
    // Derived files that carry their own hash.
    let sealed = [
        (LM_HEAD_PLANES, crate::head::check_content(dir)?),
        (FEATURE_MEANS, crate::means::check_content(dir)?),
    ];
    for (name, found) in sealed {
        let Some((size, detail)) = found else { continue };
        bytes += size;
        let state = if detail.is_some() { FileState::Damaged } else { FileState::Sound };
        files.push(FileCheck { name: name.to_owned(), state, size, detail });
    }
    let extra_files = crate::open::extra_files(dir, &manifest)?;
    Ok(VerifyReport { files, extra_files, bytes, repaired })
}

/// What can be said about a file without reading it.
fn presence(dir: &Path, entry: &FileEntry) -> Result<FileCheck, VindexError> {
    let path = dir.join(&entry.name);
    let (state, detail) = match std::fs::metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let derived = entry.kind.is_derived();
            (if derived { FileState::Absent } else { FileState::Missing }, None)
        }
        Err(error) => return Err(VindexError::io("read", &path)(error)),
        Ok(meta) if meta.len() != entry.size => {
            (FileState::Size, Some(format!("{} bytes, not {}", meta.len(), entry.size)))
        }
        Ok(_) if entry.sha256.is_none() => (FileState::Growing, None),
        Ok(meta) => match (entry.modified, Modified::of(&meta)) {
            (Some(expected), Ok(found)) if found != expected => {
                (FileState::Touched, Some(format!("modified at {found}, not {expected}")))
            }
            _ => (FileState::Sound, None),
        },
    };
    Ok(FileCheck { name: entry.name.clone(), state, size: entry.size, detail })
}

/// The hash on record for a span.
fn recorded(entry: &FileEntry, span: &Span) -> Option<Sha> {
    if entry.segments.is_empty() {
        return entry.sha256;
    }
    let segment = usize::try_from(span.offset / SEGMENT).ok()?;
    entry.segments.get(segment).copied()
}
