//! `larql info PATH`: configuration, tensors, dtypes and sizes of a model or a vindex.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use larql_checkpoint::config::{FfnLayout, NormKind, Rope, RopeScaling};
use larql_checkpoint::{Checkpoint, ModelConfig, TensorId};
use larql_compute::Dtype;
use larql_vindex::{Vindex, files};
use serde::Serialize;

use crate::context::Context;
use crate::error::Failure;
use crate::render::{Column, Page, Report, Table, units};

#[derive(Serialize)]
struct Model {
    path: PathBuf,
    /// `GGUF`, `safetensors` or `vindex`.
    format: String,
    parameters: u64,
    /// Bytes of all tensors.
    bytes: u64,
    config: ModelConfig,
    roles: Vec<RoleRow>,
    /// Tensors that larql has no role for; they are never dropped in silence.
    unknown_tensors: Vec<String>,
    /// Every tensor, where `--tensors` asks for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    tensors: Option<Vec<TensorRow>>,
}

/// All tensors of a role that have the same dtype and shape.
#[derive(Serialize)]
struct RoleRow {
    role: String,
    dtype: &'static str,
    /// Columns first, as in GGUF.
    shape: Vec<usize>,
    tensors: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct TensorRow {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: u64,
}

/// What both kinds of source say about a tensor.
struct Facts {
    id: TensorId,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: u64,
}

pub(super) fn run(path: &Path, tensors: bool, context: &Context) -> Result<(), Failure> {
    let is_vindex = path.join(files::MANIFEST).exists();
    let model = if is_vindex { of_vindex(path, tensors)? } else { of_checkpoint(path, tensors)? };
    context.emit(&model)
}

fn of_vindex(path: &Path, tensors: bool) -> Result<Model, Failure> {
    let vindex = Vindex::open(path)?;
    let facts = vindex.manifest().tensors.iter().filter_map(|entry| {
        let tensor = vindex.tensor(entry.id)?;
        Some(Facts {
            id: entry.id,
            dtype: tensor.dtype(),
            shape: tensor.shape().to_vec(),
            bytes: tensor.bytes().len() as u64,
        })
    });
    let format = format!("vindex, version {}", vindex.manifest().version);
    let unknown = vindex.manifest().unknown_tensors.clone();
    Ok(model(path, format, vindex.config().clone(), facts.collect(), unknown, tensors))
}

fn of_checkpoint(path: &Path, tensors: bool) -> Result<Model, Failure> {
    let checkpoint = Checkpoint::open(path)?;
    let facts = checkpoint.tensors().map(|entry| {
        // A tensor of an opened checkpoint is whole blocks: the division cannot fail.
        let row = entry.dtype.row_bytes(entry.cols).unwrap_or(0);
        Facts {
            id: entry.id,
            dtype: entry.dtype,
            shape: entry.shape.clone(),
            bytes: (row * entry.rows) as u64,
        }
    });
    let format = match checkpoint.gguf() {
        Some(gguf) => format!("{} version {}", checkpoint.format(), gguf.version()),
        None => checkpoint.format().to_string(),
    };
    let unknown = checkpoint.unknown_tensors().to_vec();
    Ok(model(path, format, checkpoint.config().clone(), facts.collect(), unknown, tensors))
}

fn model(
    path: &Path,
    format: String,
    config: ModelConfig,
    facts: Vec<Facts>,
    unknown_tensors: Vec<String>,
    tensors: bool,
) -> Model {
    let elements = |shape: &[usize]| shape.iter().map(|&n| n as u64).product::<u64>();
    let mut roles: BTreeMap<_, RoleRow> = BTreeMap::new();
    for tensor in &facts {
        let row = roles.entry((tensor.id.role, tensor.dtype, tensor.shape.clone())).or_insert_with(
            || RoleRow {
                role: tensor.id.role.to_string(),
                dtype: tensor.dtype.name(),
                shape: tensor.shape.clone(),
                tensors: 0,
                bytes: 0,
            },
        );
        row.tensors += 1;
        row.bytes += tensor.bytes;
    }
    let parameters = facts.iter().map(|tensor| elements(&tensor.shape)).sum();
    let bytes = facts.iter().map(|tensor| tensor.bytes).sum();
    let tensors = tensors.then(|| {
        let row = |tensor: Facts| TensorRow {
            name: tensor.id.to_string(),
            dtype: tensor.dtype.name(),
            shape: tensor.shape,
            bytes: tensor.bytes,
        };
        facts.into_iter().map(row).collect()
    });
    Model {
        path: path.to_owned(),
        format,
        parameters,
        bytes,
        config,
        roles: roles.into_values().collect(),
        unknown_tensors,
        tensors,
    }
}

impl Report for Model {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.heading(&self.path.display().to_string())?;
        let mut fields = vec![
            ("format", self.format.clone()),
            ("family", self.config.family.name().to_owned()),
            ("parameters", units::parameters(self.parameters)),
            ("tensors", units::bytes(self.bytes)),
        ];
        fields.extend(config_fields(&self.config));
        page.fields(&fields)?;
        page.heading("Tensors by role")?;
        let mut table = Table::new([
            Column::text("role"),
            Column::text("dtype"),
            Column::number("shape"),
            Column::number("tensors"),
            Column::number("size"),
        ]);
        for row in &self.roles {
            table.row([
                row.role.clone(),
                row.dtype.to_owned(),
                shape_text(&row.shape),
                row.tensors.to_string(),
                units::bytes(row.bytes),
            ]);
        }
        page.table(&table)?;
        if let Some(tensors) = &self.tensors {
            page.heading("Every tensor")?;
            let mut table = Table::new([
                Column::text("name"),
                Column::text("dtype"),
                Column::number("shape"),
                Column::number("size"),
            ]);
            for row in tensors {
                let dtype = row.dtype.to_owned();
                let shape = shape_text(&row.shape);
                table.row([row.name.clone(), dtype, shape, units::bytes(row.bytes)]);
            }
            page.table(&table)?;
        }
        if !self.unknown_tensors.is_empty() {
            page.heading("Tensors that larql has no role for")?;
            for name in &self.unknown_tensors {
                page.line(&format!("  {name}"))?;
            }
        }
        Ok(())
    }
}

/// `640 x 262144`: columns first, as GGUF tools print shapes.
fn shape_text(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ")
}

fn config_fields(config: &ModelConfig) -> Vec<(&'static str, String)> {
    let number = |n: usize| units::count(n as u64);
    let mut fields = vec![
        ("layers", number(config.n_layers)),
        ("hidden size", number(config.hidden_size)),
        ("vocabulary", number(config.vocab_size)),
        ("context", number(config.context_length)),
        ("attention", attention_text(config)),
        ("ffn", ffn_text(config)),
        ("norm", norm_text(config)),
    ];
    if let Some(rope) = &config.rope {
        fields.push(("rope", rope_text(rope)));
    }
    if let Some(text) = window_text(&config.windows) {
        fields.push(("window", text));
    }
    fields.push(("lm head", if config.tied { "tied to the embedding" } else { "its own" }.into()));
    fields
}

fn attention_text(config: &ModelConfig) -> String {
    let (heads, keys) = (config.n_heads, config.n_kv_heads);
    match &config.mla {
        Some(mla) => format!("{heads} heads over a latent of {} (MLA)", mla.kv_lora_rank),
        None => format!("{heads} heads of {}, {keys} for keys and values", config.head_dim),
    }
}

fn ffn_text(config: &ModelConfig) -> String {
    let kind = match config.ffn {
        FfnLayout::Gated => "gated",
        FfnLayout::GatedFused => "gated, gate and up in one matrix",
        FfnLayout::Plain => "not gated",
    };
    // The enum's own name in the manifest, `gelu_tanh` and the like.
    let activation = match serde_json::to_value(config.activation) {
        Ok(serde_json::Value::String(name)) => name,
        _ => format!("{:?}", config.activation),
    };
    match &config.moe {
        None => format!("{} features, {activation}, {kind}", config.intermediate_size),
        Some(moe) => {
            let shared = match moe.shared_size {
                0 => String::new(),
                size => format!(", {size} shared features"),
            };
            format!(
                "{} experts of {} features, {} used{shared}, {activation}, {kind}",
                moe.n_experts, moe.expert_size, moe.n_experts_used
            )
        }
    }
}

fn norm_text(config: &ModelConfig) -> String {
    let kind = match config.norm.kind {
        NormKind::Rms => "rms",
        NormKind::Layer => "layer",
    };
    let post = if config.post_norms { ", also after attention and ffn" } else { "" };
    format!("{kind}, eps {:e}{post}", config.norm.eps)
}

fn rope_text(rope: &Rope) -> String {
    let mut text = format!("theta {}", rope.theta);
    if let Some(local) = rope.theta_local {
        text += &format!(" ({local} in layers with a window)");
    }
    text += match rope.scaling {
        RopeScaling::None => "",
        RopeScaling::Linear { .. } => ", scaled linearly",
        RopeScaling::Factors => ", scaled by factors (Llama 3)",
        RopeScaling::Yarn { .. } => ", scaled by YaRN",
        RopeScaling::LongRope { .. } => ", scaled by LongRoPE",
    };
    text
}

fn window_text(windows: &[Option<usize>]) -> Option<String> {
    let local: Vec<usize> = windows.iter().flatten().copied().collect();
    let width = local.first()?;
    Some(format!("{width} positions in {} of {} layers", local.len(), windows.len()))
}
