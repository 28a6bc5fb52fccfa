//! Writes that happen whole or not at all.
//!
//! A new vindex is built in a directory beside its destination (`.NAME.tmp-XXXX`, so on the same
//! file system), everything in it is synced, and one rename puts it in place. The builder holds a
//! lock on a file in that directory for as long as it lives: a temporary directory whose lock can
//! be taken belongs to a process that died, whatever became of its process id, and is removed by
//! the next build of the same name.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::manifest::Manifest;
use crate::{VindexError, files};

/// The lock that the builder holds; never part of a finished vindex.
pub(crate) const LOCK: &str = ".building";

/// A vindex under construction. Dropped without [`Staged::commit`], it disappears.
#[derive(Debug)]
pub(crate) struct Staged {
    temporary: PathBuf,
    destination: PathBuf,
    replace: bool,
    _lock: File,
    removed: Vec<PathBuf>,
}

impl Staged {
    /// Begins a build of `destination`; `replace` allows an existing vindex there. Leftovers of
    /// dead builds of the same name are removed first.
    ///
    /// # Errors
    /// [`VindexError::Exists`], [`VindexError::NotReplaceable`], [`VindexError::HoldsOthers`], a parent directory that is
    /// missing or not writable.
    pub(crate) fn begin(destination: &Path, replace: bool) -> Result<Self, VindexError> {
        check_replaceable(destination, replace)?;
        let (parent, name) = split(destination)?;
        if !parent.is_dir() {
            return Err(VindexError::Io {
                action: "write into",
                path: parent,
                source: std::io::Error::new(
                    std::io::ErrorKind::NotFound,
                    "there is no such directory",
                ),
            });
        }
        let removed = remove_leftovers(destination)?;
        let (temporary, lock) = create_temporary(&parent, &name)?;
        let destination = parent.join(&name);
        Ok(Self { temporary, destination, replace, _lock: lock, removed })
    }

    /// The directory to write into.
    pub(crate) fn path(&self) -> &Path {
        &self.temporary
    }

    /// Leftovers of dead builds that were removed at the start.
    pub(crate) fn removed(&self) -> &[PathBuf] {
        &self.removed
    }

    /// Syncs every file, writes `manifest` last, and renames the directory to its destination.
    ///
    /// # Errors
    /// The system's; the destination is then as it was.
    pub(crate) fn commit(self, manifest: &[u8]) -> Result<(), VindexError> {
        for path in list(&self.temporary)? {
            if path.is_file() && path.file_name() != Some(OsStr::new(LOCK)) {
                sync(&path)?;
            }
        }
        let path = self.temporary.join(files::MANIFEST);
        let mut file = File::create_new(&path).map_err(VindexError::io("create", &path))?;
        file.write_all(manifest).map_err(VindexError::io("write", &path))?;
        file.sync_all().map_err(VindexError::io("sync", &path))?;
        sync(&self.temporary)?;
        check_replaceable(&self.destination, self.replace)?;
        put_in_place(&self.temporary, &self.destination, self.replace)?;
        let (parent, _) = split(&self.destination)?;
        sync(&parent)?;
        // Only now: without its lock the temporary directory would look like a dead one. A lock
        // file that a crash leaves in a finished vindex is ignored.
        let lock = self.destination.join(LOCK);
        match std::fs::remove_file(&lock) {
            // Another build has replaced this one already, and its lock file or ours is gone.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            result => result.map_err(VindexError::io("delete", &lock)),
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // After a commit this is where the replaced version stands, if there was one.
        if let Err(error) = std::fs::remove_dir_all(&self.temporary)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!("cannot remove {}: {error}", self.temporary.display());
        }
    }
}

/// Replaces one file as a whole: a sibling is written and synced, then renamed over it.
///
/// # Errors
/// The system's; the file is then as it was.
pub fn replace_file(path: &Path, content: &[u8]) -> Result<(), VindexError> {
    replace_file_with(path, |temporary| {
        let mut file = OpenOptions::new()
            .write(true)
            .open(temporary)
            .map_err(VindexError::io("open", temporary))?;
        file.write_all(content).map_err(VindexError::io("write", temporary))
    })
}

/// As [`replace_file`], with the content written by `fill`: it gets the path of an empty sibling,
/// which it fills or puts another file in place of.
///
/// # Errors
/// The system's and those of `fill`; the file is then as it was.
pub fn replace_file_with(
    path: &Path,
    fill: impl FnOnce(&Path) -> Result<(), VindexError>,
) -> Result<(), VindexError> {
    let (parent, name) = split(path)?;
    let temporary = parent.join(temporary_name(&name, "tmp"));
    let write = || {
        let file = File::create_new(&temporary).map_err(VindexError::io("create", &temporary))?;
        let permissions =
            file.metadata().map_err(VindexError::io("read", &temporary))?.permissions();
        drop(file);
        fill(&temporary)?;
        // Libraries make their files readable to one user only.
        std::fs::set_permissions(&temporary, permissions)
            .map_err(VindexError::io("set the permissions of", &temporary))?;
        sync(&temporary)?;
        std::fs::rename(&temporary, path).map_err(VindexError::io("replace", path))
    };
    write().inspect_err(|_| {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&temporary);
    })?;
    sync(&parent)
}

/// Where the former content of `destination` stands after a replacement that was interrupted on a
/// file system that cannot exchange two directories.
pub(crate) fn aside_of(destination: &Path) -> Option<PathBuf> {
    let (parent, name) = split(destination).ok()?;
    siblings(&parent, &name, "old").into_iter().next()
}

/// Whether `path` is the temporary directory of a build.
pub(crate) fn is_temporary(path: &Path) -> bool {
    path.file_name().is_some_and(|name| {
        let name = name.to_string_lossy();
        name.starts_with('.') && name.contains(".tmp-")
    })
}

/// Removes the temporary directories of builds of `destination` whose process is gone.
fn remove_leftovers(destination: &Path) -> Result<Vec<PathBuf>, VindexError> {
    let (parent, name) = split(destination)?;
    let mut removed = Vec::new();
    for dir in siblings(&parent, &name, "tmp") {
        // The lock is held until the directory is gone: a build that has made its lock file but
        // not yet taken the lock finds it taken, and begins again.
        let Some(_dead) = dead(&dir) else { continue };
        match std::fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(VindexError::io("delete", &dir)(error));
            }
            // Gone already: another build of the same name removed it.
            _ => removed.push(dir),
        }
    }
    Ok(removed)
}

/// Proof that the builder of a temporary directory is gone: its lock, for as long as this lives.
struct Dead {
    _lock: Option<File>,
}

/// A directory is dead when nobody holds its lock. One that has a manifest and no lock file is a
/// replaced version that was not yet removed.
fn dead(dir: &Path) -> Option<Dead> {
    match File::open(dir.join(LOCK)) {
        Ok(file) if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) => None,
        Ok(file) => Some(Dead { _lock: Some(file) }),
        Err(_) => dir.join(files::MANIFEST).is_file().then_some(Dead { _lock: None }),
    }
}

fn check_replaceable(destination: &Path, replace: bool) -> Result<(), VindexError> {
    let Ok(meta) = std::fs::symlink_metadata(destination) else { return Ok(()) };
    let path = destination.to_path_buf();
    if !replace {
        return Err(VindexError::Exists { path });
    }
    let is_empty = || list(destination).is_ok_and(|entries| entries.is_empty());
    if !meta.is_dir() || !(destination.join(files::MANIFEST).is_file() || is_empty()) {
        return Err(VindexError::NotReplaceable { path });
    }
    // A manifest that cannot be read says nothing about what else is there: the vindex is broken,
    // and replacing it is what --force is for.
    let extra = match Manifest::read(destination) {
        Ok(manifest) => crate::open::extra_files(destination, &manifest)?,
        Err(_) => Vec::new(),
    };
    if extra.is_empty() { Ok(()) } else { Err(VindexError::HoldsOthers { path, files: extra }) }
}

fn create_temporary(parent: &Path, name: &OsStr) -> Result<(PathBuf, File), VindexError> {
    loop {
        let dir = parent.join(temporary_name(name, "tmp"));
        match std::fs::create_dir(&dir) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(VindexError::io("write into", parent)(error)),
        }
        let path = dir.join(LOCK);
        let lock = File::create_new(&path).and_then(|file| {
            file.try_lock().map_err(std::io::Error::from)?;
            Ok(file)
        });
        match lock {
            Ok(lock) if path.is_file() => return Ok((dir, lock)),
            // Another build took the new lock in that instant, and removes the directory.
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => {
                // The first error is the one to report.
                let _ = std::fs::remove_dir_all(&dir);
                return Err(VindexError::io("lock", &path)(error));
            }
        }
    }
}

/// Renames `temporary` to `destination`. What stood there, if it may be replaced, ends up under the
/// temporary name. A plain rename does not replace a directory that has something in it, so that a
/// vindex which another build put there since it was looked for is never lost.
fn put_in_place(temporary: &Path, destination: &Path, replace: bool) -> Result<(), VindexError> {
    if !replace || !destination.exists() {
        match std::fs::rename(temporary, destination) {
            Err(_) if replace && destination.exists() => {}
            Err(_) if destination.exists() => {
                return Err(VindexError::Exists { path: destination.to_path_buf() });
            }
            result => return result.map_err(VindexError::io("create", destination)),
        }
    }
    if exchange(temporary, destination).map_err(VindexError::io("replace", destination))? {
        return Ok(());
    }
    // No exchange on this system: two renames, and a name that says what happened if the machine
    // stops between them.
    let (parent, name) = split(destination)?;
    let aside = parent.join(temporary_name(&name, "old"));
    std::fs::rename(destination, &aside).map_err(VindexError::io("move aside", destination))?;
    if let Err(error) = std::fs::rename(temporary, destination) {
        std::fs::rename(&aside, destination).map_err(VindexError::io("restore", destination))?;
        return Err(VindexError::io("create", destination)(error));
    }
    std::fs::remove_dir_all(&aside).map_err(VindexError::io("delete", &aside))
}

/// Swaps two directories in one step; `false` where the system or the file system cannot.
#[cfg(any(target_os = "linux", target_os = "macos"))]
fn exchange(a: &Path, b: &Path) -> std::io::Result<bool> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    match renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn exchange(_a: &Path, _b: &Path) -> std::io::Result<bool> {
    Ok(false)
}

/// `.NAME.KIND-PID-NANOS`: hidden, beside the destination, unlikely to be taken.
fn temporary_name(name: &OsStr, kind: &str) -> OsString {
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() % 1_000_000_000);
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{kind}-{}-{nanos:09}", std::process::id()));
    temporary
}

/// Entries of `parent` called `.NAME.KIND-…`, sorted.
fn siblings(parent: &Path, name: &OsStr, kind: &str) -> Vec<PathBuf> {
    let prefix = format!(".{}.{kind}-", name.to_string_lossy());
    let mut found: Vec<_> = list(parent)
        .unwrap_or_default()
        .into_iter()
        .filter(|path| {
            path.file_name().is_some_and(|entry| entry.to_string_lossy().starts_with(&prefix))
        })
        .collect();
    found.sort();
    found
}

fn list(dir: &Path) -> Result<Vec<PathBuf>, VindexError> {
    let entries = std::fs::read_dir(dir).map_err(VindexError::io("list", dir))?;
    entries.map(|entry| Ok(entry.map_err(VindexError::io("list", dir))?.path())).collect()
}

/// Parent directory and name; `a/b/` and `a/b` are the same.
fn split(path: &Path) -> Result<(PathBuf, OsString), VindexError> {
    let name = path.file_name().ok_or_else(|| VindexError::Option {
        option: path.display().to_string(),
        why: "is not a name for a new vindex; give a path that ends in a name".to_owned(),
    })?;
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    Ok((parent, name.to_owned()))
}

fn sync(path: &Path) -> Result<(), VindexError> {
    let file = File::open(path).map_err(VindexError::io("open", path))?;
    file.sync_all().map_err(VindexError::io("sync", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The temporary directories that the next build would remove.
    fn leftovers(destination: &Path) -> Vec<PathBuf> {
        let (parent, name) = split(destination).unwrap();
        siblings(&parent, &name, "tmp").into_iter().filter(|dir| dead(dir).is_some()).collect()
    }

    /// Builds of one name at the same time, each of a manifest with its own number; how many came
    /// through.
    fn build_at_once(destination: &Path, replace: bool) -> usize {
        let build = |number: u8| -> Result<(), VindexError> {
            let staged = Staged::begin(destination, replace)?;
            let path = staged.path().join("content");
            std::fs::write(&path, [number]).map_err(VindexError::io("write", &path))?;
            staged.commit(&[number])
        };
        std::thread::scope(|scope| {
            let build = &build;
            let builds: Vec<_> = (0..8).map(|n| scope.spawn(move || build(n))).collect();
            let results = builds.into_iter().map(|build| build.join().unwrap());
            results
                .filter(|result| match result {
                    Ok(()) => true,
                    Err(VindexError::Exists { .. }) if !replace => false,
                    Err(error) => panic!("{error}"),
                })
                .count()
        })
    }

    #[test]
    fn builds_of_one_name_do_not_hurt_each_other() {
        for _ in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            let destination = dir.path().join("x.vindex");
            assert_eq!(build_at_once(&destination, false), 1);
            assert_eq!(build_at_once(&destination, true), 8);
            assert_eq!(names(dir.path()), ["x.vindex"]);
            assert_eq!(names(&destination), ["content", files::MANIFEST]);
            let content = std::fs::read(destination.join("content")).unwrap();
            assert_eq!(content, std::fs::read(destination.join(files::MANIFEST)).unwrap());
        }
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = list(dir)
            .unwrap()
            .iter()
            .map(|p| p.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn commit_puts_everything_in_place_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let destination = dir.path().join("a.vindex");
        let staged = Staged::begin(&destination, false).unwrap();
        std::fs::write(staged.path().join("model.gguf"), b"x").unwrap();
        assert!(is_temporary(staged.path()));
        staged.commit(b"{}").unwrap();
        assert_eq!(names(dir.path()), ["a.vindex"]);
        assert_eq!(names(&destination), ["index.json", "model.gguf"]);
    }

    #[test]
    fn dropped_build_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let staged = Staged::begin(&dir.path().join("a.vindex"), false).unwrap();
        std::fs::write(staged.path().join("model.gguf"), b"x").unwrap();
        drop(staged);
        assert!(names(dir.path()).is_empty());
    }

    #[test]
    fn replacement_needs_force_and_a_vindex() {
        let dir = tempfile::tempdir().unwrap();
        let destination = dir.path().join("a.vindex");
        Staged::begin(&destination, false).unwrap().commit(b"old").unwrap();
        assert!(matches!(Staged::begin(&destination, false), Err(VindexError::Exists { .. })));
        Staged::begin(&destination, true).unwrap().commit(b"new").unwrap();
        assert_eq!(std::fs::read(destination.join(files::MANIFEST)).unwrap(), b"new");
        assert_eq!(names(dir.path()), ["a.vindex"]);

        let other = dir.path().join("photos");
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("cat.jpg"), b"cat").unwrap();
        let error = Staged::begin(&other, true).unwrap_err();
        assert!(matches!(error, VindexError::NotReplaceable { .. }));
    }

    #[test]
    fn leftovers_of_the_dead_are_removed_and_of_the_living_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let destination = dir.path().join("a.vindex");
        let alive = Staged::begin(&destination, false).unwrap();
        let dead = dir.path().join(".a.vindex.tmp-1-000000001");
        std::fs::create_dir(&dead).unwrap();
        std::fs::write(dead.join(LOCK), b"").unwrap();
        std::fs::write(dead.join("model.gguf"), b"half").unwrap();
        assert_eq!(leftovers(&destination), std::slice::from_ref(&dead));
        let second = Staged::begin(&destination, false).unwrap();
        assert_eq!(second.removed(), std::slice::from_ref(&dead));
        assert!(!dead.exists() && alive.path().exists());
    }

    #[test]
    fn missing_parent_is_named() {
        let error = Staged::begin(Path::new("/no/such/parent/a.vindex"), false).unwrap_err();
        assert!(error.to_string().contains("/no/such/parent"));
    }

    #[test]
    fn a_file_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index.json");
        replace_file(&path, b"one").unwrap();
        replace_file(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(names(dir.path()), ["index.json"]);
    }
}
