//! Every number of a `ModelConfig` is checked once, whichever source it came from, before anything
//! is allocated or divided by it.

use super::{ConfigError, ModelConfig, RopeScaling};

/// Deeper than any model known; what is allocated per layer stays small.
pub(super) const MAX_LAYERS: usize = 4096;
/// Products of any three of these fit in 64 bits.
const MAX_WIDTH: usize = 1 << 20;
const MAX_VOCAB: usize = 1 << 24;
const MAX_CONTEXT: usize = 1 << 31;

impl ModelConfig {
    /// Checks that every number makes sense by itself and beside the others.
    ///
    /// # Errors
    /// [`ConfigError::BadValue`], naming the field, what it is and what was expected.
    pub fn validate(&self) -> Result<(), ConfigError> {
        range("n_layers", self.n_layers, 1, MAX_LAYERS)?;
        range("hidden_size", self.hidden_size, 1, MAX_WIDTH)?;
        range("vocab_size", self.vocab_size, 1, MAX_VOCAB)?;
        range("context_length", self.context_length, 1, MAX_CONTEXT)?;
        range("n_heads", self.n_heads, 1, MAX_WIDTH)?;
        range("n_kv_heads", self.n_kv_heads, 1, self.n_heads)?;
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            let expected = format!("a divisor of the {} query heads", self.n_heads);
            return Err(ConfigError::bad("n_kv_heads", self.n_kv_heads, expected));
        }
        range("head_dim", self.head_dim, 1, MAX_WIDTH)?;
        range("head_dim_v", self.head_dim_v, 1, MAX_WIDTH)?;
        range("n_heads * head_dim", self.n_heads.saturating_mul(self.head_dim), 1, MAX_WIDTH)?;
        range("n_heads * head_dim_v", self.n_heads.saturating_mul(self.head_dim_v), 1, MAX_WIDTH)?;
        let has_dense = (0..self.n_layers).any(|l| !self.is_moe_layer(l));
        range("intermediate_size", self.intermediate_size, usize::from(has_dense), MAX_WIDTH)?;
        if !(self.norm.eps > 0.0 && self.norm.eps < 1.0) {
            return Err(ConfigError::bad("norm.eps", self.norm.eps, "a number between 0 and 1"));
        }
        positive("embedding_scale", self.embedding_scale)?;
        positive("query_scale", self.query_scale)?;
        for (name, cap) in
            [("attn_softcap", self.attn_softcap), ("final_softcap", self.final_softcap)]
        {
            cap.map_or(Ok(()), |cap| positive(name, cap))?;
        }
        if self.windows.len() != self.n_layers {
            let expected = format!("one for each of the {} layers", self.n_layers);
            return Err(ConfigError::bad("windows", self.windows.len(), expected));
        }
        for window in self.windows.iter().flatten() {
            range("window", *window, 1, MAX_CONTEXT)?;
        }
        self.validate_rope()?;
        self.validate_moe()?;
        self.validate_mla()
    }

    fn validate_rope(&self) -> Result<(), ConfigError> {
        let Some(rope) = &self.rope else { return Ok(()) };
        range("rope.dim", rope.dim, 2, self.head_dim)?;
        if !rope.dim.is_multiple_of(2) {
            return Err(ConfigError::bad("rope.dim", rope.dim, "an even number"));
        }
        positive("rope.theta", rope.theta)?;
        rope.theta_local.map_or(Ok(()), |theta| positive("rope.theta_local", theta))?;
        match rope.scaling {
            RopeScaling::None | RopeScaling::Factors => Ok(()),
            RopeScaling::Linear { factor } => positive("rope.scaling.factor", factor),
            RopeScaling::Yarn {
                factor,
                original_context,
                beta_fast,
                beta_slow,
                attention_factor,
            } => {
                positive("rope.scaling.factor", factor)?;
                positive("rope.scaling.beta_fast", beta_fast)?;
                positive("rope.scaling.beta_slow", beta_slow)?;
                positive("rope.scaling.attention_factor", attention_factor)?;
                range("rope.scaling.original_context", original_context, 1, MAX_CONTEXT)
            }
            RopeScaling::LongRope { original_context, attention_factor } => {
                positive("rope.scaling.attention_factor", attention_factor)?;
                range("rope.scaling.original_context", original_context, 1, MAX_CONTEXT)
            }
        }
    }

    fn validate_moe(&self) -> Result<(), ConfigError> {
        let Some(moe) = &self.moe else { return Ok(()) };
        range("moe.n_experts", moe.n_experts, 1, MAX_WIDTH)?;
        range("moe.n_experts_used", moe.n_experts_used, 1, moe.n_experts)?;
        range("moe.expert_size", moe.expert_size, 1, MAX_WIDTH)?;
        range("moe.shared_size", moe.shared_size, 0, MAX_WIDTH)?;
        range("moe.n_dense_layers", moe.n_dense_layers, 0, self.n_layers)?;
        positive("moe.scale", moe.scale)?;
        let Some(groups) = &moe.groups else { return Ok(()) };
        range("moe.groups.count", groups.count, 1, moe.n_experts)?;
        range("moe.groups.used", groups.used, 1, groups.count)?;
        if !moe.n_experts.is_multiple_of(groups.count) {
            let expected = format!("a divisor of the {} experts", moe.n_experts);
            return Err(ConfigError::bad("moe.groups.count", groups.count, expected));
        }
        let reachable = moe.n_experts / groups.count * groups.used;
        range("moe.n_experts_used", moe.n_experts_used, 1, reachable)
    }

    fn validate_mla(&self) -> Result<(), ConfigError> {
        let Some(mla) = &self.mla else { return Ok(()) };
        mla.q_lora_rank.map_or(Ok(()), |n| range("mla.q_lora_rank", n, 1, MAX_WIDTH))?;
        range("mla.kv_lora_rank", mla.kv_lora_rank, 1, MAX_WIDTH)?;
        range("mla.qk_nope", mla.qk_nope, 1, MAX_WIDTH)?;
        range("mla.qk_rope", mla.qk_rope, 2, MAX_WIDTH)?;
        range("head_dim", self.head_dim, mla.qk_nope + mla.qk_rope, mla.qk_nope + mla.qk_rope)
    }
}

fn range(key: &str, found: usize, low: usize, high: usize) -> Result<(), ConfigError> {
    if (low..=high).contains(&found) {
        return Ok(());
    }
    Err(ConfigError::bad(key, found, format!("a number from {low} to {high}")))
}

fn positive(key: &str, found: f32) -> Result<(), ConfigError> {
    if found > 0.0 && found.is_finite() {
        return Ok(());
    }
    Err(ConfigError::bad(key, found, "a positive number"))
}
