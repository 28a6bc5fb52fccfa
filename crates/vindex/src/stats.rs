//! `stats`: what a vindex holds, as rows for tables and JSON.

use std::collections::BTreeMap;

use larql_checkpoint::{Role, TensorId};
use serde::Serialize;

use crate::files::{self, Group, Level};
use crate::labels::{Coverage, Labels};
use crate::manifest::WeightsOrigin;
use crate::{Vindex, VindexError};

/// A vindex in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stats {
    /// Model family.
    pub family: String,
    /// What it was made from.
    pub source: String,
    /// How the weights came here.
    pub weights: WeightsOrigin,
    /// Which roles are present.
    pub level: Level,
    /// Layers of the model.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
    /// Features of the layers present.
    pub n_features: u64,
    /// Elements of all tensors with a role.
    pub parameters: u64,
    /// Bytes of all files but the manifest.
    pub bytes: u64,
    /// One row a role group.
    pub groups: Vec<GroupStats>,
    /// One row a layer present.
    pub layers: Vec<LayerStats>,
    /// How many features have labels, layer by layer; `None` where nobody asked for labels.
    pub labels: Option<Coverage>,
    /// Bytes of the coarse planes of the LM head; `None` where it has none.
    pub head_planes: Option<u64>,
    /// Bytes of the features' mean activations; `None` where it has none.
    pub feature_means: Option<u64>,
    /// Files that the manifest does not name.
    pub extra_files: Vec<String>,
    /// Derived files that are gone.
    pub missing_files: Vec<String>,
}

/// The tensors of a role group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupStats {
    /// Which group.
    pub group: Group,
    /// Number of tensors.
    pub tensors: usize,
    /// Number of elements.
    pub elements: u64,
    /// Bytes.
    pub bytes: u64,
    /// Number of tensors of each dtype.
    pub dtypes: BTreeMap<String, usize>,
}

/// The FFN of a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LayerStats {
    /// The layer.
    pub layer: usize,
    /// Its features.
    pub features: usize,
    /// Experts, shared ones not counted; `None` for a dense layer.
    pub experts: Option<usize>,
    /// Dtype of the key rows.
    pub gate: Option<String>,
    /// Dtype of the up rows; `None` where there are none, or they stand with the keys.
    pub up: Option<String>,
    /// Dtype of the down projection.
    pub down: Option<String>,
    /// Whether the down projection is there with one row per feature, too: its dtype.
    pub down_features: Option<String>,
    /// Positions that attention sees; `None` for all.
    pub window: Option<usize>,
    /// Bytes of all tensors of the layer.
    pub bytes: u64,
}

impl Vindex {
    /// The numbers of this vindex. Reads headers, and the labels of layers that are filled one
    /// feature at a time.
    ///
    /// # Errors
    /// A label file that is broken.
    pub fn stats(&self) -> Result<Stats, VindexError> {
        let (manifest, config) = (self.manifest(), self.config());
        let layers: Vec<LayerStats> = self.layers().map(|layer| self.layer_stats(layer)).collect();
        let groups = self.group_stats();
        Ok(Stats {
            family: config.family.name().to_owned(),
            source: manifest.source.name.clone(),
            weights: manifest.source.weights,
            level: manifest.level,
            n_layers: config.n_layers,
            hidden_size: config.hidden_size,
            vocab_size: config.vocab_size,
            n_features: layers.iter().map(|layer| layer.features as u64).sum(),
            parameters: groups.iter().map(|group| group.elements).sum(),
            bytes: manifest.files.iter().map(|file| file.size).sum(),
            groups,
            layers,
            labels: Labels::open(self)?.map(|labels| labels.coverage()),
            head_planes: self.size_of(files::LM_HEAD_PLANES),
            feature_means: self.size_of(files::FEATURE_MEANS),
            extra_files: self.extra_files().to_vec(),
            missing_files: self.missing_files().to_vec(),
        })
    }

    /// Bytes of a file; `None` where it is not there.
    fn size_of(&self, name: &str) -> Option<u64> {
        std::fs::metadata(self.file_path(name)).ok().map(|meta| meta.len())
    }

    fn group_stats(&self) -> Vec<GroupStats> {
        let up_holds_keys = files::up_holds_keys(self.config());
        let mut rows: BTreeMap<Group, GroupStats> = BTreeMap::new();
        for entry in &self.manifest().tensors {
            let Some(tensor) = self.tensor(entry.id) else { continue };
            let group = files::group_of(entry.id.role, up_holds_keys);
            let row = rows.entry(group).or_insert_with(|| GroupStats {
                group,
                tensors: 0,
                elements: 0,
                bytes: 0,
                dtypes: BTreeMap::new(),
            });
            row.tensors += 1;
            row.elements += (tensor.rows() * tensor.cols()) as u64;
            row.bytes += tensor.bytes().len() as u64;
            *row.dtypes.entry(tensor.dtype().name().to_owned()).or_default() += 1;
        }
        rows.into_values().collect()
    }

    fn layer_stats(&self, layer: usize) -> LayerStats {
        let config = self.config();
        let dtype = |role: Role| {
            self.tensor(TensorId::layer(role, layer)).map(|t| t.dtype().name().to_owned())
        };
        let of = |roles: Vec<Role>| roles.into_iter().find_map(dtype);
        let gate = of(config.ffn_keys(layer).into_iter().map(|part| part.role).collect());
        let up = of(config.ffn_ups(layer).into_iter().map(|part| part.role).collect());
        let down = of(config.ffn_downs(layer).into_iter().map(|part| part.role).collect());
        let here = self.manifest().tensors.iter().filter(|entry| entry.id.layer == Some(layer));
        LayerStats {
            layer,
            features: config.n_features(layer),
            experts: config
                .moe
                .as_ref()
                .filter(|_| config.is_moe_layer(layer))
                .map(|m| m.n_experts),
            gate,
            up,
            down,
            down_features: self.down_features(layer).map(|m| m.dtype().name().to_owned()),
            window: config.windows.get(layer).copied().flatten(),
            bytes: here.filter_map(|e| self.tensor(e.id)).map(|t| t.bytes().len() as u64).sum(),
        }
    }
}
