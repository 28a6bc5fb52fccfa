//! Phi-3, Phi-3.5 and Phi-4 (text): fused projections, partial rotation, `LongRoPE`.

use super::{Family, HfName, Spec, hf};
use crate::config::{Activation, ConfigError, FfnLayout, Hf, ModelConfig, NormKind, RopeLayout};
use crate::names::Role;

pub(super) const PHI3: Spec = Spec {
    family: Family::Phi3,
    gguf: "phi3",
    hf: &["phi3"],
    norm: NormKind::Rms,
    post_norms: false,
    qk_norm: false,
    rope: Some(RopeLayout::Half),
    activation: Activation::Silu,
    ffn: FfnLayout::GatedFused,
    fused_qkv: true,
    scaled_embedding: false,
    window_period: 1,
    default_window: None,
    theta_local: None,
    from_hf,
    names: NAMES,
    prefixes: &[],
    ignored: &[".rotary_emb.inv_freq"],
};

const NAMES: &[HfName] = &[
    hf(Role::TokenEmbd, "model.embed_tokens.weight"),
    hf(Role::OutputNorm, "model.norm.weight"),
    hf(Role::Output, "lm_head.weight"),
    hf(Role::AttnNorm, "model.layers.{l}.input_layernorm.weight"),
    hf(Role::AttnQkv, "model.layers.{l}.self_attn.qkv_proj.weight"),
    hf(Role::AttnOutput, "model.layers.{l}.self_attn.o_proj.weight"),
    hf(Role::FfnNorm, "model.layers.{l}.post_attention_layernorm.weight"),
    hf(Role::FfnUp, "model.layers.{l}.mlp.gate_up_proj.weight"),
    hf(Role::FfnDown, "model.layers.{l}.mlp.down_proj.weight"),
];

fn from_hf(hf: &Hf<'_>, config: &mut ModelConfig) -> Result<(), ConfigError> {
    // Defaults of `Phi3Config` for keys that are absent.
    config.norm.eps = hf.f32_or("rms_norm_eps", 1e-5)?;
    config.tied = hf.bool_or("tie_word_embeddings", false)?;
    config.windows = hf.windows(config.n_layers, hf.usize_opt("sliding_window")?, |_| true)?;
    Ok(())
}
