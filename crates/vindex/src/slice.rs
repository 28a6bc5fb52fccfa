//! `slice`: a smaller vindex out of a larger one, by level, by role group or by layers, with one
//! GGUF per role group.

use std::ops::Range;
use std::path::{Path, PathBuf};

use larql_checkpoint::TensorId;
use serde::Serialize;

use crate::extract::build::{Build, Head};
use crate::extract::{FileSize, Origin, check_layers, file_sizes};
use crate::files::{self, FileKind, Group, Level};
use crate::manifest::WeightsOrigin;
use crate::{Progress, Vindex, VindexError, atomic};

/// What to keep.
#[derive(Debug, Clone, Default)]
pub struct SliceOptions {
    /// Keep the groups of this level; `None` for those of the source.
    pub level: Option<Level>,
    /// Keep exactly these groups (not with `level`); empty for those of the level.
    pub groups: Vec<Group>,
    /// Keep only these layers.
    pub layers: Option<Range<usize>>,
    /// Replace an existing vindex.
    pub force: bool,
    /// Worker threads; `None` for one per core.
    pub threads: Option<usize>,
}

/// What a slice holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SliceReport {
    /// The new vindex.
    pub path: PathBuf,
    /// Its level.
    pub level: Level,
    /// Its files, without the manifest.
    pub files: Vec<FileSize>,
    /// Derived files of the source that do not fit the slice.
    pub left_out: Vec<String>,
}

/// Writes the part of `source` that `options` names to the new vindex `destination`.
///
/// # Errors
/// Roles or layers that the source does not have; a destination that exists or cannot be written;
/// [`VindexError::Cancelled`]. Nothing is left behind.
pub fn slice(
    source: &Path,
    destination: &Path,
    options: &SliceOptions,
    progress: &dyn Progress,
) -> Result<SliceReport, VindexError> {
    let vindex = Vindex::open(source)?;
    let (level, groups) = check_groups(&vindex, options)?;
    let layers = match &options.layers {
        Some(_) => check_layers(options.layers.as_ref(), vindex.config())?,
        None => vindex.layers(),
    };
    if layers.start < vindex.layers().start || layers.end > vindex.layers().end {
        let here = vindex.layers();
        return Err(VindexError::Option {
            option: format!("--layers {}..{}", layers.start, layers.end),
            why: format!("{} holds layers {}..{}", source.display(), here.start, here.end),
        });
    }
    let up_holds_keys = files::up_holds_keys(vindex.config());
    let group_of = move |id: Option<TensorId>| {
        id.map_or(Group::Other, |id| files::group_of(id.role, up_holds_keys))
    };
    let keep = |id: Option<TensorId>| {
        groups.contains(&group_of(id))
            && id.is_none_or(|id| id.layer.is_none_or(|layer| layers.contains(&layer)))
    };
    let same_layers = layers == vindex.layers();
    let derived = derived_files(&vindex, &groups, same_layers);
    let origin = Origin::Vindex(Box::new(vindex));
    let (planned, _) = origin.plan(None, &keep);
    let mut build = Build::begin(destination, options.force, options.threads, progress)?;
    build.write(&origin.metadata()?, planned, Some(&group_of), &|| origin.forget())?;
    for (name, kind) in &derived.kept {
        build.copy(&source.join(name), name, *kind)?;
    }
    let head = Head {
        level,
        layers,
        source: origin.record(source, WeightsOrigin::Written),
        model: origin.config().clone(),
        unknown_tensors: origin.unknown_tensors().to_vec(),
    };
    let manifest = build.finish(head, &[])?;
    Ok(SliceReport {
        path: destination.to_path_buf(),
        level,
        files: file_sizes(&manifest),
        left_out: derived.left_out,
    })
}

/// Reduces the vindex in `dir` to `level`, in place: for labels, which need the down projections of
/// a level above `browse` while they are computed and no more afterwards. A GGUF that is shared
/// with or copied from the source stays whole, and the manifest lets go of the tensors above the
/// level; weights that larql wrote are written anew, without them.
///
/// # Errors
/// A vindex that is not above `level`; the system's; [`VindexError::Cancelled`]. The vindex is then
/// as it was.
pub fn narrow(
    dir: &Path,
    level: Level,
    threads: Option<usize>,
    progress: &dyn Progress,
) -> Result<(), VindexError> {
    let vindex = Vindex::open(dir)?;
    check_groups(&vindex, &SliceOptions { level: Some(level), ..Default::default() })?;
    if vindex.level() == level {
        return Ok(());
    }
    let mut manifest = vindex.manifest().clone();
    if manifest.source.weights == WeightsOrigin::Written {
        drop(vindex);
        let options =
            SliceOptions { level: Some(level), force: true, threads, ..Default::default() };
        return slice(dir, dir, &options, progress).map(|_| ());
    }
    let up_holds_keys = files::up_holds_keys(&manifest.model);
    manifest.level = level;
    manifest.tensors.retain(|t| files::group_of(t.id.role, up_holds_keys).level() <= level);
    atomic::replace_file(&dir.join(files::MANIFEST), &manifest.to_vec()?)
}

struct Derived {
    kept: Vec<(String, FileKind)>,
    left_out: Vec<String>,
}

/// Which files beside the weights come along: those whose content does not change with the slice.
fn derived_files(vindex: &Vindex, groups: &[Group], same_layers: bool) -> Derived {
    let mut derived = Derived { kept: Vec::new(), left_out: Vec::new() };
    for file in &vindex.manifest().files {
        let kept = match file.kind {
            FileKind::Model | FileKind::Weights => continue,
            FileKind::Tokenizer => true,
            // All three describe the features of every layer of the vindex.
            FileKind::DownMeta | FileKind::Clusters | FileKind::Ann => same_layers,
            FileKind::DownFeatures => same_layers && groups.contains(&Group::Ffn),
        } && !vindex.missing_files().contains(&file.name);
        if kept && file.sha256.is_some() {
            derived.kept.push((file.name.clone(), file.kind));
        } else {
            derived.left_out.push(file.name.clone());
        }
    }
    derived
}

/// The groups to keep, and the level that they make.
fn check_groups(
    vindex: &Vindex,
    options: &SliceOptions,
) -> Result<(Level, Vec<Group>), VindexError> {
    let here = vindex.level();
    if options.groups.is_empty() {
        let level = options.level.unwrap_or(here);
        if level > here {
            return Err(VindexError::Option {
                option: format!("--level {level}"),
                why: format!("{} is of level {here}", vindex.path().display()),
            });
        }
        return Ok((level, Group::ALL.into_iter().filter(|g| g.level() <= level).collect()));
    }
    if options.level.is_some() {
        return Err(VindexError::Option {
            option: "--roles".to_owned(),
            why: "give either a level or role groups".to_owned(),
        });
    }
    for group in &options.groups {
        if group.level() > here {
            return Err(VindexError::Option {
                option: format!("--roles {group}"),
                why: format!("{} is of level {here}", vindex.path().display()),
            });
        }
    }
    // The lowest level that has all of them: what is absent below it is an error on use.
    let level = options.groups.iter().map(|g| g.level()).max().unwrap_or(Level::Browse);
    Ok((level, options.groups.clone()))
}
