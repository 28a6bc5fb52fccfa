//! Labels: the tokens that a feature's output promotes most and suppresses most.
//!
//! The output direction of a feature is its down column through the norms on its way to the logits
//! ([`OutputDirections`]); a token is scored by the inner product
//! of its unembedding row with that direction, or by their cosine ([`LabelScore`]). Labels are
//! **exact**: they equal a brute force over every token in the canonical float32 dot product of
//! `larql-compute`, ties by lower id. They are an aid to browsing, not an explanation of what a
//! feature does when it fires: on real models a feature's fifty strongest tokens hold the model's
//! next prediction about one time in fifty.
//!
//! They are kept in `down_meta.bin`: all at once ([`compute`]), or each when it is first shown
//! ([`LazyLabels`]).

mod directions;
mod eager;
mod file;
mod lazy;
#[cfg(test)]
mod tests;
mod unembedding;

use std::borrow::Cow;
use std::ops::Range;

pub use eager::{LabelReport, compute};
pub use lazy::LazyLabels;
pub use unembedding::LabelScore;

use larql_checkpoint::TensorId;
use larql_compute::ComputeError;

use self::directions::Directions;
use self::file::{LabelFile, LayerState, Layout, MAX_TOKENS, Shape, corrupt};
use crate::search::OutputDirections;
use crate::{Vindex, VindexError, files};

/// How labels are computed.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelOptions {
    /// Tokens kept for each sign, 1 to 1024.
    pub top_tokens: usize,
    /// How a token is scored.
    pub score: LabelScore,
    /// Layers to label; all that the vindex has where `None`.
    pub layers: Option<Range<usize>>,
    /// Start over even where labels are there. Otherwise only missing layers are computed.
    pub anew: bool,
}

impl Default for LabelOptions {
    fn default() -> Self {
        Self { top_tokens: 10, score: LabelScore::default(), layers: None, anew: false }
    }
}

/// The labels of a vindex: a mapped file. A look-up is a multiplication and a few comparisons.
#[derive(Clone)]
pub struct Labels {
    file: LabelFile,
}

impl Labels {
    /// The labels of `vindex`; `None` where it has none.
    ///
    /// # Errors
    /// A file that is broken, or that belongs to another model.
    pub fn open(vindex: &Vindex) -> Result<Option<Self>, VindexError> {
        if vindex.manifest().file(files::DOWN_META).is_none() {
            return Ok(None);
        }
        let path = vindex.file_path(files::DOWN_META);
        if !path.exists() {
            return Ok(None);
        }
        let file = LabelFile::open(&path)?;
        let (found, k, score) = (&file.layout, file.layout.k, file.layout.score);
        let expected = layout_of(vindex, k, score)?;
        if *found != expected {
            let why = "layers, features, vocabulary or width differ from the model's";
            return Err(corrupt(&path, "header", why));
        }
        Ok(Some(Self { file }))
    }

    /// Labels from the bytes of a `down_meta.bin`, checked as far as they can be without a model.
    ///
    /// # Errors
    /// Everything that [`Labels::open`] refuses, but for a file of another model.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, VindexError> {
        let map = larql_checkpoint::Map::from_bytes(files::DOWN_META, bytes);
        Ok(Self { file: LabelFile::new(map)? })
    }

    /// The labels of a feature; `None` where they have not been computed, or there is no such
    /// feature. Allocates nothing.
    ///
    /// # Errors
    /// A record with a token id beyond the vocabulary.
    pub fn get(
        &self,
        layer: usize,
        feature: usize,
    ) -> Result<Option<FeatureLabels<'_>>, VindexError> {
        let record = self.file.record(layer, feature)?;
        Ok(record.map(|record| FeatureLabels { record: Cow::Borrowed(record) }))
    }

    /// Tokens kept for each sign.
    pub fn top_tokens(&self) -> usize {
        self.file.layout.k
    }

    /// How tokens were scored.
    pub fn score(&self) -> LabelScore {
        self.file.layout.score
    }

    /// The layers that the file has room for.
    pub fn layers(&self) -> Range<usize> {
        self.file.layout.layers()
    }

    /// How much has been computed. Looks at every record of layers that are filled one feature at
    /// a time.
    pub fn coverage(&self) -> Coverage {
        let layout = &self.file.layout;
        let mut coverage =
            Coverage { features: 0, of_features: layout.total(), layers: Vec::new() };
        for (layer, &n) in layout.layers().zip(&layout.n_features) {
            let done = match self.file.state(layer) {
                LayerState::Empty => 0,
                LayerState::Done => n,
                LayerState::Sparse => (0..n).filter(|&f| self.file.is_there(layer, f)).count(),
            };
            coverage.features += done;
            coverage.layers.push(LayerCoverage { layer, features: done, of_features: n });
        }
        coverage
    }

    /// Checks every record that is there.
    ///
    /// # Errors
    /// The first record with a token id beyond the vocabulary.
    pub fn check(&self) -> Result<(), VindexError> {
        for (layer, &n) in self.layers().zip(&self.file.layout.n_features) {
            for feature in 0..n {
                self.get(layer, feature)?;
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Labels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Labels({:?})", self.file.layout)
    }
}

/// How many features have labels.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Coverage {
    /// Features with labels.
    pub features: usize,
    /// All features of the layers.
    pub of_features: usize,
    /// The same, layer by layer.
    pub layers: Vec<LayerCoverage>,
}

/// How many features of a layer have labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct LayerCoverage {
    /// The layer.
    pub layer: usize,
    /// Features with labels.
    pub features: usize,
    /// All features.
    pub of_features: usize,
}

/// The labels of one feature: a record of `down_meta.bin`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureLabels<'a> {
    record: Cow<'a, [u8]>,
}

impl FeatureLabels<'_> {
    /// `(token, score)` of the tokens that the feature promotes when it fires positively,
    /// strongest first.
    pub fn promoted(&self) -> impl Iterator<Item = (u32, f32)> {
        file::entries(&self.record[..self.record.len() / 2])
    }

    /// `(token, score)` of the tokens that it suppresses (and promotes when it fires negatively),
    /// most negative first.
    pub fn suppressed(&self) -> impl Iterator<Item = (u32, f32)> {
        file::entries(&self.record[self.record.len() / 2..])
    }
}

/// The layout of the label file of `vindex`.
fn layout_of(vindex: &Vindex, k: usize, score: LabelScore) -> Result<Layout, VindexError> {
    if k == 0 || k > MAX_TOKENS {
        return Err(VindexError::Option {
            option: format!("--top-tokens {k}"),
            why: format!("1 to {MAX_TOKENS} tokens can be kept for each sign"),
        });
    }
    let (config, layers) = (vindex.config(), vindex.layers());
    let shape = Shape {
        k,
        score,
        first_layer: layers.start,
        vocab_size: config.vocab_size,
        hidden_size: config.hidden_size,
    };
    Ok(Layout::new(shape, layers.map(|layer| config.n_features(layer)).collect()))
}

/// Adds the output directions of some features of `layer`.
fn push_directions(
    vindex: &Vindex,
    layer: usize,
    features: Range<usize>,
    directions: &mut Directions,
) -> Result<(), VindexError> {
    let map = OutputDirections::of(vindex, layer)?;
    for part in vindex.config().ffn_downs(layer) {
        let part_features = part.first_feature..part.first_feature + part.n_features;
        let start = features.start.max(part_features.start);
        let end = features.end.min(part_features.end);
        if start >= end {
            continue;
        }
        let down = vindex.require(TensorId::layer(part.role, layer))?.row_range(part.rows);
        let first = start - part.first_feature;
        let pushed = directions.push_columns(down, first, end - start, |column| map.apply(column));
        pushed.map_err(|error| match error {
            ComputeError::NotFinite { position, .. } => VindexError::Corrupt {
                path: vindex.path().to_path_buf(),
                section: format!("layer {layer}, feature {}", part.first_feature + position),
                why: "its down column holds a value that is not finite".to_owned(),
            },
            other => other.into(),
        })?;
    }
    Ok(())
}
