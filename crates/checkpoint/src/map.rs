//! `Map`: read-only file bytes, and the only place of the project that maps memory.
//!
//! A map is a snapshot of a file's *length*, not of its content: another process that writes into
//! the file is seen through the map, and one that **truncates** it makes the next read of a lost
//! page a SIGBUS, which no library can turn into an error. larql itself never shortens or rewrites
//! a file in place (new files are written beside and renamed over), `Map::open` takes the length
//! from the open file itself, and [`Map::verify_unchanged`] tells afterwards whether somebody did.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crate::CheckpointError;

/// The bytes of one file, mapped read-only (or held in memory, for tests and generated headers).
/// Clones share the mapping.
#[derive(Clone)]
pub struct Map {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    backing: Backing,
}

enum Backing {
    File { map: memmap2::Mmap, file: File, identity: Identity },
    Memory(Vec<u8>),
}

/// What tells one version of a file from another without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Length in bytes.
    pub len: u64,
    /// Time of the last modification, where the file system keeps one.
    pub modified: Option<SystemTime>,
    /// Device and inode; `None` where the system has no such numbers.
    pub inode: Option<(u64, u64)>,
}

/// How a range is going to be read; passed to the kernel as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Advice {
    /// No special treatment.
    Normal,
    /// Rows are picked here and there: no read-ahead.
    Random,
    /// Read once from front to back: aggressive read-ahead.
    Sequential,
    /// Needed soon: start reading now, in the background.
    WillNeed,
}

impl Identity {
    /// The identity of an open file.
    fn of(file: &File) -> io::Result<Self> {
        let meta = file.metadata()?;
        #[cfg(unix)]
        let inode = {
            use std::os::unix::fs::MetadataExt;
            Some((meta.dev(), meta.ino()))
        };
        #[cfg(not(unix))]
        let inode = None;
        Ok(Self { len: meta.len(), modified: meta.modified().ok(), inode })
    }
}

impl Map {
    /// Maps the whole of a regular file.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] where the file cannot be opened, is not a regular file, or is
    /// larger than the address space.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        let io = |source| CheckpointError::io(path, "open", source);
        // Asked before opening: a named pipe without a writer would block in `open` for ever, and
        // a directory opens on Unix and fails later, obscurely.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(io(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
        }
        let file = File::open(path).map_err(io)?;
        let identity = Identity::of(&file).map_err(io)?;
        let len = usize::try_from(identity.len).map_err(|_| {
            io(io::Error::new(io::ErrorKind::FileTooLarge, "larger than the address space"))
        })?;
        // SAFETY: the mapping is read-only and private to this type. That nobody changes the file
        // underneath is the assumption that the module's documentation states; bytes that change
        // are read as plain integers, and nothing that was derived from them indexes unchecked.
        let map = unsafe { memmap2::MmapOptions::new().len(len).map(&file) }
            .map_err(|source| CheckpointError::io(path, "map", source))?;
        let backing = Backing::File { map, file, identity };
        Ok(Self { inner: Arc::new(Inner { path: path.to_path_buf(), backing }) })
    }

    /// Bytes in memory under a name that errors will show. For tests, fuzzing and headers that
    /// were just generated; real files are opened.
    pub fn from_bytes(name: impl Into<PathBuf>, bytes: Vec<u8>) -> Self {
        Self { inner: Arc::new(Inner { path: name.into(), backing: Backing::Memory(bytes) }) }
    }

    /// The path it was opened from.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Every byte of the file. Page-aligned where it is a mapped file.
    pub fn bytes(&self) -> &[u8] {
        match &self.inner.backing {
            Backing::File { map, .. } => map,
            Backing::Memory(bytes) => bytes,
        }
    }

    /// What the file was when it was opened; `None` for bytes in memory.
    pub fn identity(&self) -> Option<Identity> {
        match &self.inner.backing {
            Backing::File { identity, .. } => Some(*identity),
            Backing::Memory(_) => None,
        }
    }

    /// Checks that the file still has the length and modification time it had when it was mapped.
    ///
    /// # Errors
    /// [`CheckpointError::Changed`] where it does not, [`CheckpointError::Io`] where the system
    /// cannot tell.
    pub fn verify_unchanged(&self) -> Result<(), CheckpointError> {
        let Backing::File { file, identity, .. } = &self.inner.backing else { return Ok(()) };
        let now = Identity::of(file).map_err(|e| CheckpointError::io(self.path(), "stat", e))?;
        if now == *identity {
            return Ok(());
        }
        Err(CheckpointError::Changed {
            path: self.path().to_path_buf(),
            expected: identity.len,
            found: now.len,
        })
    }

    /// Tells the kernel how `range` is going to be read. Advice only: it never changes a result,
    /// and bytes in memory ignore it.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] where the kernel refuses.
    ///
    /// # Panics
    /// Where `range` lies outside the file, as slices do.
    pub fn advise(&self, range: Range<usize>, advice: Advice) -> Result<(), CheckpointError> {
        let slice = &self.bytes()[range.clone()];
        let Backing::File { map, .. } = &self.inner.backing else { return Ok(()) };
        if slice.is_empty() {
            return Ok(());
        }
        #[cfg(unix)]
        {
            let advice = match advice {
                Advice::Normal => memmap2::Advice::Normal,
                Advice::Random => memmap2::Advice::Random,
                Advice::Sequential => memmap2::Advice::Sequential,
                Advice::WillNeed => memmap2::Advice::WillNeed,
            };
            map.advise_range(advice, range.start, range.len())
                .map_err(|source| CheckpointError::io(self.path(), "advise", source))?;
        }
        #[cfg(not(unix))]
        let _ = (map, advice);
        Ok(())
    }

    /// Takes every page of the map out of this process's memory (not out of the page cache): what
    /// is read again is mapped again. For work that goes through a large file once, so that it
    /// does not seem to need as much memory as the file is large.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] where the kernel refuses.
    pub fn forget(&self) -> Result<(), CheckpointError> {
        let Backing::File { map, .. } = &self.inner.backing else { return Ok(()) };
        if map.is_empty() {
            return Ok(());
        }
        #[cfg(unix)]
        // SAFETY: the mapping is shared, read-only and backed by a file, so there is no content
        // that could be lost: a page that is dropped is read from the file when it is touched.
        unsafe { map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) }
            .map_err(|source| CheckpointError::io(self.path(), "advise", source))?;
        Ok(())
    }

    /// How many bytes of `range` are in physical memory now, whoever read them. Bytes in memory
    /// count whole.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] where the system cannot tell.
    ///
    /// # Panics
    /// Where `range` lies outside the file, as slices do.
    pub fn resident(&self, range: Range<usize>) -> Result<usize, CheckpointError> {
        let slice = &self.bytes()[range];
        match &self.inner.backing {
            Backing::Memory(_) => Ok(slice.len()),
            Backing::File { .. } => {
                resident(slice).map_err(|e| CheckpointError::io(self.path(), "mincore", e))
            }
        }
    }
}

/// Bytes of a mapped slice that are resident, by mincore, page by page.
#[cfg(unix)]
fn resident(slice: &[u8]) -> io::Result<usize> {
    // SAFETY: sysconf reads a constant of the system and touches no memory of ours.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = usize::try_from(page).map_err(|_| io::Error::last_os_error())?;
    // Pages asked for in one call: 4 GiB of 4 KiB pages a MiB of answers.
    const CHUNK: usize = 1 << 20;
    let (begin, end) = (slice.as_ptr() as usize, slice.as_ptr() as usize + slice.len());
    let mut start = begin & !(page - 1);
    let mut states = vec![0u8; (end - start).div_ceil(page).min(CHUNK)];
    let mut total = 0;
    while start < end {
        let pages = (end - start).div_ceil(page).min(CHUNK);
        // SAFETY: `start` is page-aligned and the `pages` pages from it all hold bytes of the
        // mapping that `slice` borrows; `states` has room for `pages` answers. mincore reads no
        // page and writes only the answers.
        let rc = unsafe {
            libc::mincore(start as *mut libc::c_void, pages * page, states.as_mut_ptr().cast())
        };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        for (i, state) in states[..pages].iter().enumerate() {
            if state & 1 == 1 {
                // The first and the last page may be shared with bytes outside the slice.
                let from = (start + i * page).max(begin);
                let to = (start + (i + 1) * page).min(end);
                total += to - from;
            }
        }
        start += pages * page;
    }
    Ok(total)
}

#[cfg(not(unix))]
fn resident(_slice: &[u8]) -> io::Result<usize> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system does not tell what is resident"))
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Map({}, {} bytes)", self.path().display(), self.bytes().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bytes");
        std::fs::write(&path, bytes).unwrap();
        (dir, path)
    }

    /// Opening a pipe that nobody writes to would never return.
    #[cfg(unix)]
    #[test]
    fn a_named_pipe_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = Map::open(&path).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[test]
    fn maps_what_the_file_holds() {
        let (_dir, path) = file(&[7; 10_000]);
        let map = Map::open(&path).unwrap();
        assert_eq!(map.bytes(), &[7; 10_000]);
        assert_eq!(map.identity().unwrap().len, 10_000);
        for advice in [Advice::Normal, Advice::Random, Advice::Sequential, Advice::WillNeed] {
            map.advise(1..9_999, advice).unwrap();
        }
        map.advise(5..5, Advice::WillNeed).unwrap();
        map.forget().unwrap();
        assert_eq!(map.bytes(), &[7; 10_000]);
        map.verify_unchanged().unwrap();
    }

    #[test]
    fn resident_counts_the_bytes_of_the_range_only() {
        let (_dir, path) = file(&[7; 10_000]);
        let map = Map::open(&path).unwrap();
        assert_eq!(map.iter().map(|&b| u64::from(b)).sum::<u64>(), 70_000);
        assert_eq!(map.resident(0..10_000).unwrap(), 10_000);
        assert_eq!(map.resident(4_000..4_200).unwrap(), 200);
        assert_eq!(map.resident(3..3).unwrap(), 0);
        assert_eq!(Map::from_bytes("m", vec![0; 5]).resident(1..4).unwrap(), 3);
    }

    #[test]
    fn an_empty_file_is_an_empty_map() {
        let (_dir, path) = file(&[]);
        let map = Map::open(&path).unwrap();
        assert!(map.bytes().is_empty());
        assert_eq!(map.resident(0..0).unwrap(), 0);
        map.advise(0..0, Advice::Random).unwrap();
    }

    #[test]
    fn a_missing_file_and_a_directory_are_refused_with_their_path() {
        let dir = tempfile::tempdir().unwrap();
        let missing = Map::open(dir.path().join("nothing")).unwrap_err();
        assert!(missing.to_string().contains("nothing"), "{missing}");
        let error = Map::open(dir.path()).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
        assert_eq!(error.path(), Some(dir.path()));
    }

    #[test]
    fn a_file_that_was_cut_short_is_noticed() {
        let (_dir, path) = file(&[1; 9000]);
        let map = Map::open(&path).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(10).unwrap();
        let error = map.verify_unchanged().unwrap_err();
        assert!(matches!(error, CheckpointError::Changed { expected: 9000, found: 10, .. }));
    }
}
