//! `ModelConfig` from a Hugging Face `config.json`, in the spelling of transformers 4 and 5.

use serde_json::Value;

use super::{Biases, ConfigError, ModelConfig, Norm, Rope, RopeScaling};
use crate::families::{Family, Spec};

/// A `config.json` (its text part, where it has one), with conversions that say what is wrong.
pub(crate) struct Hf<'a> {
    root: &'a Value,
    family: Family,
    model_type: &'a str,
}

impl ModelConfig {
    /// The configuration that a `config.json` implies.
    ///
    /// # Errors
    /// An unknown family, a missing or senseless key, a feature that is not implemented.
    pub fn from_hf(root: &Value) -> Result<Self, ConfigError> {
        Hf::new(root)?.config()
    }
}

impl<'a> Hf<'a> {
    /// Finds the family and the numbers of the language model.
    pub(crate) fn new(root: &'a Value) -> Result<Self, ConfigError> {
        let missing = || ConfigError::MissingKey { key: "model_type".into(), family: "any" };
        let model_type = root.get("model_type").and_then(Value::as_str).ok_or_else(missing)?;
        let family = Family::from_hf_name(model_type)?;
        if root.get("quantization_config").is_some_and(|v| !v.is_null()) {
            return Err(ConfigError::Unsupported {
                key: "quantization_config".into(),
                found: "set".into(),
                why: "only F32, F16 and BF16 safetensors are read; use the original model or a \
                      GGUF file",
            });
        }
        // Models with a vision tower keep the language model's numbers one level deeper.
        let root = root.get("text_config").filter(|v| v.is_object()).unwrap_or(root);
        Ok(Self { root, family, model_type })
    }

    /// The normalised, validated configuration.
    pub(crate) fn config(&self) -> Result<ModelConfig, ConfigError> {
        let mut config = self.common(self.family.spec())?;
        (self.family.spec().from_hf)(self, &mut config)?;
        config.validate()?;
        Ok(config)
    }

    pub(crate) fn model_type(&self) -> &'a str {
        self.model_type
    }

    /// What stands at `key`; null counts as absent.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.root.get(key).filter(|v| !v.is_null())
    }

    pub(crate) fn unsupported(&self, key: &str, why: &'static str) -> ConfigError {
        let found = self.get(key).map_or_else(|| "absent".into(), Value::to_string);
        ConfigError::Unsupported { key: key.into(), found, why }
    }

    pub(crate) fn usize_opt(&self, key: &str) -> Result<Option<usize>, ConfigError> {
        self.get(key).map(|v| to_usize(key, v)).transpose()
    }

    /// The first of several spellings that is there.
    pub(crate) fn usize_any(&self, keys: &[&str]) -> Result<Option<usize>, ConfigError> {
        for key in keys {
            if let Some(n) = self.usize_opt(key)? {
                return Ok(Some(n));
            }
        }
        Ok(None)
    }

    pub(crate) fn usize_or(&self, key: &str, default: usize) -> Result<usize, ConfigError> {
        Ok(self.usize_opt(key)?.unwrap_or(default))
    }

    /// Where an explicit null has a meaning of its own: none, not the default.
    pub(crate) fn usize_or_null(
        &self,
        key: &str,
        default: Option<usize>,
    ) -> Result<Option<usize>, ConfigError> {
        if self.root.get(key).is_some() { self.usize_opt(key) } else { Ok(default) }
    }

    pub(crate) fn f32_or(&self, key: &str, default: f32) -> Result<f32, ConfigError> {
        Ok(self.f64_opt(key)?.map_or(default, |v| v as f32))
    }

    /// Where an explicit null has a meaning of its own: none, not the default.
    pub(crate) fn f32_or_null(
        &self,
        key: &str,
        default: Option<f32>,
    ) -> Result<Option<f32>, ConfigError> {
        match self.root.get(key) {
            Some(_) => Ok(self.f64_opt(key)?.map(|v| v as f32)),
            None => Ok(default),
        }
    }

    fn f64_opt(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        self.get(key).map(|v| to_f64(key, v)).transpose()
    }

    pub(crate) fn bool_or(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => v.as_bool().ok_or_else(|| ConfigError::bad(key, v, "true or false")),
        }
    }

    pub(crate) fn str_opt(&self, key: &str) -> Result<Option<&'a str>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => match v.as_str() {
                Some(text) => Ok(Some(text)),
                None => Err(ConfigError::bad(key, v, "a string")),
            },
        }
    }

    fn need(&self, keys: &[&str]) -> Result<usize, ConfigError> {
        self.usize_any(keys)?.ok_or_else(|| ConfigError::MissingKey {
            key: keys.join("` or `"),
            family: self.family.name(),
        })
    }

    /// The window of each layer: by `layer_types` where it is there, else by `has_window`.
    pub(crate) fn windows(
        &self,
        n_layers: usize,
        window: Option<usize>,
        has_window: impl Fn(usize) -> bool,
    ) -> Result<Vec<Option<usize>>, ConfigError> {
        let key = "layer_types";
        let Some(types) = self.get(key).and_then(Value::as_array) else {
            return Ok((0..n_layers).map(|l| window.filter(|_| has_window(l))).collect());
        };
        if types.len() != n_layers {
            let expected = format!("one entry for each of the {n_layers} layers");
            return Err(ConfigError::bad(key, format!("{} entries", types.len()), expected));
        }
        let one = |kind: &Value| match kind.as_str() {
            Some("sliding_attention") => Ok(window),
            Some("full_attention") => Ok(None),
            _ => Err(ConfigError::bad(key, kind, "sliding_attention or full_attention")),
        };
        types.iter().map(one).collect()
    }

    /// What all families have, with the names of either generation.
    fn common(&self, spec: &Spec) -> Result<ModelConfig, ConfigError> {
        // Gemma 3 checkpoints with a vision tower write only what differs from the defaults of
        // `Gemma3TextConfig`; all other families always write these numbers.
        let gemma3 = self.family == Family::Gemma3;
        let need = |keys: &[&str], default: usize| match self.usize_any(keys)? {
            None if gemma3 => Ok(default),
            _ => self.need(keys),
        };
        let hidden_size = need(&["hidden_size", "n_embd"], 2304)?;
        let n_layers = need(&["num_hidden_layers", "n_layer"], 26)?;
        if n_layers > super::validate::MAX_LAYERS {
            return Err(ConfigError::bad("num_hidden_layers", n_layers, "a sensible depth"));
        }
        let n_heads = need(&["num_attention_heads", "n_head"], 8)?;
        let n_kv_heads = need(&["num_key_value_heads", "num_attention_heads", "n_head"], 4)?;
        let head_dim = match self.usize_opt("head_dim")? {
            Some(n) => n,
            None if gemma3 => 256,
            None => hidden_size.checked_div(n_heads).unwrap_or(0),
        };
        let intermediate_size = match self.usize_any(&["intermediate_size", "n_inner"])? {
            Some(n) => n,
            None if gemma3 => 9216,
            // `GPT2Config.n_inner` is null for four times the width.
            None if self.family == Family::Gpt2 => hidden_size.saturating_mul(4),
            None => self.need(&["intermediate_size"])?,
        };
        let activation = spec.activation;
        self.check_activation(spec)?;
        Ok(ModelConfig {
            family: self.family,
            hidden_size,
            n_layers,
            vocab_size: need(&["vocab_size"], 262_208)?,
            context_length: need(&["max_position_embeddings", "n_positions", "n_ctx"], 131_072)?,
            n_heads,
            n_kv_heads,
            head_dim,
            head_dim_v: head_dim,
            intermediate_size,
            // Overwritten by every family: each has its own key or default.
            norm: Norm { kind: spec.norm, eps: 0.0 },
            post_norms: spec.post_norms,
            qk_norm: spec.qk_norm,
            rope: self.rope(spec, head_dim)?,
            windows: vec![None; n_layers],
            activation,
            ffn: spec.ffn,
            fused_qkv: spec.fused_qkv,
            attn_softcap: None,
            final_softcap: None,
            embedding_scale: if spec.scaled_embedding { (hidden_size as f32).sqrt() } else { 1.0 },
            query_scale: ModelConfig::inverse_sqrt(head_dim as f64),
            tied: false,
            biases: Biases::default(),
            moe: None,
            mla: None,
        })
    }

    /// The activation is the family's own in every published model, and GGUF has no key for it; a
    /// model that says otherwise would run wrongly everywhere.
    fn check_activation(&self, spec: &Spec) -> Result<(), ConfigError> {
        use super::Activation::{Gelu, GeluTanh, Silu};
        for key in ["hidden_activation", "hidden_act", "activation_function"] {
            let Some(name) = self.str_opt(key)? else { continue };
            let same = match spec.activation {
                Silu => matches!(name, "silu" | "swish"),
                // Gemma 1 was published saying `gelu` and meaning the approximation.
                GeluTanh => matches!(name, "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" | "gelu"),
                Gelu => name == "gelu",
            };
            return if same {
                Ok(())
            } else {
                Err(self.unsupported(key, "not the activation of this family"))
            };
        }
        Ok(())
    }

    /// Where the numbers of the rotation stand: version 5 gathers them in `rope_parameters`, by
    /// kind of layer where kinds differ; version 4 had `rope_scaling` beside `rope_theta`.
    fn rope_parameters(&self) -> Option<&'a Value> {
        let all = self.get("rope_parameters").or_else(|| self.get("rope_scaling"))?;
        Some(all.get("full_attention").unwrap_or(all))
    }

    /// A number of the rotation, wherever it stands.
    pub(crate) fn rope_f64(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        let inner = self.rope_parameters().and_then(|p| p.get(key)).filter(|v| !v.is_null());
        inner.or_else(|| self.get(key)).map(|v| to_f64(key, v)).transpose()
    }

    /// A list of numbers of the rotation, one for each pair of elements.
    pub(crate) fn rope_list(&self, key: &str) -> Result<Option<Vec<f32>>, ConfigError> {
        let Some(value) = self.rope_parameters().and_then(|p| p.get(key)) else { return Ok(None) };
        let Some(list) = value.as_array() else {
            return Err(ConfigError::bad(key, value, "a list of numbers"));
        };
        let list: Result<Vec<f32>, _> =
            list.iter().map(|v| to_f64(key, v).map(|f| f as f32)).collect();
        list.map(Some)
    }

    fn rope(&self, spec: &Spec, head_dim: usize) -> Result<Option<Rope>, ConfigError> {
        let Some(layout) = spec.rope else { return Ok(None) };
        // 10000 is the default of every family here but Gemma 3 and Mixtral.
        let theta = match (self.rope_f64("rope_theta")?, self.model_type) {
            (Some(theta), _) => theta,
            (None, "gemma3" | "gemma3_text" | "mixtral") => 1e6,
            (None, _) => 1e4,
        };
        let local = self
            .get("rope_parameters")
            .and_then(|p| p.get("sliding_attention")?.get("rope_theta"))
            .or_else(|| self.get("rope_local_base_freq"))
            .map(|v| to_f64("rope_local_base_freq", v))
            .transpose()?;
        let theta_local = spec.theta_local.map(|published| local.map_or(published, |v| v as f32));
        let partial = self.rope_f64("partial_rotary_factor")?.unwrap_or(1.0);
        Ok(Some(Rope {
            layout,
            dim: (head_dim as f64 * partial) as usize,
            theta: theta as f32,
            theta_local,
            scaling: self.rope_scaling()?,
        }))
    }

    fn rope_scaling(&self) -> Result<RopeScaling, ConfigError> {
        let Some(parameters) = self.rope_parameters() else { return Ok(RopeScaling::None) };
        let kind = parameters.get("rope_type").or_else(|| parameters.get("type"));
        let factor = || {
            self.rope_f64("factor")?.ok_or_else(|| ConfigError::MissingKey {
                key: "rope_scaling.factor".into(),
                family: self.family.name(),
            })
        };
        let original_context = || match parameters.get("original_max_position_embeddings") {
            Some(v) if !v.is_null() => to_usize("original_max_position_embeddings", v),
            // Phi-3 keeps it beside the other numbers.
            _ => self.need(&["original_max_position_embeddings", "max_position_embeddings"]),
        };
        match kind.and_then(Value::as_str) {
            None | Some("default") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear { factor: factor()? as f32 }),
            Some("llama3") => Ok(RopeScaling::Factors),
            Some("yarn") => {
                let factor = factor()? as f32;
                Ok(RopeScaling::Yarn {
                    factor,
                    original_context: original_context()?,
                    beta_fast: self.rope_f64("beta_fast")?.unwrap_or(32.0) as f32,
                    beta_slow: self.rope_f64("beta_slow")?.unwrap_or(1.0) as f32,
                    attention_factor: self.yarn_attention_factor(factor)?,
                })
            }
            Some("longrope" | "su") => {
                let original_context = original_context()?;
                let attention_factor = match self.rope_f64("attention_factor")? {
                    Some(factor) => factor,
                    None => {
                        let context = self.need(&["max_position_embeddings"])? as f64;
                        let scale = match self.rope_f64("factor")? {
                            Some(factor) => factor,
                            None => context / original_context as f64,
                        };
                        let log = (original_context as f64).ln();
                        if scale > 1.0 { (1.0 + scale.ln() / log).sqrt() } else { 1.0 }
                    }
                };
                let attention_factor = attention_factor as f32;
                Ok(RopeScaling::LongRope { original_context, attention_factor })
            }
            Some(other) => Err(ConfigError::Unsupported {
                key: "rope_scaling.rope_type".into(),
                found: other.to_owned(),
                why: "only linear, llama3, yarn and longrope are implemented",
            }),
        }
    }

    /// DeepSeek gives two multipliers whose ratio counts; everybody else uses the usual rule.
    fn yarn_attention_factor(&self, factor: f32) -> Result<f32, ConfigError> {
        if let Some(given) = self.rope_f64("attention_factor")? {
            return Ok(given as f32);
        }
        let mscale = |m: f64| 0.1 * m * f64::from(factor).ln() + 1.0;
        match (self.rope_f64("mscale")?, self.rope_f64("mscale_all_dim")?) {
            (Some(m), Some(all)) if m != 0.0 && all != 0.0 => Ok((mscale(m) / mscale(all)) as f32),
            _ => Ok(ModelConfig::yarn_attention_factor(factor)),
        }
    }
}

fn to_usize(key: &str, value: &Value) -> Result<usize, ConfigError> {
    // Some files write whole numbers as floats.
    let whole = value.as_f64().filter(|f| f.fract() == 0.0 && *f >= 0.0 && *f < 9e15);
    let number = value.as_u64().or_else(|| whole.map(|f| f as u64));
    number
        .and_then(|n| usize::try_from(n).ok())
        .ok_or_else(|| ConfigError::bad(key, value, "a whole number that is not negative"))
}

fn to_f64(key: &str, value: &Value) -> Result<f64, ConfigError> {
    value.as_f64().ok_or_else(|| ConfigError::bad(key, value, "a number"))
}
