//! `Metadata`: the ordered key-value part of a GGUF file.
//!
//! Values stay encoded where they lie in the mapped file: opening keeps a key, a type and a range
//! for each, so a vocabulary of 262,144 tokens costs no heap until somebody reads it. Values that
//! are set afterwards lie in a buffer beside the file, in the same encoding.

use std::ops::Range;
use std::path::Path;

use super::fault::GgufFault;
use super::value::{self, Array, Kind, Value};
use crate::{CheckpointError, Map};

/// Ordered metadata: read from a file, or built up with [`set`](Metadata::set).
#[derive(Clone)]
pub struct Metadata {
    file: Map,
    own: Vec<u8>,
    entries: Vec<Entry>,
    /// Indices of `entries`, sorted by key.
    by_key: Vec<u32>,
}

#[derive(Clone)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) kind: Kind,
    /// Whether `range` is one of the file or of the own buffer.
    pub(super) in_file: bool,
    /// The encoded value, without its type number.
    pub(super) range: Range<usize>,
}

impl Default for Metadata {
    fn default() -> Self {
        Self::new()
    }
}

impl Metadata {
    /// Metadata without any key.
    pub fn new() -> Self {
        Self {
            file: Map::from_bytes("(metadata in memory)", Vec::new()),
            own: Vec::new(),
            entries: Vec::new(),
            by_key: Vec::new(),
        }
    }

    /// The metadata of a file, from entries that the header parser has validated. Fails with the
    /// second of two equal keys.
    pub(super) fn from_entries(file: Map, entries: Vec<Entry>) -> Result<Self, CheckpointError> {
        let mut by_key: Vec<u32> = (0..entries.len() as u32).collect();
        // Stable: of two equal keys, the later one in the file comes second.
        by_key.sort_by(|&a, &b| entries[a as usize].key.cmp(&entries[b as usize].key));
        for pair in by_key.windows(2) {
            let second = &entries[pair[1] as usize];
            if entries[pair[0] as usize].key == second.key {
                let fault = GgufFault::DuplicateKey { key: second.key.clone() };
                return Err(CheckpointError::gguf(file.path(), second.range.start as u64, fault));
            }
        }
        Ok(Self { file, own: Vec::new(), entries, by_key })
    }

    /// The file it came from, for messages.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, Value<'_>)> {
        self.entries.iter().map(|entry| (entry.key.as_str(), self.decode(entry)))
    }

    /// Key, kind and encoded value, in file order: what a writer copies.
    pub(super) fn encoded(&self) -> impl ExactSizeIterator<Item = (&str, Kind, &[u8])> {
        self.entries.iter().map(|entry| (entry.key.as_str(), entry.kind, self.raw(entry)))
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        let index = self.find(key).ok()?;
        Some(self.decode(&self.entries[self.by_key[index] as usize]))
    }

    /// Whether `key` is there.
    pub fn contains(&self, key: &str) -> bool {
        self.find(key).is_ok()
    }

    /// Where `key` stands in `by_key`, or where it would be inserted.
    fn find(&self, key: &str) -> Result<usize, usize> {
        self.by_key.binary_search_by(|&i| self.entries[i as usize].key.as_str().cmp(key))
    }

    fn raw(&self, entry: &Entry) -> &[u8] {
        let bytes = if entry.in_file { self.file.bytes() } else { &self.own };
        &bytes[entry.range.clone()]
    }

    fn decode<'a>(&'a self, entry: &'a Entry) -> Value<'a> {
        let bytes = self.raw(entry);
        match entry.kind {
            // The text was checked when it was read or set: an empty string here is unreachable.
            Kind::Str => Value::Str(std::str::from_utf8(&bytes[8..]).unwrap_or_default()),
            Kind::Array => {
                let offset = if entry.in_file { entry.range.start as u64 } else { 0 };
                Value::Array(Array::decode(bytes, &entry.key, self.path(), offset))
            }
            // Every other kind has a fixed size, which the range has.
            kind => Value::scalar(kind, bytes).unwrap_or(Value::Bool(false)),
        }
    }

    /// An error about `key`, at its place in the file where it has one.
    pub(super) fn fault(&self, key: &str, fault: GgufFault) -> CheckpointError {
        let entry = self.find(key).ok().map(|i| &self.entries[self.by_key[i] as usize]);
        let offset = entry.filter(|e| e.in_file).map_or(0, |e| e.range.start as u64);
        CheckpointError::gguf(self.path(), offset, fault)
    }

    /// Sets `key`, replacing a value that it has (its place in the order stays).
    pub fn set<'v>(&mut self, key: &str, value: impl Into<Value<'v>>) {
        let value = value.into();
        let start = self.own.len();
        value.encode(&mut self.own);
        self.put(key, value.kind(), start);
    }

    /// Sets `key` to an array of strings.
    pub fn set_strings<S: AsRef<[u8]>>(
        &mut self,
        key: &str,
        strings: impl ExactSizeIterator<Item = S>,
    ) {
        let start = self.own.len();
        value::encode_array_head(Kind::Str, strings.len(), &mut self.own);
        for text in strings {
            value::encode_str(text.as_ref(), &mut self.own);
        }
        self.put(key, Kind::Array, start);
    }

    /// Sets `key` to an array of numbers or booleans, all of the kind that `T` is.
    pub fn set_array<T>(&mut self, key: &str, values: &[T])
    where
        Value<'static>: From<T>,
        T: Copy + Default,
    {
        let start = self.own.len();
        value::encode_array_head(Value::from(T::default()).kind(), values.len(), &mut self.own);
        for &element in values {
            Value::from(element).encode(&mut self.own);
        }
        self.put(key, Kind::Array, start);
    }

    /// Records what was just appended to the own buffer, from `start` on, as the value of `key`.
    fn put(&mut self, key: &str, kind: Kind, start: usize) {
        let entry =
            Entry { key: key.to_owned(), kind, in_file: false, range: start..self.own.len() };
        match self.find(key) {
            Ok(place) => self.entries[self.by_key[place] as usize] = entry,
            Err(place) => {
                self.by_key.insert(place, self.entries.len() as u32);
                self.entries.push(entry);
            }
        }
    }

    /// Removes `key`; tells whether it was there.
    pub fn remove(&mut self, key: &str) -> bool {
        let Ok(place) = self.find(key) else { return false };
        let index = self.by_key.remove(place);
        self.entries.remove(index as usize);
        for other in &mut self.by_key {
            *other -= u32::from(*other > index);
        }
        true
    }
}

impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.encoded().eq(other.encoded())
    }
}

impl std::fmt::Debug for Metadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
