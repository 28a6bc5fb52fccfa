//! SHA-256 of files: the whole file (what `sha256sum` and model hubs print) and, for large files,
//! of every segment, so that a check runs on all cores and says where the damage is.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Progress, VindexError};

/// Bytes of one segment. Files up to this size have no segment hashes: the whole is one segment.
pub const SEGMENT: u64 = 64 << 20;

/// Bytes read at a time; also how often a worker asks whether to stop.
const CHUNK: usize = 1 << 20;

/// A SHA-256 value; 64 hexadecimal digits in the manifest.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sha([u8; 32]);

impl std::fmt::Display for Sha {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Sha {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl Sha {
    /// The value written as 64 hexadecimal digits; `None` for anything else.
    pub fn from_hex(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        if text.len() != 64 {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let digit = |c: u8| char::from(c).to_digit(16);
            *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
        }
        Some(Self(bytes))
    }

    /// The value.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// SHA-256 of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl Serialize for Sha {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sha {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::from_hex(&text)
            .ok_or_else(|| serde::de::Error::custom("a SHA-256 is 64 hexadecimal digits"))
    }
}

/// The hashes of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHash {
    /// SHA-256 of the whole file.
    pub whole: Sha,
    /// SHA-256 of each segment of [`SEGMENT`] bytes, the last one shorter; empty for files of one
    /// segment.
    pub segments: Vec<Sha>,
}

/// How many segments a file of `size` bytes has on record.
pub fn n_segments(size: u64) -> usize {
    if size <= SEGMENT { 0 } else { usize::try_from(size.div_ceil(SEGMENT)).unwrap_or(usize::MAX) }
}

/// One unit of hashing: `len` bytes of a file from `offset` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Which of the files handed in.
    pub file: usize,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// The spans that check a file of `size` bytes: its segments, or the whole where it is small.
pub fn spans(file: usize, size: u64) -> Vec<Span> {
    let n = u64::try_from(n_segments(size).max(1)).unwrap_or(u64::MAX);
    (0..n)
        .map(|i| Span { file, offset: i * SEGMENT, len: SEGMENT.min(size - i * SEGMENT) })
        .collect()
}

/// SHA-256 of every span, on `threads` threads. A span beyond the end of its file (it was
/// truncated meanwhile) is an error.
///
/// # Errors
/// Unreadable files; [`VindexError::Cancelled`].
pub fn hash_spans(
    paths: &[PathBuf],
    spans: &[Span],
    threads: usize,
    progress: &dyn Progress,
) -> Result<Vec<Sha>, VindexError> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Sha>>> = Mutex::new(vec![None; spans.len()]);
    let failure: Mutex<Option<VindexError>> = Mutex::new(None);
    let failed = || failure.lock().map_or(true, |f| f.is_some());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, spans.len().max(1)) {
            scope.spawn(|| {
                let mut buffer = vec![0; CHUNK];
                while !failed() {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(span) = spans.get(i) else { break };
                    match hash_span(&paths[span.file], span, &mut buffer, progress) {
                        Ok(sha) => {
                            if let Ok(mut all) = results.lock() {
                                all[i] = Some(sha);
                            }
                        }
                        Err(error) => {
                            if let Ok(mut first) = failure.lock() {
                                first.get_or_insert(error);
                            }
                        }
                    }
                }
            });
        }
    });
    if let Ok(Some(error)) = failure.into_inner() {
        return Err(error);
    }
    let all = results.into_inner().unwrap_or_default();
    Ok(all.into_iter().flatten().collect())
}

fn hash_span(
    path: &Path,
    span: &Span,
    buffer: &mut [u8],
    progress: &dyn Progress,
) -> Result<Sha, VindexError> {
    let mut file = File::open(path).map_err(VindexError::io("open", path))?;
    file.seek(SeekFrom::Start(span.offset)).map_err(VindexError::io("read", path))?;
    let mut sha = Sha256::new();
    let mut done = 0;
    while done < span.len {
        if progress.cancelled() {
            return Err(VindexError::Cancelled { left: "nothing was changed".to_owned() });
        }
        let want = usize::try_from(span.len - done).unwrap_or(usize::MAX).min(buffer.len());
        file.read_exact(&mut buffer[..want]).map_err(VindexError::io("read", path))?;
        sha.update(&buffer[..want]);
        done += want as u64;
        progress.advance(want as u64);
    }
    Ok(Sha(sha.finalize().into()))
}

/// Whole-file and segment hashes of every path, in parallel. A large file is read twice (once for
/// the whole, once by segments), the second time from the page cache. Progress counts bytes
/// hashed, of [`work`].
///
/// # Errors
/// Unreadable files; [`VindexError::Cancelled`].
pub fn hash_files(
    paths: &[PathBuf],
    threads: usize,
    progress: &dyn Progress,
) -> Result<Vec<FileHash>, VindexError> {
    let mut spans_all = Vec::new();
    let mut sizes = Vec::with_capacity(paths.len());
    for (file, path) in paths.iter().enumerate() {
        let size = std::fs::metadata(path).map_err(VindexError::io("read", path))?.len();
        sizes.push(size);
        // Whole-file hashes first: each is sequential, so the longest must start at once.
        spans_all.push(Span { file, offset: 0, len: size });
    }
    spans_all.sort_by_key(|span| std::cmp::Reverse(span.len));
    for (file, &size) in sizes.iter().enumerate() {
        if n_segments(size) > 0 {
            spans_all.extend(spans(file, size));
        }
    }
    let shas = hash_spans(paths, &spans_all, threads, progress)?;
    let mut whole = vec![None; paths.len()];
    let mut segments = vec![Vec::new(); paths.len()];
    for (i, (span, sha)) in spans_all.iter().zip(shas).enumerate() {
        if i < paths.len() {
            whole[span.file] = Some(sha);
        } else {
            segments[span.file].push(sha);
        }
    }
    Ok(whole
        .into_iter()
        .zip(segments)
        .filter_map(|(whole, segments)| Some(FileHash { whole: whole?, segments }))
        .collect())
}

/// Bytes that [`hash_files`] will hash for files of these sizes.
pub fn work(sizes: impl IntoIterator<Item = u64>) -> u64 {
    sizes.into_iter().map(|size| if n_segments(size) > 0 { 2 * size } else { size }).sum()
}

/// SHA-256 of what `reader` yields.
///
/// # Errors
/// The reader's.
pub fn hash_reader(mut reader: impl Read) -> std::io::Result<Sha> {
    let mut sha = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok(Sha(sha.finalize().into())),
            n => sha.update(&buffer[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::NoProgress;

    #[test]
    fn known_value_and_hex_round_trip() {
        let sha = Sha::of(b"abc");
        let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha.to_string(), hex);
        assert_eq!(Sha::from_hex(hex), Some(sha));
        assert_eq!(Sha::from_hex(&hex[1..]), None);
        assert_eq!(Sha::from_hex(&hex.replace('b', "g")), None);
    }

    #[test]
    fn segments_cover_a_large_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("big");
        let mut file = File::create(&path).unwrap();
        let size = 2 * SEGMENT + 17;
        file.set_len(size).unwrap();
        file.seek(SeekFrom::End(-3)).unwrap();
        file.write_all(b"end").unwrap();
        let small = dir.path().join("small");
        std::fs::write(&small, b"abc").unwrap();
        let empty = dir.path().join("empty");
        std::fs::write(&empty, b"").unwrap();
        let hashes = hash_files(&[small, path.clone(), empty], 3, &NoProgress).unwrap();
        assert_eq!(hashes[0], FileHash { whole: Sha::of(b"abc"), segments: vec![] });
        assert_eq!(hashes[2], FileHash { whole: Sha::of(b""), segments: vec![] });
        assert_eq!(hashes[1].segments.len(), 3);
        assert_eq!(hashes[1].whole, hash_reader(File::open(&path).unwrap()).unwrap());
        let tail: Vec<u8> = [vec![0; 14], b"end".to_vec()].concat();
        assert_eq!(hashes[1].segments[2], Sha::of(&tail));
        assert_eq!(work([SEGMENT, size]), SEGMENT + 2 * size);
    }

    #[test]
    fn truncated_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("short");
        std::fs::write(&path, b"abc").unwrap();
        let spans = [Span { file: 0, offset: 0, len: 4 }];
        let error = hash_spans(std::slice::from_ref(&path), &spans, 1, &NoProgress).unwrap_err();
        assert!(error.to_string().contains("short"));
    }
}
