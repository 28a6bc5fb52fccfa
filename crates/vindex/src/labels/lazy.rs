//! Labels on first use: computed for the features that are about to be shown, then kept.

use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock, PoisonError};

use larql_compute::{Cpu, Extremes};

use super::directions::Directions;
use super::eager::register;
use super::file::{LabelFile, LabelWriter, LayerState, Layout, corrupt};
use super::unembedding::Unembedding;
use super::{FeatureLabels, LabelOptions, Labels, layout_of, push_directions};
use crate::{Vindex, VindexError, files};

/// More directions than this are scanned by the integer kernel; fewer are scored directly, which
/// spares packing the vocabulary.
const FEW: usize = 5;

/// Labels that are computed when they are first asked for and kept in the vindex, where it can be
/// written to.
pub struct LazyLabels<'a> {
    vindex: &'a Vindex,
    cpu: &'a Cpu,
    layout: Layout,
    /// The file as it was opened, or created by the first feature that was kept.
    labels: OnceLock<Labels>,
    unembedding: OnceLock<Unembedding<'a>>,
    not_kept: Mutex<Option<VindexError>>,
}

impl<'a> LazyLabels<'a> {
    /// The labels of `vindex`, those to come included. `options` say how new ones are computed
    /// where the vindex has no label file yet; otherwise the file says it.
    ///
    /// # Errors
    /// A label file that is broken; a vindex without unembedding.
    pub fn open(
        vindex: &'a Vindex,
        cpu: &'a Cpu,
        options: &LabelOptions,
    ) -> Result<Self, VindexError> {
        let labels = Labels::open(vindex)?;
        let layout = match &labels {
            Some(labels) => labels.file.layout.clone(),
            None => layout_of(vindex, options.top_tokens, options.score)?,
        };
        let labels = labels.map_or_else(OnceLock::new, OnceLock::from);
        let (unembedding, not_kept) = (OnceLock::new(), Mutex::new(None));
        Ok(Self { vindex, cpu, layout, labels, unembedding, not_kept })
    }

    /// The labels of some `(layer, feature)`, in their order. Those that are missing are computed
    /// together, in one pass over the vocabulary.
    ///
    /// # Errors
    /// A layer or feature that does not exist; a vindex without down projections where something
    /// has to be computed; values that are not finite.
    pub fn get(&self, features: &[(usize, usize)]) -> Result<Vec<FeatureLabels<'_>>, VindexError> {
        for &(layer, feature) in features {
            let n_features = self.vindex.n_features(layer)?;
            if feature >= n_features {
                return Err(VindexError::NoSuchFeature { layer, feature, n_features });
            }
        }
        let mut found = Vec::with_capacity(features.len());
        for &(layer, feature) in features {
            found.push(match self.labels.get() {
                Some(labels) => labels.get(layer, feature)?,
                None => None,
            });
        }
        let mut missing: Vec<_> =
            features.iter().zip(&found).filter(|(_, f)| f.is_none()).map(|(&f, _)| f).collect();
        missing.sort_unstable();
        missing.dedup();
        let computed = self.compute(&missing)?;
        let answer = features.iter().zip(found).filter_map(|(wanted, found)| {
            found.or_else(|| {
                let at = missing.binary_search(wanted).ok()?;
                Some(FeatureLabels { record: self.layout.encode(&computed[at]).into() })
            })
        });
        Ok(answer.collect())
    }

    /// Why the last computed labels could not be kept (a vindex that cannot be written to, another
    /// process that is filling it); `None` where all is well.
    pub fn not_kept(&self) -> Option<String> {
        let error = self.not_kept.lock().unwrap_or_else(PoisonError::into_inner);
        error.as_ref().map(ToString::to_string)
    }

    fn compute(&self, missing: &[(usize, usize)]) -> Result<Vec<Extremes>, VindexError> {
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        let mut directions = Directions::new(self.layout.hidden_size);
        for &(layer, feature) in missing {
            push_directions(self.vindex, layer, feature..feature + 1, &mut directions)?;
        }
        let unembedding = self.unembedding()?;
        let labels = if missing.len() <= FEW {
            unembedding.score_all(&directions, self.layout.k)?
        } else {
            let found = unembedding.scan(&directions, self.layout.k, |_| true)?;
            found.map_or_else(Vec::new, |(labels, _)| labels)
        };
        let kept = self.keep(missing, &labels);
        *self.not_kept.lock().unwrap_or_else(PoisonError::into_inner) = kept.err();
        Ok(labels)
    }

    fn unembedding(&self) -> Result<&Unembedding<'a>, VindexError> {
        if let Some(unembedding) = self.unembedding.get() {
            return Ok(unembedding);
        }
        let rows = self.vindex.unembedding()?;
        let new = Unembedding::new(self.cpu, rows, self.layout.score)?;
        Ok(self.unembedding.get_or_init(|| new))
    }

    /// Writes labels into the file, which it creates where there is none.
    fn keep(&self, features: &[(usize, usize)], labels: &[Extremes]) -> Result<(), VindexError> {
        let path = self.vindex.file_path(files::DOWN_META);
        let mut writer = if path.exists() {
            LabelWriter::open(&path, self.layout.clone())?
        } else {
            let writer = LabelWriter::create(&path, self.layout.clone())?;
            register(self.vindex, &self.layout, 1)?;
            writer
        };
        let file = LabelFile::open(&path)?;
        if file.layout != self.layout {
            // Another process has meanwhile begun a file of another kind.
            return Err(corrupt(&path, "header", "it is not the file that was there before"));
        }
        let layers: BTreeSet<usize> = features.iter().map(|&(layer, _)| layer).collect();
        for layer in layers {
            if file.state(layer) == LayerState::Empty {
                writer.make_sparse(layer)?;
            }
        }
        self.labels.get_or_init(|| Labels { file });
        writer.write_each(features, labels)
    }
}

impl std::fmt::Debug for LazyLabels<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LazyLabels({:?})", self.layout)
    }
}
