//! Llama 2 and 3, Mistral, Mixtral, and what is made like them (SmolLM2, TinyLlama).

use super::{Family, HfName, Spec, Transform, hf, hf_as};
use crate::config::{
    Activation, ConfigError, FfnLayout, Gating, Hf, ModelConfig, Moe, NormKind, RopeLayout,
};
use crate::names::Role;

pub(super) const LLAMA: Spec = Spec {
    family: Family::Llama,
    gguf: "llama",
    hf: &["llama", "mistral", "mixtral"],
    norm: NormKind::Rms,
    post_norms: false,
    qk_norm: false,
    rope: Some(RopeLayout::Interleaved),
    activation: Activation::Silu,
    ffn: FfnLayout::Gated,
    fused_qkv: false,
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
    hf_as(Role::AttnQ, "model.layers.{l}.self_attn.q_proj.weight", Transform::InterleaveQ),
    hf_as(Role::AttnQBias, "model.layers.{l}.self_attn.q_proj.bias", Transform::InterleaveQ),
    hf_as(Role::AttnK, "model.layers.{l}.self_attn.k_proj.weight", Transform::InterleaveK),
    hf_as(Role::AttnKBias, "model.layers.{l}.self_attn.k_proj.bias", Transform::InterleaveK),
    hf(Role::AttnV, "model.layers.{l}.self_attn.v_proj.weight"),
    hf(Role::AttnVBias, "model.layers.{l}.self_attn.v_proj.bias"),
    hf(Role::AttnOutput, "model.layers.{l}.self_attn.o_proj.weight"),
    hf(Role::AttnOutputBias, "model.layers.{l}.self_attn.o_proj.bias"),
    hf(Role::FfnNorm, "model.layers.{l}.post_attention_layernorm.weight"),
    hf(Role::FfnGate, "model.layers.{l}.mlp.gate_proj.weight"),
    hf(Role::FfnUp, "model.layers.{l}.mlp.up_proj.weight"),
    hf(Role::FfnDown, "model.layers.{l}.mlp.down_proj.weight"),
    hf(Role::FfnGateInp, "model.layers.{l}.block_sparse_moe.gate.weight"),
    hf_as(
        Role::FfnGateExps,
        "model.layers.{l}.block_sparse_moe.experts.{e}.w1.weight",
        Transform::Experts,
    ),
    hf_as(
        Role::FfnUpExps,
        "model.layers.{l}.block_sparse_moe.experts.{e}.w3.weight",
        Transform::Experts,
    ),
    hf_as(
        Role::FfnDownExps,
        "model.layers.{l}.block_sparse_moe.experts.{e}.w2.weight",
        Transform::Experts,
    ),
];

fn from_hf(hf: &Hf<'_>, config: &mut ModelConfig) -> Result<(), ConfigError> {
    // Defaults of `LlamaConfig`, `MistralConfig` and `MixtralConfig` for keys that are absent.
    let mixtral = hf.model_type() == "mixtral";
    config.norm.eps = hf.f32_or("rms_norm_eps", if mixtral { 1e-5 } else { 1e-6 })?;
    config.tied = hf.bool_or("tie_word_embeddings", false)?;
    config.biases.qkv = hf.bool_or("attention_bias", false)?;
    config.biases.attn_output = config.biases.qkv;
    if hf.bool_or("mlp_bias", false)? {
        return Err(hf.unsupported("mlp_bias", "biases in a gated FFN are not implemented"));
    }
    if hf.model_type() != "llama" {
        config.windows = vec![hf.usize_opt("sliding_window")?; config.n_layers];
    }
    if mixtral {
        config.moe = Some(Moe {
            n_experts: hf.usize_or("num_local_experts", 8)?,
            n_experts_used: hf.usize_or("num_experts_per_tok", 2)?,
            expert_size: config.intermediate_size,
            shared_size: 0,
            n_dense_layers: 0,
            gating: Gating::Softmax,
            normalise: true,
            scale: 1.0,
            score_bias: false,
            groups: None,
        });
        config.intermediate_size = 0;
    }
    Ok(())
}
