//! Gemma 1, 2 and 3 (text).

use super::{Family, HfName, Spec, Transform, hf, hf_as};
use crate::config::{Activation, ConfigError, FfnLayout, Hf, ModelConfig, NormKind, RopeLayout};
use crate::names::Role;

pub(super) const GEMMA: Spec = Spec {
    family: Family::Gemma,
    gguf: "gemma",
    hf: &["gemma"],
    norm: NormKind::Rms,
    post_norms: false,
    qk_norm: false,
    rope: Some(RopeLayout::Half),
    activation: Activation::GeluTanh,
    ffn: FfnLayout::Gated,
    fused_qkv: false,
    scaled_embedding: true,
    window_period: 1,
    default_window: None,
    theta_local: None,
    from_hf: gemma,
    names: NAMES,
    prefixes: &[],
    ignored: &[".rotary_emb.inv_freq"],
};

pub(super) const GEMMA2: Spec = Spec {
    family: Family::Gemma2,
    gguf: "gemma2",
    hf: &["gemma2"],
    post_norms: true,
    window_period: 2,
    default_window: Some(4096),
    from_hf: gemma2,
    names: POST_NORM_NAMES,
    ..GEMMA
};

pub(super) const GEMMA3: Spec = Spec {
    family: Family::Gemma3,
    gguf: "gemma3",
    hf: &["gemma3_text", "gemma3"],
    post_norms: true,
    qk_norm: true,
    window_period: 6,
    default_window: None,
    theta_local: Some(10_000.0),
    from_hf: gemma3,
    names: POST_NORM_NAMES,
    // Checkpoints with a vision tower put the language model one level deeper, in one of two ways.
    prefixes: &[("language_model.", ""), ("model.language_model.", "model.")],
    ..GEMMA
};

const NAMES: &[HfName] = &[
    hf(Role::TokenEmbd, "model.embed_tokens.weight"),
    hf_as(Role::OutputNorm, "model.norm.weight", Transform::PlusOne),
    hf(Role::Output, "lm_head.weight"),
    hf_as(Role::AttnNorm, "model.layers.{l}.input_layernorm.weight", Transform::PlusOne),
    hf(Role::AttnQ, "model.layers.{l}.self_attn.q_proj.weight"),
    hf(Role::AttnK, "model.layers.{l}.self_attn.k_proj.weight"),
    hf(Role::AttnV, "model.layers.{l}.self_attn.v_proj.weight"),
    hf(Role::AttnOutput, "model.layers.{l}.self_attn.o_proj.weight"),
    hf_as(Role::FfnNorm, "model.layers.{l}.post_attention_layernorm.weight", Transform::PlusOne),
    hf(Role::FfnGate, "model.layers.{l}.mlp.gate_proj.weight"),
    hf(Role::FfnUp, "model.layers.{l}.mlp.up_proj.weight"),
    hf(Role::FfnDown, "model.layers.{l}.mlp.down_proj.weight"),
];

/// With norms after the blocks, `post_attention_layernorm` is what its name says.
const POST_NORM_NAMES: &[HfName] = &[
    hf(Role::TokenEmbd, "model.embed_tokens.weight"),
    hf_as(Role::OutputNorm, "model.norm.weight", Transform::PlusOne),
    hf(Role::Output, "lm_head.weight"),
    hf_as(Role::AttnNorm, "model.layers.{l}.input_layernorm.weight", Transform::PlusOne),
    hf(Role::AttnQ, "model.layers.{l}.self_attn.q_proj.weight"),
    hf(Role::AttnK, "model.layers.{l}.self_attn.k_proj.weight"),
    hf(Role::AttnV, "model.layers.{l}.self_attn.v_proj.weight"),
    hf(Role::AttnOutput, "model.layers.{l}.self_attn.o_proj.weight"),
    hf_as(Role::AttnQNorm, "model.layers.{l}.self_attn.q_norm.weight", Transform::PlusOne),
    hf_as(Role::AttnKNorm, "model.layers.{l}.self_attn.k_norm.weight", Transform::PlusOne),
    hf_as(
        Role::PostAttnNorm,
        "model.layers.{l}.post_attention_layernorm.weight",
        Transform::PlusOne,
    ),
    hf_as(Role::FfnNorm, "model.layers.{l}.pre_feedforward_layernorm.weight", Transform::PlusOne),
    hf_as(
        Role::PostFfnNorm,
        "model.layers.{l}.post_feedforward_layernorm.weight",
        Transform::PlusOne,
    ),
    hf(Role::FfnGate, "model.layers.{l}.mlp.gate_proj.weight"),
    hf(Role::FfnUp, "model.layers.{l}.mlp.up_proj.weight"),
    hf(Role::FfnDown, "model.layers.{l}.mlp.down_proj.weight"),
];

fn gemma(hf: &Hf<'_>, config: &mut ModelConfig) -> Result<(), ConfigError> {
    // Defaults of `GemmaConfig`, `Gemma2Config` and `Gemma3TextConfig` for keys that are absent.
    config.norm.eps = hf.f32_or("rms_norm_eps", 1e-6)?;
    config.tied = hf.bool_or("tie_word_embeddings", true)?;
    if hf.bool_or("attention_bias", false)? {
        return Err(hf.unsupported("attention_bias", "Gemma with biases is not implemented"));
    }
    Ok(())
}

fn gemma2(hf: &Hf<'_>, config: &mut ModelConfig) -> Result<(), ConfigError> {
    gemma(hf, config)?;
    let scalar = hf.f32_or("query_pre_attn_scalar", 256.0)?;
    config.query_scale = ModelConfig::inverse_sqrt(f64::from(scalar));
    config.attn_softcap = hf.f32_or_null("attn_logit_softcapping", Some(50.0))?;
    config.final_softcap = hf.f32_or_null("final_logit_softcapping", Some(30.0))?;
    let window = hf.usize_or("sliding_window", 4096)?;
    let period = GEMMA2.window_period;
    config.windows = hf.windows(config.n_layers, Some(window), |l| (l + 1) % period != 0)?;
    Ok(())
}

fn gemma3(hf: &Hf<'_>, config: &mut ModelConfig) -> Result<(), ConfigError> {
    gemma(hf, config)?;
    let scalar = hf.f32_or("query_pre_attn_scalar", 256.0)?;
    config.query_scale = ModelConfig::inverse_sqrt(f64::from(scalar));
    config.attn_softcap = hf.f32_or_null("attn_logit_softcapping", None)?;
    config.final_softcap = hf.f32_or_null("final_logit_softcapping", None)?;
    let window = hf.usize_or("sliding_window", 4096)?;
    let key = ["sliding_window_pattern", "_sliding_window_pattern"];
    let period = hf.usize_any(&key)?.unwrap_or(GEMMA3.window_period);
    if period == 0 {
        return Err(ConfigError::bad(key[0], period, "a number of layers"));
    }
    config.windows = hf.windows(config.n_layers, Some(window), |l| (l + 1) % period != 0)?;
    Ok(())
}
