//! `ModelConfig` as GGUF metadata: the keys that llama.cpp needs, and those without which our own
//! reader would not get the same configuration back.

use super::{Gating, ModelConfig, NormKind, RopeScaling};
use crate::families::Family;
use crate::gguf::{Metadata, Value};

/// Metadata in the making, under an architecture's prefix.
struct Keys {
    family: Family,
    out: Metadata,
}

impl Keys {
    fn set<'v>(&mut self, key: &str, value: impl Into<Value<'v>>) {
        self.out.set(&format!("{}.{key}", self.family), value);
    }

    /// GGUF's counts are 32 bits wide; [`ModelConfig::validate`] keeps every count below that.
    fn count(&mut self, key: &str, value: usize) {
        self.set(key, u32::try_from(value).unwrap_or(u32::MAX));
    }
}

impl ModelConfig {
    /// The metadata of a GGUF file of this model: everything but the tokenizer, the file's name and
    /// its type. [`ModelConfig::from_gguf`] of the result, with the same tensors, gives this
    /// configuration back.
    pub fn to_gguf_metadata(&self) -> Metadata {
        let mut keys = Keys { family: self.family, out: Metadata::new() };
        keys.out.set("general.architecture", self.family.name());
        keys.out.set("general.type", "model");
        keys.count("block_count", self.n_layers);
        keys.count("context_length", self.context_length);
        keys.count("embedding_length", self.hidden_size);
        keys.count("vocab_size", self.vocab_size);
        keys.count(
            "feed_forward_length",
            match &self.moe {
                // llama.cpp reads the key for every model; experts have a key of their own.
                Some(moe) if self.intermediate_size == 0 => moe.expert_size,
                _ => self.intermediate_size,
            },
        );
        self.write_attention(&mut keys);
        self.write_rope(&mut keys);
        self.write_windows(&mut keys);
        self.write_moe(&mut keys);
        keys.out
    }

    fn write_attention(&self, keys: &mut Keys) {
        keys.count("attention.head_count", self.n_heads);
        keys.set(
            match self.norm.kind {
                NormKind::Rms => "attention.layer_norm_rms_epsilon",
                NormKind::Layer => "attention.layer_norm_epsilon",
            },
            self.norm.eps,
        );
        match &self.mla {
            Some(mla) => {
                // Absorbed: one key and value head, the latent, that all query heads share.
                keys.count("attention.head_count_kv", 1);
                keys.count("attention.key_length", mla.kv_lora_rank + mla.qk_rope);
                keys.count("attention.value_length", mla.kv_lora_rank);
                keys.count("attention.key_length_mla", self.head_dim);
                keys.count("attention.value_length_mla", self.head_dim_v);
                keys.count("attention.kv_lora_rank", mla.kv_lora_rank);
                if let Some(rank) = mla.q_lora_rank {
                    keys.count("attention.q_lora_rank", rank);
                }
            }
            None => {
                keys.count("attention.head_count_kv", self.n_kv_heads);
                keys.count("attention.key_length", self.head_dim);
                keys.count("attention.value_length", self.head_dim_v);
            }
        }
        if self.family == Family::Gemma2 || self.attn_softcap.is_some() {
            // Zero means none; absence would mean the value that Gemma 2 was published with.
            keys.set("attn_logit_softcapping", self.attn_softcap.unwrap_or(0.0));
        }
        if self.family == Family::Gemma2 || self.final_softcap.is_some() {
            keys.set("final_logit_softcapping", self.final_softcap.unwrap_or(0.0));
        }
        // Where the family's rule gives another value, or YaRN has changed it.
        let dims = (self.hidden_size, self.n_layers, self.n_heads, self.head_dim);
        if self.query_scale != Self::query_scale_of(self.family, dims) {
            keys.set("attention.scale", self.query_scale);
        }
    }

    fn write_rope(&self, keys: &mut Keys) {
        let Some(rope) = &self.rope else { return };
        keys.count("rope.dimension_count", rope.dim);
        keys.set("rope.freq_base", rope.theta);
        if let Some(theta) = rope.theta_local {
            keys.set("rope.freq_base_swa", theta);
        }
        match rope.scaling {
            // The tensors say it.
            RopeScaling::None | RopeScaling::Factors => {}
            RopeScaling::Linear { factor } => {
                keys.set("rope.scaling.type", "linear");
                keys.set("rope.scaling.factor", factor);
            }
            RopeScaling::Yarn {
                factor,
                original_context,
                beta_fast,
                beta_slow,
                attention_factor,
            } => {
                keys.set("rope.scaling.type", "yarn");
                keys.set("rope.scaling.factor", factor);
                keys.count("rope.scaling.original_context_length", original_context);
                keys.set("rope.scaling.yarn_beta_fast", beta_fast);
                keys.set("rope.scaling.yarn_beta_slow", beta_slow);
                let multiplier = self.yarn_log_multiplier(factor);
                if let Some(multiplier) = multiplier {
                    keys.set("rope.scaling.yarn_log_multiplier", multiplier);
                }
                // Readers derive the usual value themselves; llama.cpp multiplies with a given one.
                if attention_factor != Self::yarn_usual_attention_factor(factor, multiplier) {
                    keys.set("rope.scaling.yarn_attn_factor", attention_factor);
                }
            }
            RopeScaling::LongRope { original_context, attention_factor } => {
                keys.count("rope.scaling.original_context_length", original_context);
                keys.set("rope.scaling.attn_factor", attention_factor);
            }
        }
    }

    /// DeepSeek's multiplier, from the query scale that it made.
    fn yarn_log_multiplier(&self, factor: f32) -> Option<f32> {
        self.mla.as_ref()?;
        let root = f64::from(self.query_scale) * (self.head_dim as f64).sqrt();
        let multiplier = ((root.sqrt() - 1.0) / f64::from(factor).ln()) as f32;
        // The published multipliers have few digits, which rounding to seven finds again.
        let multiplier = (multiplier * 1e6).round() / 1e6;
        (multiplier > 0.0).then_some(multiplier)
    }

    fn write_windows(&self, keys: &mut Keys) {
        let Some(window) = self.windows.iter().flatten().next() else {
            // Phi-3 in llama.cpp wants the key even where there is no window.
            if matches!(self.family, Family::Phi3 | Family::Gemma2) {
                keys.count("attention.sliding_window", 0);
            }
            return;
        };
        keys.count("attention.sliding_window", *window);
        let period = self.family.spec().window_period;
        let usual = |layer: usize| period <= 1 || !(layer + 1).is_multiple_of(period);
        let has: Vec<bool> = self.windows.iter().map(Option::is_some).collect();
        if has.iter().enumerate().any(|(layer, has)| *has != usual(layer)) {
            let key = format!("{}.attention.sliding_window_pattern", self.family);
            keys.out.set_array(&key, &has);
        }
    }

    fn write_moe(&self, keys: &mut Keys) {
        let Some(moe) = &self.moe else { return };
        keys.count("expert_count", moe.n_experts);
        keys.count("expert_used_count", moe.n_experts_used);
        keys.count("expert_feed_forward_length", moe.expert_size);
        if self.family == Family::Deepseek2 {
            keys.count("leading_dense_block_count", moe.n_dense_layers);
            keys.count("expert_shared_count", moe.shared_size / moe.expert_size);
            keys.set("expert_weights_scale", moe.scale);
        }
        if self.family == Family::Deepseek2 || !moe.normalise {
            keys.set("expert_weights_norm", moe.normalise);
        }
        if self.family == Family::Deepseek2 {
            let gating = match moe.gating {
                Gating::Softmax => 1u32,
                Gating::Sigmoid => 2,
            };
            keys.set("expert_gating_func", gating);
        }
        if let Some(groups) = moe.groups {
            keys.count("expert_group_count", groups.count);
            keys.count("expert_group_used_count", groups.used);
        }
    }
}
