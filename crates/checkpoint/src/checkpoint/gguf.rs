//! A GGUF file as a checkpoint: names, shapes and conventions are canonical already.

use super::{Opened, Source, TensorEntry, model_error, same_shape};
use crate::config::{ConfigError, ModelConfig, TensorSpec};
use crate::gguf::{Gguf, GgufTensor};
use crate::names::{Role, TensorId};
use crate::{CheckpointError, Map};

pub(super) fn open(map: Map) -> Result<Opened, CheckpointError> {
    let path = map.path().to_path_buf();
    let gguf = Gguf::from_map(map)?;
    let config = ModelConfig::from_gguf(&gguf).map_err(|e| model_error(&path, e))?;
    let entries = bind(&gguf, &config).map_err(|e| model_error(&path, e))?;
    let mut used = vec![false; gguf.tensors().len()];
    for entry in &entries {
        used[entry.place] = true;
    }
    let left = gguf.tensors().iter().zip(&used).filter(|(_, used)| !**used);
    let unknown = left.map(|(tensor, _)| tensor.name().to_owned()).collect();
    Ok(Opened { config, source: Source::Gguf(gguf), entries, unknown })
}

/// Finds every tensor that the configuration implies and checks its shape.
fn bind(gguf: &Gguf, config: &ModelConfig) -> Result<Vec<TensorEntry>, ConfigError> {
    let index: std::collections::HashMap<&str, (usize, &GgufTensor)> =
        gguf.tensors().iter().enumerate().map(|(i, t)| (t.name(), (i, t))).collect();
    let mut entries = Vec::new();
    for TensorSpec { id, shape } in config.tensors() {
        let (id, shape) = match older_mla(config, id) {
            Some((old, old_shape)) if index.contains_key(old.to_string().as_str()) => {
                // One old tensor stands for two new ones: it is taken with the first.
                if id.role == Role::AttnVB {
                    continue;
                }
                (old, old_shape)
            }
            _ => (id, shape),
        };
        let name = id.to_string();
        let Some((place, tensor)) = index.get(name.as_str()) else {
            let hint = hint(gguf, id);
            return Err(ConfigError::MissingTensor { name, expected: shape, hint });
        };
        if !same_shape(tensor.shape(), &shape) {
            let found = tensor.shape().to_vec();
            return Err(ConfigError::WrongShape { name, expected: shape, found });
        }
        entries.push(TensorEntry::new(id, tensor.dtype(), shape, *place));
    }
    Ok(entries)
}

/// Files from before absorbed attention keep the two halves of `kv_b` in one tensor.
fn older_mla(config: &ModelConfig, id: TensorId) -> Option<(TensorId, Vec<usize>)> {
    let mla = config.mla.as_ref()?;
    if !matches!(id.role, Role::AttnKB | Role::AttnVB) {
        return None;
    }
    let rows = config.n_heads * (mla.qk_nope + config.head_dim_v);
    Some((TensorId { role: Role::AttnKvB, layer: id.layer }, vec![mla.kv_lora_rank, rows]))
}

/// What a reader of "missing" can do about it.
fn hint(gguf: &Gguf, id: TensorId) -> &'static str {
    let starts = |prefix: &str| gguf.tensors().iter().any(|t| t.name().starts_with(prefix));
    match (id.role, id.layer) {
        (Role::FfnGateExps, Some(layer)) if starts(&format!("blk.{layer}.ffn_gate.0.")) => {
            "; the file keeps each expert apart, as files from before April 2024 do: convert the \
             model again"
        }
        (Role::FfnGateExps, Some(layer)) if starts(&format!("blk.{layer}.ffn_gate_up_exps")) => {
            "; the file keeps gate and up rows of experts in one tensor, which is not implemented"
        }
        _ => "",
    }
}
