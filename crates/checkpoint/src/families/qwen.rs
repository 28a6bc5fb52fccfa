//! Qwen 2 (and 2.5), Qwen 3, and Qwen 3's mixture of experts.

use super::{Family, HfName, Spec, Transform, hf, hf_as};
use crate::config::{
    Activation, ConfigError, FfnLayout, Gating, Hf, ModelConfig, Moe, NormKind, RopeLayout,
};
use crate::names::Role;

pub(super) const QWEN2: Spec = Spec {
    family: Family::Qwen2,
    gguf: "qwen2",
    hf: &["qwen2"],
    norm: NormKind::Rms,
    post_norms: false,
    qk_norm: false,
    rope: Some(RopeLayout::Half),
    activation: Activation::Silu,
    ffn: FfnLayout::Gated,
    fused_qkv: false,
    scaled_embedding: false,
    window_period: 1,
    default_window: None,
    theta_local: None,
    from_hf: qwen2,
    names: NAMES,
    prefixes: &[],
    ignored: &[".rotary_emb.inv_freq"],
};

pub(super) const QWEN3: Spec = Spec {
    family: Family::Qwen3,
    gguf: "qwen3",
    hf: &["qwen3"],
    qk_norm: true,
    from_hf: qwen3,
    ..QWEN2
};

pub(super) const QWEN3_MOE: Spec = Spec {
    family: Family::Qwen3Moe,
    gguf: "qwen3moe",
    hf: &["qwen3_moe"],
    qk_norm: true,
    from_hf: qwen3_moe,
    ..QWEN2
};

const NAMES: &[HfName] = &[
    hf(Role::TokenEmbd, "model.embed_tokens.weight"),
    hf(Role::OutputNorm, "model.norm.weight"),
    hf(Role::Output, "lm_head.weight"),
    hf(Role::AttnNorm, "model.layers.{l}.input_layernorm.weight"),
    hf(Role::AttnQ, "model.layers.{l}.self_attn.q_proj.weight"),
    hf(Role::AttnQBias, "model.layers.{l}.self_attn.q_proj.bias"),
    hf(Role::AttnK, "model.layers.{l}.self_attn.k_proj.weight"),
    hf(Role::AttnKBias, "model.layers.{l}.self_attn.k_proj.bias"),
    hf(Role::AttnV, "model.layers.{l}.self_attn.v_proj.weight"),
    hf(Role::AttnVBias, "model.layers.{l}.self_attn.v_proj.bias"),
    hf(Role::AttnOutput, "model.layers.{l}.self_attn.o_proj.weight"),
    hf(Role::AttnOutputBias, "model.layers.{l}.self_attn.o_proj.bias"),
    hf(Role::AttnQNorm, "model.layers.{l}.self_attn.q_norm.weight"),
    hf(Role::AttnKNorm, "model.layers.{l}.self_attn.k_norm.weight"),
    hf(Role::FfnNorm, "model.layers.{l}.post_attention_layernorm.weight"),
    hf(Role::FfnGate, "model.layers.{l}.mlp.gate_proj.weight"),
    hf(Role::FfnUp, "model.layers.{l}.mlp.up_proj.weight"),
    hf(Role::FfnDown, "model.layers.{l}.mlp.down_proj.weight"),
    hf(Role::FfnGateInp, "model.layers.{l}.mlp.gate.weight"),
    hf_as(
        Role::FfnGateExps,
        "model.layers.{l}.mlp.experts.{e}.gate_proj.weight",
        Transform::Experts,
    ),
    hf_as(Role::FfnUpExps, "model.layers.{l}.mlp.experts.{e}.up_proj.weight", Transform::Experts),
    hf_as(
        Role::FfnDownExps,
        "model.layers.{l}.mlp.experts.{e}.down_proj.weight",
        Transform::Experts,
    ),
];

fn qwen2(hf: &Hf<'_>, config: &mut ModelConfig) -> Result<(), ConfigError> {
    common(hf, config)?;
    // Qwen 2 has these biases always; its configuration has no key for them.
    config.biases.qkv = true;
    Ok(())
}

fn qwen3(hf: &Hf<'_>, config: &mut ModelConfig) -> Result<(), ConfigError> {
    common(hf, config)?;
    config.biases.qkv = hf.bool_or("attention_bias", false)?;
    config.biases.attn_output = config.biases.qkv;
    Ok(())
}

fn qwen3_moe(hf: &Hf<'_>, config: &mut ModelConfig) -> Result<(), ConfigError> {
    qwen3(hf, config)?;
    if hf.usize_or("decoder_sparse_step", 1)? != 1 {
        return Err(hf.unsupported("decoder_sparse_step", "every layer must have experts"));
    }
    if hf.get("mlp_only_layers").and_then(|v| v.as_array()).is_some_and(|a| !a.is_empty()) {
        return Err(hf.unsupported("mlp_only_layers", "every layer must have experts"));
    }
    config.moe = Some(Moe {
        // `num_local_experts` is how newer versions of transformers write the same number.
        n_experts: hf.usize_any(&["num_experts", "num_local_experts"])?.unwrap_or(128),
        n_experts_used: hf.usize_or("num_experts_per_tok", 8)?,
        expert_size: hf.usize_or("moe_intermediate_size", 768)?,
        shared_size: 0,
        n_dense_layers: 0,
        gating: Gating::Softmax,
        normalise: hf.bool_or("norm_topk_prob", false)?,
        scale: 1.0,
        score_bias: false,
        groups: None,
    });
    config.intermediate_size = 0;
    Ok(())
}

fn common(hf: &Hf<'_>, config: &mut ModelConfig) -> Result<(), ConfigError> {
    // Defaults of `Qwen2Config`, `Qwen3Config` and `Qwen3MoeConfig` for keys that are absent.
    config.norm.eps = hf.f32_or("rms_norm_eps", 1e-6)?;
    config.tied = hf.bool_or("tie_word_embeddings", false)?;
    // Without `use_sliding_window`, the other keys about windows mean nothing.
    if hf.bool_or("use_sliding_window", false)? {
        let window = hf.usize_or("sliding_window", 4096)?;
        let first = hf.usize_or("max_window_layers", 28)?;
        config.windows = hf.windows(config.n_layers, Some(window), |layer| layer >= first)?;
    }
    Ok(())
}
