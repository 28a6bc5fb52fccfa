//! A Hugging Face directory as a checkpoint: what llama.cpp's converter does to tensors, planned
//! when the directory is opened and done when a row is read.

use std::collections::HashMap;
use std::path::Path;

use larql_compute::Dtype;
use serde_json::Value;

use super::plan::{Order, Plan};
use super::{Opened, Source, TensorEntry, model_error};
use crate::config::{ConfigError, Hf, ModelConfig, TensorSpec};
use crate::families::{HfName, Transform};
use crate::names::Role;
use crate::safetensors::Safetensors;
use crate::{CheckpointError, Map};

pub(super) fn open(directory: &Path) -> Result<Opened, CheckpointError> {
    let path = directory.join("config.json");
    let json = Map::open(&path)?;
    let root: Value = serde_json::from_slice(json.bytes())
        .map_err(|e| model_error(&path, ConfigError::NotJson { why: e.to_string() }))?;
    let hf = Hf::new(&root).map_err(|e| model_error(&path, e))?;
    let config = hf.config().map_err(|e| model_error(&path, e))?;
    let files = Safetensors::open(directory)?;
    let mut binder = Binder::new(&files, &hf, &config);
    let bound: Result<(Vec<_>, Vec<_>), _> =
        config.tensors().into_iter().enumerate().map(|(i, spec)| binder.bind(i, spec)).collect();
    let (entries, plans) = bound.map_err(|e| model_error(directory, e))?;
    let unknown = binder.unknown();
    Ok(Opened { config, source: Source::Hf(files, plans), entries, unknown })
}

/// Finds the Hugging Face tensors that each canonical one is made of.
struct Binder<'a> {
    files: &'a Safetensors,
    hf: &'a Hf<'a>,
    config: &'a ModelConfig,
    /// Index of each tensor, by its name without the prefixes that some checkpoints have.
    index: HashMap<String, usize>,
    used: Vec<bool>,
}

impl<'a> Binder<'a> {
    fn new(files: &'a Safetensors, hf: &'a Hf<'a>, config: &'a ModelConfig) -> Self {
        let prefixes = config.family.spec().prefixes;
        let plain = |name: &str| {
            let cut = prefixes.iter().find_map(|(from, to)| Some((name.strip_prefix(from)?, *to)));
            cut.map_or_else(|| name.to_owned(), |(rest, to)| format!("{to}{rest}"))
        };
        let index = files.tensors().iter().enumerate().map(|(i, t)| (plain(t.name()), i)).collect();
        Self { files, hf, config, index, used: vec![false; files.tensors().len()] }
    }

    fn bind(&mut self, place: usize, spec: TensorSpec) -> Result<(TensorEntry, Plan), ConfigError> {
        let TensorSpec { id, shape } = spec;
        let plan = match id.role {
            Role::RopeFreqs => Plan::Computed(self.llama3_factors()?),
            Role::RopeFactorsLong => Plan::Computed(self.longrope("long_factor", &shape)?),
            Role::RopeFactorsShort => Plan::Computed(self.longrope("short_factor", &shape)?),
            role => {
                let names = self.config.family.spec().names;
                let Some(name) = names.iter().find(|n| n.role == role) else {
                    let hint = "; this family's safetensors have no such tensor";
                    return Err(ConfigError::MissingTensor {
                        name: id.to_string(),
                        expected: shape,
                        hint,
                    });
                };
                self.plan(name, id.layer.unwrap_or(0), &shape)?
            }
        };
        let dtype = if id.role.always_f32() { Dtype::F32 } else { plan.dtype(self.files) };
        Ok((TensorEntry::new(id, dtype, shape, place), plan))
    }

    fn plan(&mut self, name: &HfName, layer: usize, shape: &[usize]) -> Result<Plan, ConfigError> {
        let config = self.config;
        let text = name.name.replace("{l}", &layer.to_string());
        // In torch's order: outermost dimension first.
        let torch: Vec<usize> = shape.iter().rev().copied().collect();
        let order = match name.transform {
            Transform::InterleaveQ | Transform::InterleaveK => {
                Order::Interleave { head: config.head_dim }
            }
            _ => Order::Same,
        };
        let plus = if name.transform == Transform::PlusOne { 1.0 } else { 0.0 };
        match name.transform {
            Transform::Same
            | Transform::InterleaveQ
            | Transform::InterleaveK
            | Transform::PlusOne => {
                let part = self.find(&text, &torch)?;
                Ok(match shape.len() {
                    1 => Plan::Vector { part, order, plus },
                    _ => Plan::Rows { parts: vec![part], order },
                })
            }
            Transform::Transpose => {
                let part = self.find(&text, shape)?;
                Ok(Plan::Columns { part, per_block: torch[0], stride: 0 })
            }
            Transform::Experts => {
                // The first dimension of the stack is the expert.
                let experts = 0..torch[0];
                let parts: Result<Vec<usize>, _> = experts
                    .map(|e| self.find(&text.replace("{e}", &e.to_string()), &torch[1..]))
                    .collect();
                let parts = parts?;
                self.one_dtype(&parts)?;
                Ok(Plan::Rows { parts, order })
            }
            Transform::MlaKeys | Transform::MlaValues => {
                let Some(mla) = &config.mla else {
                    return Err(ConfigError::bad("mla", "absent", "the family's MLA numbers"));
                };
                let (keys, values) = (mla.qk_nope, config.head_dim_v);
                let (rank, stride) = (mla.kv_lora_rank, keys + values);
                let part = self.find(&text, &[config.n_heads * stride, rank])?;
                Ok(if name.transform == Transform::MlaKeys {
                    Plan::Columns { part, per_block: rank, stride }
                } else {
                    let order = Order::Within { stride, first: keys, len: values };
                    Plan::Rows { parts: vec![part], order }
                })
            }
        }
    }

    /// The tensor of that name and shape (outermost dimension first).
    fn find(&mut self, name: &str, shape: &[usize]) -> Result<usize, ConfigError> {
        let columns_first = |shape: &[usize]| shape.iter().rev().copied().collect::<Vec<_>>();
        let Some(part) = self.index.get(name).copied() else {
            return Err(ConfigError::MissingTensor {
                name: name.to_owned(),
                expected: columns_first(shape),
                hint: "",
            });
        };
        let tensor = &self.files.tensors()[part];
        if tensor.shape() != shape {
            return Err(ConfigError::WrongShape {
                name: tensor.name().to_owned(),
                expected: columns_first(shape),
                found: columns_first(tensor.shape()),
            });
        }
        self.used[part] = true;
        Ok(part)
    }

    /// A stack has one dtype; so must what is stacked.
    fn one_dtype(&self, parts: &[usize]) -> Result<(), ConfigError> {
        let tensors: Vec<_> = parts.iter().map(|p| &self.files.tensors()[*p]).collect();
        match tensors.iter().find(|t| t.dtype() != tensors[0].dtype()) {
            None => Ok(()),
            Some(other) => Err(ConfigError::Unsupported {
                key: other.name().to_owned(),
                found: other.dtype().to_string(),
                why: "the experts of a layer must have one dtype",
            }),
        }
    }

    /// Llama 3's divisors of the rotary frequencies: 1 for short wavelengths, `factor` for long
    /// ones, in between a blend. In f32, step by step, as the converter's torch does it: a number
    /// divided by a tensor is the tensor's reciprocal times the number.
    fn llama3_factors(&self) -> Result<Vec<f32>, ConfigError> {
        let number = |key: &str, default: f64| Ok(self.hf.rope_f64(key)?.unwrap_or(default) as f32);
        let factor = number("factor", 8.0)?;
        let (low, high) = (number("low_freq_factor", 1.0)?, number("high_freq_factor", 4.0)?);
        let context = number("original_max_position_embeddings", 8192.0)?;
        let Some(rope) = &self.config.rope else { return Ok(Vec::new()) };
        let divisor = |i: usize| {
            let exponent = (2 * i) as f32 / rope.dim as f32;
            let frequency = 1.0 / f64::from(rope.theta).powf(f64::from(exponent)) as f32;
            let wavelength = frequency.recip() * std::f32::consts::TAU;
            if wavelength < context / high {
                1.0
            } else if wavelength > context / low {
                factor
            } else {
                let smooth = (wavelength.recip() * context - low) / (high - low);
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        };
        let factors: Vec<f32> = (0..rope.dim / 2).map(divisor).collect();
        match factors.iter().find(|f| !(f.is_finite() && **f > 0.0)) {
            Some(bad) => Err(ConfigError::bad("rope_scaling", bad, "positive divisors")),
            None => Ok(factors),
        }
    }

    fn longrope(&self, key: &str, shape: &[usize]) -> Result<Vec<f32>, ConfigError> {
        let list = self.hf.rope_list(key)?.unwrap_or_default();
        if list.len() != shape[0] || list.iter().any(|f| !(f.is_finite() && *f > 0.0)) {
            let expected = format!("{} positive numbers, one a pair", shape[0]);
            return Err(ConfigError::bad(key, format!("{list:?}"), expected));
        }
        Ok(list)
    }

    /// Names of tensors that nothing is made of, but for those that carry nothing.
    fn unknown(&self) -> Vec<String> {
        let ignored = self.config.family.spec().ignored;
        let left = self.files.tensors().iter().zip(&self.used).filter(|(_, used)| !**used);
        let names = left.map(|(tensor, _)| tensor.name().to_owned());
        names.filter(|name| !ignored.iter().any(|end| name.ends_with(end))).collect()
    }
}
