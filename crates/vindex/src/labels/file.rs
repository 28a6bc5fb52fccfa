//! `down_meta.bin`: its layout, reading it from a map, and writing it in place.
//!
//! docs/FORMAT.md has the byte table; the constants here follow it. Every record has the same
//! size, so a look-up is one multiplication.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use larql_checkpoint::Map;
use larql_compute::Extremes;

use super::LabelScore;
use crate::VindexError;

/// The first eight bytes.
const MAGIC: [u8; 8] = *b"LARQLDM1";
/// The version that this build writes, and the only one that it reads.
const VERSION: u32 = 1;
/// Bytes of the header.
const HEADER: usize = 64;
/// Bytes of one line of the layer table.
const LAYER: usize = 16;
/// Where the state stands in a line of the layer table.
const STATE: usize = 12;
/// Bytes of one token with its score.
const ENTRY: usize = 8;
/// More tokens per sign than anybody would look at.
pub(super) const MAX_TOKENS: usize = 1024;
/// Caps that no model comes near; they keep every product below within 64 bits.
const MAX_LAYERS: u32 = 1 << 16;
const MAX_FEATURES: u32 = 1 << 28;

/// How much of a layer is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LayerState {
    /// Nothing that may be read.
    Empty,
    /// Every record.
    Done,
    /// The records whose first entry is not zero.
    Sparse,
}

impl LayerState {
    const ALL: [Self; 3] = [Self::Empty, Self::Done, Self::Sparse];

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// Everything that fixes where each byte of the file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// Tokens per sign.
    pub(super) k: usize,
    pub(super) score: LabelScore,
    /// The first layer of the table.
    pub(super) first_layer: usize,
    /// Features of each layer.
    pub(super) n_features: Vec<usize>,
    /// Records before those of each layer; one more entry, the total, at the end.
    firsts: Vec<usize>,
    pub(super) vocab_size: usize,
    pub(super) hidden_size: usize,
}

/// The numbers of a header that are not about single layers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) k: usize,
    pub(super) score: LabelScore,
    pub(super) first_layer: usize,
    pub(super) vocab_size: usize,
    pub(super) hidden_size: usize,
}

impl Layout {
    pub(super) fn new(shape: Shape, n_features: Vec<usize>) -> Self {
        let Shape { k, score, first_layer, vocab_size, hidden_size } = shape;
        let mut firsts = vec![0];
        for n in &n_features {
            firsts.push(firsts[firsts.len() - 1] + n);
        }
        Self { k, score, first_layer, n_features, firsts, vocab_size, hidden_size }
    }

    pub(super) fn layers(&self) -> Range<usize> {
        self.first_layer..self.first_layer + self.n_features.len()
    }

    pub(super) fn total(&self) -> usize {
        self.firsts[self.n_features.len()]
    }

    fn record_bytes(&self) -> usize {
        2 * self.k * ENTRY
    }

    /// Where the records begin: behind the table, aligned to 64 bytes.
    fn records(&self) -> usize {
        (HEADER + self.n_features.len() * LAYER).next_multiple_of(64)
    }

    /// Length of the file. Cannot overflow: the caps allow 2¹⁶ layers of 2²⁸ features of 2¹⁴ bytes.
    fn file_bytes(&self) -> usize {
        self.records() + self.total() * self.record_bytes()
    }

    /// Position of a feature's record.
    fn position(&self, layer: usize, feature: usize) -> Option<usize> {
        let index = layer.checked_sub(self.first_layer)?;
        if feature >= *self.n_features.get(index)? {
            return None;
        }
        Some(self.records() + (self.firsts[index] + feature) * self.record_bytes())
    }

    /// A feature's record: `k` promoted entries, then `k` suppressed ones, empty ones last.
    pub(super) fn encode(&self, labels: &Extremes) -> Vec<u8> {
        let mut record = Vec::with_capacity(self.record_bytes());
        for half in [&labels.highest, &labels.lowest] {
            let end = record.len() + self.k * ENTRY;
            for (token, score) in half {
                record.extend((token + 1).to_le_bytes());
                record.extend(score.to_bits().to_le_bytes());
            }
            record.resize(end, 0);
        }
        record
    }

    /// Header and table, all layers empty.
    fn head(&self) -> Vec<u8> {
        let mut head = Vec::with_capacity(self.records());
        head.extend(MAGIC);
        for number in [
            VERSION,
            self.k as u32,
            self.n_features.len() as u32,
            self.score.code(),
            self.first_layer as u32,
            self.vocab_size as u32,
            self.hidden_size as u32,
            0,
        ] {
            head.extend(number.to_le_bytes());
        }
        head.extend((self.total() as u64).to_le_bytes());
        head.resize(HEADER, 0);
        for (&n, &first) in self.n_features.iter().zip(&self.firsts) {
            head.extend((first as u64).to_le_bytes());
            head.extend((n as u32).to_le_bytes());
            head.extend([0; LAYER - STATE]);
        }
        head.resize(self.records(), 0);
        head
    }

    /// Reads and checks header, table and length.
    fn parse(bytes: &[u8]) -> Result<Self, (&'static str, String)> {
        let header = |why: String| ("header", why);
        if bytes.len() < HEADER {
            return Err(header(format!("the file has {} bytes, a header {HEADER}", bytes.len())));
        }
        if bytes[..8] != MAGIC {
            return Err(header("it does not begin with LARQLDM1".to_owned()));
        }
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err(header(format!("its version is {version}, this larql reads {VERSION}")));
        }
        let (k, n_layers, score) = (u32_at(bytes, 12), u32_at(bytes, 16), u32_at(bytes, 20));
        if k == 0 || k as usize > MAX_TOKENS {
            return Err(header(format!("{k} tokens per sign, where 1 to {MAX_TOKENS} can be")));
        }
        if n_layers > MAX_LAYERS {
            return Err(header(format!("{n_layers} layers, where at most {MAX_LAYERS} can be")));
        }
        let Some(&score) = LabelScore::ALL.get(score as usize) else {
            return Err(header(format!("unknown score {score}")));
        };
        if bytes[36..40].iter().chain(&bytes[48..HEADER]).any(|&b| b != 0) {
            return Err(header("reserved bytes are not zero".to_owned()));
        }
        let n_layers = n_layers as usize;
        if bytes.len() < HEADER + n_layers * LAYER {
            return Err(("layer table", format!("cut off: {n_layers} layers are announced")));
        }
        let mut n_features = Vec::with_capacity(n_layers);
        let mut total = 0u64;
        for (i, line) in bytes[HEADER..].chunks_exact(LAYER).take(n_layers).enumerate() {
            let fault = |why| Err(("layer table", format!("line {i}: {why}")));
            let (first, n) = (u64_at(line, 0), u32_at(line, 8));
            if first != total {
                return fault(format!("first record {first} where {total} follows"));
            }
            if n > MAX_FEATURES {
                return fault(format!("{n} features, where at most {MAX_FEATURES} can be"));
            }
            if LayerState::from_code(line[STATE]).is_none() || line[STATE + 1..] != [0; 3] {
                return fault(format!("unknown state {:?}", &line[STATE..]));
            }
            n_features.push(n as usize);
            total += u64::from(n);
        }
        if u64_at(bytes, 40) != total {
            let announced = u64_at(bytes, 40);
            return Err(header(format!("{announced} features, but the layers have {total}")));
        }
        let shape = Shape {
            k: k as usize,
            score,
            first_layer: u32_at(bytes, 24) as usize,
            vocab_size: u32_at(bytes, 28) as usize,
            hidden_size: u32_at(bytes, 32) as usize,
        };
        let layout = Self::new(shape, n_features);
        if bytes.len() != layout.file_bytes() {
            let (found, expected) = (bytes.len(), layout.file_bytes());
            return Err(("records", format!("the file has {found} bytes instead of {expected}")));
        }
        Ok(layout)
    }
}

/// A validated `down_meta.bin`. What another process, or this one, fills in meanwhile shows up.
#[derive(Clone)]
pub(super) struct LabelFile {
    map: Map,
    pub(super) layout: Layout,
}

impl LabelFile {
    pub(super) fn open(path: &Path) -> Result<Self, VindexError> {
        Self::new(Map::open(path)?)
    }

    pub(super) fn new(map: Map) -> Result<Self, VindexError> {
        let layout = Layout::parse(map.bytes())
            .map_err(|(section, why)| corrupt(map.path(), section, &why))?;
        Ok(Self { map, layout })
    }

    pub(super) fn path(&self) -> &Path {
        self.map.path()
    }

    pub(super) fn state(&self, layer: usize) -> LayerState {
        let index = layer.wrapping_sub(self.layout.first_layer);
        if index >= self.layout.n_features.len() {
            return LayerState::Empty;
        }
        let code = self.map.bytes()[HEADER + index * LAYER + STATE];
        // A state that was valid at open and is not any more has been overwritten by somebody.
        LayerState::from_code(code).unwrap_or(LayerState::Empty)
    }

    /// Whether a feature has a record that may be read.
    pub(super) fn is_there(&self, layer: usize, feature: usize) -> bool {
        self.find(layer, feature).is_some()
    }

    /// The record of a feature; `None` where there is none (yet).
    pub(super) fn record(
        &self,
        layer: usize,
        feature: usize,
    ) -> Result<Option<&[u8]>, VindexError> {
        let Some(record) = self.find(layer, feature) else { return Ok(None) };
        let vocab = self.layout.vocab_size;
        if record.chunks_exact(ENTRY).any(|entry| u32_at(entry, 0) as usize > vocab) {
            let section = format!("labels of layer {layer}, feature {feature}");
            let why = format!("a token id beyond the vocabulary of {vocab}");
            return Err(corrupt(self.path(), &section, &why));
        }
        Ok(Some(record))
    }

    fn find(&self, layer: usize, feature: usize) -> Option<&[u8]> {
        let at = self.layout.position(layer, feature)?;
        let record = &self.map.bytes()[at..at + self.layout.record_bytes()];
        let there = match self.state(layer) {
            LayerState::Empty => false,
            LayerState::Done => true,
            LayerState::Sparse => u32_at(record, 0) != 0,
        };
        there.then_some(record)
    }
}

/// Token and score of each entry of half a record, up to the first empty one.
pub(super) fn entries(half: &[u8]) -> impl Iterator<Item = (u32, f32)> {
    half.chunks_exact(ENTRY).map_while(|entry| {
        let token = u32_at(entry, 0).checked_sub(1)?;
        Some((token, f32::from_bits(u32_at(entry, 4))))
    })
}

/// The one writer of a `down_meta.bin`, held by a lock on the file for as long as it lives.
pub(super) struct LabelWriter {
    path: PathBuf,
    file: File,
    layout: Layout,
}

impl LabelWriter {
    /// Creates the file, all layers empty. It appears under its name in one step; one that stands
    /// there is replaced.
    pub(super) fn create(path: &Path, layout: Layout) -> Result<Self, VindexError> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".new");
        let temporary = PathBuf::from(temporary);
        let io = |action| VindexError::io(action, &temporary);
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .open(&temporary)
            .map_err(io("create"))?;
        file.write_all(&layout.head()).map_err(io("write"))?;
        // Records that nobody wrote are zero, and on most file systems take no space.
        file.set_len(layout.file_bytes() as u64).map_err(io("extend"))?;
        file.sync_all().map_err(io("sync"))?;
        std::fs::rename(&temporary, path).map_err(VindexError::io("create", path))?;
        Self::lock(path, file, layout)
    }

    /// Opens the file to fill what is missing.
    pub(super) fn open(path: &Path, layout: Layout) -> Result<Self, VindexError> {
        let file = OpenOptions::new().write(true).open(path);
        Self::lock(path, file.map_err(VindexError::io("open", path))?, layout)
    }

    fn lock(path: &Path, file: File, layout: Layout) -> Result<Self, VindexError> {
        match file.try_lock() {
            Ok(()) => Ok(Self { path: path.to_path_buf(), file, layout }),
            Err(std::fs::TryLockError::WouldBlock) => {
                let busy = std::io::Error::other("another process is filling it");
                Err(VindexError::io("write", path)(busy))
            }
            Err(std::fs::TryLockError::Error(error)) => Err(VindexError::io("lock", path)(error)),
        }
    }

    /// Declares a layer's records invalid, before they are written in bulk.
    pub(super) fn begin_layer(&mut self, layer: usize) -> Result<(), VindexError> {
        self.set_state(layer, LayerState::Empty)
    }

    /// Writes the records of consecutive features. They count once the layer is finished.
    pub(super) fn write(
        &mut self,
        layer: usize,
        first: usize,
        labels: &[Extremes],
    ) -> Result<(), VindexError> {
        let records: Vec<u8> =
            labels.iter().flat_map(|labels| self.layout.encode(labels)).collect();
        let at = self.position(layer, first)?;
        self.write_at(at, &records)
    }

    /// Syncs a layer's records, then declares them valid.
    pub(super) fn finish_layer(&mut self, layer: usize) -> Result<(), VindexError> {
        self.sync()?;
        self.set_state(layer, LayerState::Done)
    }

    /// Writes records of single features of sparse layers, to count at once. The first entry of
    /// each, which says that the record is there, is written after the rest is on the disk.
    pub(super) fn write_each(
        &mut self,
        features: &[(usize, usize)],
        labels: &[Extremes],
    ) -> Result<(), VindexError> {
        let mut firsts = Vec::with_capacity(features.len());
        for (&(layer, feature), labels) in features.iter().zip(labels) {
            let (at, record) = (self.position(layer, feature)?, self.layout.encode(labels));
            self.write_at(at + ENTRY, &record[ENTRY..])?;
            firsts.push((at, record));
        }
        self.sync()?;
        firsts.iter().try_for_each(|(at, record)| self.write_at(*at, &record[..ENTRY]))
    }

    /// Lets a layer of which nothing may be read be filled feature by feature. Zeroes its records
    /// first, which an interrupted run may have left half written.
    pub(super) fn make_sparse(&mut self, layer: usize) -> Result<(), VindexError> {
        let at = self.position(layer, 0)?;
        let n = self.layout.n_features[layer - self.layout.first_layer];
        self.write_at(at, &vec![0; n * self.layout.record_bytes()])?;
        self.sync()?;
        self.set_state(layer, LayerState::Sparse)
    }

    fn position(&self, layer: usize, feature: usize) -> Result<usize, VindexError> {
        self.layout.position(layer, feature).ok_or_else(|| {
            corrupt(&self.path, "layer table", &format!("no feature {feature} in layer {layer}"))
        })
    }

    fn set_state(&mut self, layer: usize, state: LayerState) -> Result<(), VindexError> {
        let line = HEADER + (layer - self.layout.first_layer) * LAYER;
        self.write_at(line + STATE, &[state as u8])?;
        self.sync()
    }

    fn write_at(&mut self, at: usize, bytes: &[u8]) -> Result<(), VindexError> {
        let written =
            self.file.seek(SeekFrom::Start(at as u64)).and_then(|_| self.file.write_all(bytes));
        written.map_err(VindexError::io("write", &self.path))
    }

    fn sync(&self) -> Result<(), VindexError> {
        self.file.sync_data().map_err(VindexError::io("sync", &self.path))
    }
}

pub(super) fn corrupt(path: &Path, section: &str, why: &str) -> VindexError {
    VindexError::Corrupt {
        path: path.to_path_buf(),
        section: section.to_owned(),
        why: format!(
            "{why}; delete the file, and `larql labels NAME.vindex --resume` builds it again"
        ),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
