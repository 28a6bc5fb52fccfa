//! GPT-2: `LayerNorm`, learned positions, biases everywhere, matrices stored transposed.

use super::{Family, HfName, Spec, Transform, hf, hf_as};
use crate::config::{Activation, Biases, ConfigError, FfnLayout, Hf, ModelConfig, NormKind};
use crate::names::Role;

pub(super) const GPT2: Spec = Spec {
    family: Family::Gpt2,
    gguf: "gpt2",
    hf: &["gpt2"],
    norm: NormKind::Layer,
    post_norms: false,
    qk_norm: false,
    rope: None,
    activation: Activation::GeluTanh,
    ffn: FfnLayout::Plain,
    fused_qkv: true,
    scaled_embedding: false,
    window_period: 1,
    default_window: None,
    theta_local: None,
    from_hf,
    names: NAMES,
    // Checkpoints saved from the bare model lack the `transformer.` that others have.
    prefixes: &[("transformer.", "")],
    ignored: &[".attn.bias", ".attn.masked_bias"],
};

const NAMES: &[HfName] = &[
    hf(Role::TokenEmbd, "wte.weight"),
    hf(Role::PositionEmbd, "wpe.weight"),
    hf(Role::OutputNorm, "ln_f.weight"),
    hf(Role::OutputNormBias, "ln_f.bias"),
    hf(Role::Output, "lm_head.weight"),
    hf(Role::AttnNorm, "h.{l}.ln_1.weight"),
    hf(Role::AttnNormBias, "h.{l}.ln_1.bias"),
    hf_as(Role::AttnQkv, "h.{l}.attn.c_attn.weight", Transform::Transpose),
    hf(Role::AttnQkvBias, "h.{l}.attn.c_attn.bias"),
    hf_as(Role::AttnOutput, "h.{l}.attn.c_proj.weight", Transform::Transpose),
    hf(Role::AttnOutputBias, "h.{l}.attn.c_proj.bias"),
    hf(Role::FfnNorm, "h.{l}.ln_2.weight"),
    hf(Role::FfnNormBias, "h.{l}.ln_2.bias"),
    hf_as(Role::FfnUp, "h.{l}.mlp.c_fc.weight", Transform::Transpose),
    hf(Role::FfnUpBias, "h.{l}.mlp.c_fc.bias"),
    hf_as(Role::FfnDown, "h.{l}.mlp.c_proj.weight", Transform::Transpose),
    hf(Role::FfnDownBias, "h.{l}.mlp.c_proj.bias"),
];

fn from_hf(hf: &Hf<'_>, config: &mut ModelConfig) -> Result<(), ConfigError> {
    // Defaults of `GPT2Config` for keys that are absent.
    config.norm.eps = hf.f32_or("layer_norm_epsilon", 1e-5)?;
    config.tied = hf.bool_or("tie_word_embeddings", true)?;
    config.biases = Biases { qkv: true, attn_output: true, ffn: true, norm: true };
    if !hf.bool_or("scale_attn_weights", true)? {
        config.query_scale = 1.0;
    }
    if hf.bool_or("scale_attn_by_inverse_layer_idx", false)? {
        return Err(hf.unsupported(
            "scale_attn_by_inverse_layer_idx",
            "attention scaled by layer is not implemented",
        ));
    }
    Ok(())
}
