//! `Recorder`: hooks that keep what flows at the points of the forward pass, and write it to a
//! safetensors file.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use larql_vindex::VindexError;

use crate::InferenceError;
use crate::hooks::{Hooks, Point};

/// Keeps every point that is as wide as the residual (all but the features' activations), for every
/// position in the order in which they were run. All of it is held in memory: `n * hidden_size * 4`
/// bytes a point.
#[derive(Debug, Clone)]
pub struct Recorder {
    hidden_size: usize,
    recorded: BTreeMap<Point, Vec<f32>>,
}

impl Recorder {
    /// An empty recorder for a model of this width.
    pub fn new(hidden_size: usize) -> Self {
        Self { hidden_size, recorded: BTreeMap::new() }
    }

    /// What was kept of a point, `[n, hidden_size]`.
    pub fn values(&self, point: Point) -> Option<&[f32]> {
        self.recorded.get(&point).map(Vec::as_slice)
    }

    /// Writes a safetensors file: for every point an F32 tensor `[n, hidden_size]` of its name, and
    /// `metadata` beside them. An older file of that name is replaced when the new one is whole.
    ///
    /// # Errors
    /// The system's.
    pub fn write(
        &self,
        path: &Path,
        metadata: HashMap<String, String>,
    ) -> Result<(), InferenceError> {
        let shape = |values: &[f32]| [values.len() / self.hidden_size.max(1), self.hidden_size];
        let tensors = self
            .recorded
            .iter()
            .map(|(point, values)| (point.to_string(), Rows { shape: shape(values), values }));
        let bytes = safetensors::serialize(tensors, Some(metadata))
            .map_err(|error| VindexError::io("write", path)(std::io::Error::other(error)))?;
        Ok(larql_vindex::replace_file(path, &bytes)?)
    }
}

impl Hooks for Recorder {
    fn wants(&self, point: Point) -> bool {
        !matches!(point, Point::MlpPost(_))
    }

    fn at(&mut self, point: Point, _: usize, values: &mut [f32]) -> Result<(), InferenceError> {
        self.recorded.entry(point).or_default().extend_from_slice(values);
        Ok(())
    }
}

/// A tensor to write.
struct Rows<'a> {
    shape: [usize; 2],
    values: &'a [f32],
}

impl safetensors::View for Rows<'_> {
    fn dtype(&self) -> safetensors::Dtype {
        safetensors::Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    fn data_len(&self) -> usize {
        size_of_val(self.values)
    }
}
