//! `feature_means.bin`: the mean activation of every feature over a reference text.
//!
//! docs/FORMAT.md has the byte table. The file is derived from the weights and the text, the
//! manifest does not name it: it carries the identity of both and the SHA-256 of its content
//! itself. What an activation is, and how the means are taken, whoever runs the model knows; here
//! they are stored, checked and read.

use std::ops::Range;
use std::path::Path;

use larql_checkpoint::Map;

use crate::files::FEATURE_MEANS;
use crate::hash::Sha;
use crate::{Vindex, VindexError, atomic};

/// The first eight bytes.
const MAGIC: [u8; 8] = *b"LARQLFM1";
/// The version that this build writes, and the only one that it reads.
const VERSION: u32 = 1;
/// Bytes of the header.
const HEADER: usize = 128;
const IDENTITY: Range<usize> = 32..64;
const CONTENT: Range<usize> = 64..96;
/// Caps that no model comes near; they keep every sum below within 64 bits.
const MAX_LAYERS: u32 = 1 << 16;
const MAX_FEATURES: u32 = 1 << 28;

/// The means of a vindex, mapped and checked.
pub struct FeatureMeans {
    map: Map,
    layers: Vec<Range<usize>>,
    positions: u64,
}

impl FeatureMeans {
    /// The means that `vindex` holds of `text`; `None` where it holds none.
    ///
    /// # Errors
    /// A file that is broken, or of another model or another text.
    pub fn open(vindex: &Vindex, text: &str) -> Result<Option<Self>, VindexError> {
        let path = vindex.file_path(FEATURE_MEANS);
        if !path.exists() {
            return Ok(None);
        }
        let file = Self::new(Map::open(&path)?)?;
        let config = vindex.config();
        let sizes = (0..config.n_layers).map(|layer| 4 * config.n_features(layer));
        let same = file.layers.iter().map(Range::len).eq(sizes)
            && file.map.bytes()[IDENTITY] == *identity(vindex, text).bytes()
            && Sha::of(&file.map.bytes()[HEADER..]).bytes() == &file.map.bytes()[CONTENT];
        if !same {
            let why = "it was made from another model or another text, or changed since";
            return Err(corrupt(&path, "header", why));
        }
        Ok(Some(file))
    }

    /// Stores the means of every layer (`[n_features]` each) over `positions` positions of `text`
    /// in `vindex`, in place of any that are there, and opens them.
    ///
    /// # Errors
    /// Another number of layers or features than the model has; a mean that is not finite; the
    /// system's.
    pub fn write(
        vindex: &Vindex,
        text: &str,
        positions: u64,
        layers: &[Vec<f32>],
    ) -> Result<Self, VindexError> {
        let path = vindex.file_path(FEATURE_MEANS);
        let config = vindex.config();
        let sizes = (0..config.n_layers).map(|layer| config.n_features(layer));
        if !layers.iter().map(Vec::len).eq(sizes) {
            return Err(corrupt(&path, "means", "there is not one for every feature"));
        }
        if layers.iter().flatten().any(|mean| !mean.is_finite()) {
            return Err(corrupt(&path, "means", "one of those to be stored is not finite"));
        }
        let start = means_start(layers.len());
        let total: usize = layers.iter().map(Vec::len).sum();
        let mut bytes = Vec::with_capacity(start + 4 * total);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((layers.len() as u32).to_le_bytes());
        bytes.extend((total as u64).to_le_bytes());
        bytes.extend(positions.to_le_bytes());
        bytes.extend(identity(vindex, text).bytes());
        bytes.resize(HEADER, 0);
        layers.iter().for_each(|layer| bytes.extend((layer.len() as u32).to_le_bytes()));
        bytes.resize(start, 0);
        layers.iter().flatten().for_each(|mean| bytes.extend(mean.to_le_bytes()));
        let content = Sha::of(&bytes[HEADER..]);
        bytes[CONTENT].copy_from_slice(content.bytes());
        atomic::replace_file(&path, &bytes)?;
        Self::new(Map::open(&path)?)
    }

    /// Checks everything but what the file belongs to and the content's hash.
    fn new(map: Map) -> Result<Self, VindexError> {
        let fault = |section, why: String| corrupt(map.path(), section, &why);
        let header = |why| fault("header", why);
        let bytes = map.bytes();
        if bytes.len() < HEADER {
            return Err(header(format!("the file has {} bytes, a header {HEADER}", bytes.len())));
        }
        if bytes[..8] != MAGIC {
            return Err(header("it does not begin with LARQLFM1".to_owned()));
        }
        let (version, n_layers) = (u32_at(bytes, 8), u32_at(bytes, 12));
        if version != VERSION {
            return Err(header(format!("its version is {version}, this larql reads {VERSION}")));
        }
        if !(1..=MAX_LAYERS).contains(&n_layers) {
            return Err(header(format!("{n_layers} is no number of layers")));
        }
        if bytes[CONTENT.end..HEADER].iter().any(|&b| b != 0) {
            return Err(header("reserved bytes are not zero".to_owned()));
        }
        let start = means_start(n_layers as usize);
        if bytes.len() < start {
            let found = bytes.len();
            return Err(fault("layer table", format!("the file has {found} bytes, not {start}")));
        }
        let mut layers = Vec::with_capacity(n_layers as usize);
        let mut next = start;
        for layer in 0..n_layers as usize {
            let n = u32_at(bytes, HEADER + 4 * layer);
            if n > MAX_FEATURES {
                return Err(fault("layer table", format!("layer {layer} has {n} features")));
            }
            layers.push(next..next + 4 * n as usize);
            next += 4 * n as usize;
        }
        let total = u64_at(bytes, 16);
        if bytes.len() != next || total != ((next - start) / 4) as u64 {
            let found = bytes.len();
            return Err(fault("means", format!("the file has {found} bytes, not {next}")));
        }
        let means = bytes[start..].as_chunks().0.iter();
        if means.map(|b| f32::from_le_bytes(*b)).any(|mean| !mean.is_finite()) {
            return Err(fault("means", "one of them is not finite".to_owned()));
        }
        let positions = u64_at(bytes, 24);
        Ok(Self { map, layers, positions })
    }

    /// Positions of the text that the means are taken over.
    pub fn positions(&self) -> u64 {
        self.positions
    }

    /// The means of a layer, `[n_features]`; none of a layer that the model does not have.
    pub fn layer(&self, layer: usize) -> Vec<f32> {
        let bytes = self.layers.get(layer).map_or(&[][..], |at| &self.map.bytes()[at.clone()]);
        bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }
}

impl std::fmt::Debug for FeatureMeans {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FeatureMeans({})", self.map.path().display())
    }
}

/// Where the means begin.
fn means_start(n_layers: usize) -> usize {
    (HEADER + 4 * n_layers).next_multiple_of(64)
}

/// What makes model and text these: the hashes of all files that are not derived, and the text's.
fn identity(vindex: &Vindex, text: &str) -> Sha {
    let mut whole = String::new();
    for file in vindex.manifest().files.iter().filter(|file| !file.kind.is_derived()) {
        let hash = file.sha256.map_or_else(String::new, |hash| hash.to_string());
        whole += &format!("{hash} {}\n", file.name);
    }
    whole += &format!("{} text\n", Sha::of(text.as_bytes()));
    Sha::of(whole.as_bytes())
}

/// Size of the means in `dir`, and what is wrong with them; `None` where there are none.
pub(crate) fn check_content(dir: &Path) -> Result<Option<(u64, Option<String>)>, VindexError> {
    let path = dir.join(FEATURE_MEANS);
    if !path.exists() {
        return Ok(None);
    }
    let map = Map::open(&path)?;
    let size = map.bytes().len() as u64;
    let why = match FeatureMeans::new(map) {
        Err(error) => Some(error.to_string()),
        Ok(file) => {
            let bytes = file.map.bytes();
            let sound = Sha::of(&bytes[HEADER..]).bytes() == &bytes[CONTENT];
            (!sound).then(|| "its content is not what its header says; delete it".to_owned())
        }
    };
    Ok(Some((size, why)))
}

fn corrupt(path: &Path, section: &str, why: &str) -> VindexError {
    VindexError::Corrupt {
        path: path.to_path_buf(),
        section: section.to_owned(),
        why: format!("{why}; delete the file, and `larql why` makes it again"),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
