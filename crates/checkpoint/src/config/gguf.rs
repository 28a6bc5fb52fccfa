//! `ModelConfig` from a GGUF file: metadata keys, and the presence of tensors where no key says it.

use super::{
    Biases, ConfigError, ExpertGroups, Gating, Mla, ModelConfig, Moe, Norm, NormKind, Rope,
    RopeScaling,
};
use crate::families::{Family, Spec};
use crate::gguf::{Gguf, Metadata, Value};
use crate::names::{Role, TensorId};

impl ModelConfig {
    /// The configuration that a GGUF file's metadata and tensors imply.
    ///
    /// # Errors
    /// An unknown family, a missing or senseless key, a feature that is not implemented.
    pub fn from_gguf(file: &Gguf) -> Result<Self, ConfigError> {
        let metadata = file.metadata();
        let name = match metadata.get("general.architecture") {
            Some(Value::Str(name)) => name,
            Some(other) => {
                return Err(ConfigError::bad("general.architecture", other, "a string"));
            }
            None => {
                return Err(ConfigError::MissingKey {
                    key: "general.architecture".into(),
                    family: "GGUF",
                });
            }
        };
        let family = Family::from_gguf_name(name)?;
        let keys = Keys { metadata, family };
        let config = read(file, &keys, family.spec())?;
        config.validate()?;
        Ok(config)
    }
}

/// Metadata keys of one architecture, with conversions that say what is wrong.
struct Keys<'a> {
    metadata: &'a Metadata,
    family: Family,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.family)
    }

    fn value(&self, key: &str) -> Option<Value<'_>> {
        self.metadata.get(&self.name(key))
    }

    fn missing(&self, key: &str) -> ConfigError {
        ConfigError::MissingKey { key: self.name(key), family: self.family.name() }
    }

    /// A count; an array of one count per layer is accepted where all are equal.
    fn usize_opt(&self, key: &str) -> Result<Option<usize>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let int = |v: &Value<'_>| v.as_int().and_then(|i| usize::try_from(i).ok());
        if let Some(array) = value.as_array() {
            let mut values = array.scalars().into_iter().flatten().map(|v| int(&v));
            let first = values.next().flatten();
            return match first {
                Some(n) if values.all(|v| v == Some(n)) => Ok(Some(n)),
                _ => Err(ConfigError::Unsupported {
                    key: self.name(key),
                    found: value.to_string(),
                    why: "values that differ between layers are not implemented",
                }),
            };
        }
        match int(&value) {
            Some(n) => Ok(Some(n)),
            None => Err(ConfigError::bad(self.name(key), value, "a number that is not negative")),
        }
    }

    fn usize(&self, key: &str) -> Result<usize, ConfigError> {
        self.usize_opt(key)?.ok_or_else(|| self.missing(key))
    }

    fn f32_opt(&self, key: &str) -> Result<Option<f32>, ConfigError> {
        match self.value(key) {
            None => Ok(None),
            Some(value) => match value.as_float() {
                Some(float) => Ok(Some(float as f32)),
                None => Err(ConfigError::bad(self.name(key), value, "a number")),
            },
        }
    }

    fn f32(&self, key: &str) -> Result<f32, ConfigError> {
        self.f32_opt(key)?.ok_or_else(|| self.missing(key))
    }

    fn bool_opt(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(ConfigError::bad(self.name(key), other, "a boolean")),
        }
    }

    fn str_opt(&self, key: &str) -> Result<Option<&str>, ConfigError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Str(value)) => Ok(Some(value)),
            Some(other) => Err(ConfigError::bad(self.name(key), other, "a string")),
        }
    }
}

fn read(file: &Gguf, keys: &Keys<'_>, spec: &Spec) -> Result<ModelConfig, ConfigError> {
    let has = |role: Role, layer: Option<usize>| {
        file.tensor(&TensorId { role, layer }.to_string()).is_some()
    };
    let n_layers = keys.usize("block_count")?;
    let hidden_size = keys.usize("embedding_length")?;
    let n_heads = keys.usize("attention.head_count")?;
    let mla = mla(keys, spec)?;
    let plain_head = hidden_size.checked_div(n_heads).unwrap_or(0);
    let (head_dim, head_dim_v) = match &mla {
        Some(mla) => (
            mla.qk_nope.saturating_add(mla.qk_rope),
            keys.usize_opt("attention.value_length_mla")?
                .map_or_else(|| keys.usize("attention.value_length"), Ok)?,
        ),
        None => (
            keys.usize_opt("attention.key_length")?.unwrap_or(plain_head),
            keys.usize_opt("attention.value_length")?.unwrap_or(plain_head),
        ),
    };
    let n_kv_heads = match &mla {
        Some(_) => n_heads,
        None => keys.usize_opt("attention.head_count_kv")?.unwrap_or(n_heads),
    };
    let eps = match spec.norm {
        NormKind::Rms => keys.f32("attention.layer_norm_rms_epsilon")?,
        NormKind::Layer => keys.f32("attention.layer_norm_epsilon")?,
    };
    let moe = moe(keys, n_layers, has(Role::ExpProbsBias, n_layers.checked_sub(1)))?;
    let all_experts = moe.as_ref().is_some_and(|m| m.n_dense_layers == 0);
    let intermediate_size = if all_experts { 0 } else { keys.usize("feed_forward_length")? };
    let (rope, yarn_scale) = rope(file, keys, spec, head_dim, &mla)?;
    let query_scale = match keys.f32_opt("attention.scale")? {
        Some(scale) if scale != 0.0 => scale,
        _ => yarn_scale.unwrap_or_else(|| {
            let dims = (hidden_size, n_layers, n_heads, head_dim);
            ModelConfig::query_scale_of(spec.family, dims)
        }),
    };
    let vocab_size = match file.tensor(Role::TokenEmbd.stem()) {
        Some(tensor) => tensor.rows(),
        None => keys.usize("vocab_size")?,
    };
    Ok(ModelConfig {
        family: spec.family,
        hidden_size,
        n_layers,
        vocab_size,
        context_length: keys.usize("context_length")?,
        n_heads,
        n_kv_heads,
        head_dim,
        head_dim_v,
        intermediate_size,
        norm: Norm { kind: spec.norm, eps },
        post_norms: spec.post_norms,
        qk_norm: spec.qk_norm,
        rope,
        windows: windows(keys, spec, n_layers)?,
        activation: spec.activation,
        ffn: spec.ffn,
        fused_qkv: spec.fused_qkv,
        attn_softcap: softcap(keys, "attn_logit_softcapping", spec, Role::AttnNorm)?,
        final_softcap: softcap(keys, "final_logit_softcapping", spec, Role::Output)?,
        embedding_scale: if spec.scaled_embedding { (hidden_size as f32).sqrt() } else { 1.0 },
        query_scale,
        tied: !has(Role::Output, None),
        biases: Biases {
            qkv: has(Role::AttnQBias, Some(0)) || has(Role::AttnQkvBias, Some(0)),
            attn_output: has(Role::AttnOutputBias, Some(0)),
            ffn: has(Role::FfnUpBias, Some(0)),
            norm: spec.norm == NormKind::Layer,
        },
        moe,
        mla,
    })
}

/// Soft-caps are always written for Gemma 2 by current tools; the oldest files lack them and mean
/// the values that the family was published with.
fn softcap(
    keys: &Keys<'_>,
    key: &str,
    spec: &Spec,
    which: Role,
) -> Result<Option<f32>, ConfigError> {
    let published = match (spec.family, which) {
        (Family::Gemma2, Role::Output) => Some(30.0),
        (Family::Gemma2, _) => Some(50.0),
        _ => None,
    };
    Ok(keys.f32_opt(key)?.or(published).filter(|cap| *cap != 0.0))
}

fn windows(
    keys: &Keys<'_>,
    spec: &Spec,
    n_layers: usize,
) -> Result<Vec<Option<usize>>, ConfigError> {
    // Checked here as well because memory is about to be allocated by it.
    if n_layers > super::validate::MAX_LAYERS {
        return Err(ConfigError::bad(keys.name("block_count"), n_layers, "a sensible depth"));
    }
    let window = keys.usize_opt("attention.sliding_window")?.or(spec.default_window);
    let Some(window) = window.filter(|w| *w != 0) else { return Ok(vec![None; n_layers]) };
    let key = "attention.sliding_window_pattern";
    let has_window: Vec<bool> = match keys.value(key) {
        Some(Value::Array(array)) => {
            let flags: Option<Vec<bool>> =
                array.scalars().and_then(|values| values.map(|v| v.as_bool()).collect());
            match flags {
                Some(flags) if flags.len() == n_layers => flags,
                _ => {
                    let expected = format!("{n_layers} booleans");
                    return Err(ConfigError::bad(keys.name(key), Value::Array(array), expected));
                }
            }
        }
        _ => {
            let period = keys.usize_opt(key)?.unwrap_or(spec.window_period);
            // Period 1 means that no layer is the exception; 0 is how llama.cpp says the same.
            (0..n_layers).map(|l| period <= 1 || (l + 1) % period != 0).collect()
        }
    };
    Ok(has_window.into_iter().map(|has| has.then_some(window)).collect())
}

fn rope(
    file: &Gguf,
    keys: &Keys<'_>,
    spec: &Spec,
    head_dim: usize,
    mla: &Option<Mla>,
) -> Result<(Option<Rope>, Option<f32>), ConfigError> {
    let Some(layout) = spec.rope else { return Ok((None, None)) };
    let dim = match mla {
        Some(mla) => mla.qk_rope,
        None => keys.usize_opt("rope.dimension_count")?.unwrap_or(head_dim),
    };
    // 10000 is what every reader of GGUF takes where the key is absent (Llama 1 and 2 files).
    let theta = keys.f32_opt("rope.freq_base")?.unwrap_or(10_000.0);
    let theta_local = match spec.theta_local {
        Some(published) => Some(keys.f32_opt("rope.freq_base_swa")?.unwrap_or(published)),
        None => None,
    };
    let original_context = || match keys.usize_opt("rope.scaling.original_context_length")? {
        Some(n) => Ok(n),
        None => keys.usize("context_length"),
    };
    let mut query_scale = None;
    let scaling = match keys.str_opt("rope.scaling.type")? {
        _ if file.tensor(Role::RopeFreqs.stem()).is_some() => RopeScaling::Factors,
        _ if file.tensor(Role::RopeFactorsLong.stem()).is_some() => RopeScaling::LongRope {
            original_context: original_context()?,
            attention_factor: keys.f32_opt("rope.scaling.attn_factor")?.unwrap_or(1.0),
        },
        Some("linear") => RopeScaling::Linear { factor: keys.f32("rope.scaling.factor")? },
        Some("yarn") => {
            let factor = keys.f32("rope.scaling.factor")?;
            let log_multiplier = keys.f32_opt("rope.scaling.yarn_log_multiplier")?;
            let log_multiplier = log_multiplier.filter(|m| *m != 0.0);
            if let Some(m) = log_multiplier {
                query_scale = Some(ModelConfig::yarn_query_scale(head_dim, m, factor));
            }
            let usual = ModelConfig::yarn_usual_attention_factor(factor, log_multiplier);
            RopeScaling::Yarn {
                factor,
                original_context: original_context()?,
                beta_fast: keys.f32_opt("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: keys.f32_opt("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                attention_factor: keys.f32_opt("rope.scaling.yarn_attn_factor")?.unwrap_or(usual),
            }
        }
        // The type is absent in the oldest files, which could only scale linearly.
        None | Some("none") => match keys.f32_opt("rope.scale_linear")? {
            Some(factor) if factor != 1.0 => RopeScaling::Linear { factor },
            _ => RopeScaling::None,
        },
        Some(other) => {
            return Err(ConfigError::Unsupported {
                key: keys.name("rope.scaling.type"),
                found: other.to_owned(),
                why: "this scaling is not implemented, or its tensors are missing",
            });
        }
    };
    Ok((Some(Rope { layout, dim, theta, theta_local, scaling }), query_scale))
}

fn mla(keys: &Keys<'_>, spec: &Spec) -> Result<Option<Mla>, ConfigError> {
    if spec.family != Family::Deepseek2 {
        return Ok(None);
    }
    let qk_rope = keys.usize("rope.dimension_count")?;
    // Files for absorbed attention keep the model's own widths under other names.
    let head = match keys.usize_opt("attention.key_length_mla")? {
        Some(n) => n,
        None => keys.usize("attention.key_length")?,
    };
    let Some(qk_nope) = head.checked_sub(qk_rope) else {
        let expected = format!("at least the {qk_rope} of rope.dimension_count");
        return Err(ConfigError::bad(keys.name("attention.key_length_mla"), head, expected));
    };
    Ok(Some(Mla {
        q_lora_rank: keys.usize_opt("attention.q_lora_rank")?.filter(|n| *n != 0),
        kv_lora_rank: keys.usize("attention.kv_lora_rank")?,
        qk_nope,
        qk_rope,
    }))
}

fn moe(keys: &Keys<'_>, n_layers: usize, score_bias: bool) -> Result<Option<Moe>, ConfigError> {
    let n_experts = keys.usize_opt("expert_count")?.unwrap_or(0);
    if n_experts == 0 {
        return Ok(None);
    }
    let expert_size = match keys.usize_opt("expert_feed_forward_length")? {
        Some(n) => n,
        // Mixtral's experts are as wide as its FFN.
        None => keys.usize("feed_forward_length")?,
    };
    let shared_size = match keys.usize_opt("expert_shared_feed_forward_length")? {
        Some(n) => n,
        None => expert_size.saturating_mul(keys.usize_opt("expert_shared_count")?.unwrap_or(0)),
    };
    let gating = match keys.usize_opt("expert_gating_func")? {
        None | Some(0) if score_bias => Gating::Sigmoid,
        None | Some(0 | 1) => Gating::Softmax,
        Some(2) => Gating::Sigmoid,
        Some(other) => {
            return Err(ConfigError::Unsupported {
                key: keys.name("expert_gating_func"),
                found: other.to_string(),
                why: "only softmax (1) and sigmoid (2) are implemented",
            });
        }
    };
    let groups = match keys.usize_opt("expert_group_count")? {
        Some(count) if count > 1 => {
            Some(ExpertGroups { count, used: keys.usize("expert_group_used_count")? })
        }
        _ => None,
    };
    // DeepSeek writes the key where it holds; the others always normalise and write nothing.
    let normalise =
        keys.bool_opt("expert_weights_norm")?.unwrap_or(keys.family != Family::Deepseek2);
    let scale = keys.f32_opt("expert_weights_scale")?.filter(|s| *s != 0.0);
    Ok(Some(Moe {
        n_experts,
        n_experts_used: keys.usize("expert_used_count")?,
        expert_size,
        shared_size,
        n_dense_layers: keys.usize_opt("leading_dense_block_count")?.unwrap_or(0).min(n_layers),
        gating,
        normalise,
        scale: scale.unwrap_or(1.0),
        score_bias,
        groups,
    }))
}
