//! `Cursor`: reads a header front to back and refuses to pass the end of the file.

use std::path::Path;

use super::fault::GgufFault;
use crate::CheckpointError;

/// A position in the bytes of one GGUF file. Every read names what it reads, so that a file cut
/// short anywhere says inside what it ends.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    path: &'a Path,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, path }
    }

    /// Bytes read so far.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Bytes left in the file.
    pub(super) fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// `fault` at byte `offset` of this file.
    pub(super) fn fault_at(&self, offset: usize, fault: GgufFault) -> CheckpointError {
        CheckpointError::gguf(self.path, offset as u64, fault)
    }

    /// The next `n` bytes.
    pub(super) fn take(&mut self, n: u64, what: &'static str) -> Result<&'a [u8], CheckpointError> {
        let left = self.left();
        if n > left {
            return Err(self.fault_at(self.at, GgufFault::Truncated { what, needed: n, left }));
        }
        // `n` fits in usize: it is no larger than what is left of a slice.
        let start = self.at;
        self.at += n as usize;
        Ok(&self.bytes[start..self.at])
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], CheckpointError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, CheckpointError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, CheckpointError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    pub(super) fn magic(&mut self) -> Result<[u8; 4], CheckpointError> {
        self.array("the magic number")
    }

    /// The bytes of a string: a u64 length, then that many bytes.
    pub(super) fn string(&mut self, what: &'static str) -> Result<&'a [u8], CheckpointError> {
        let start = self.at;
        let found = self.u64(what)?;
        let left = self.left();
        if found > left {
            return Err(self.fault_at(start, GgufFault::StringTooLong { what, found, left }));
        }
        self.take(found, what)
    }

    /// Steps over `n` strings. The one loop of opening that grows with the vocabulary (a load and
    /// an addition a string), hence written out.
    pub(super) fn skip_strings(&mut self, n: u64) -> Result<(), CheckpointError> {
        const WHAT: &str = "a string of an array";
        let bytes = self.bytes;
        let mut at = self.at;
        for _ in 0..n {
            let Some((head, rest)) = bytes[at..].split_first_chunk::<8>() else {
                self.at = at;
                return self.take(8, WHAT).map(drop);
            };
            let len = u64::from_le_bytes(*head);
            if len > rest.len() as u64 {
                let left = rest.len() as u64;
                return Err(
                    self.fault_at(at, GgufFault::StringTooLong { what: WHAT, found: len, left })
                );
            }
            at += 8 + len as usize;
        }
        self.at = at;
        Ok(())
    }

    /// A name: a string of 1 to `limit` bytes of UTF-8.
    pub(super) fn name(
        &mut self,
        what: &'static str,
        limit: u64,
    ) -> Result<&'a str, CheckpointError> {
        let start = self.at;
        let found = self.u64(what)?;
        if found == 0 || found > limit {
            return Err(self.fault_at(start, GgufFault::NameLength { what, found, limit }));
        }
        let text = self.take(found, what)?;
        std::str::from_utf8(text)
            .map_err(|_| self.fault_at(start + 8, GgufFault::NotUtf8 { what: what.into() }))
    }
}
