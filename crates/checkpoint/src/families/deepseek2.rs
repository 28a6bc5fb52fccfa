//! DeepSeek-V2 and V3: multi-head latent attention, shared and routed experts.

use super::{Family, HfName, Spec, Transform, hf, hf_as};
use crate::config::{
    Activation, ConfigError, ExpertGroups, FfnLayout, Gating, Hf, Mla, ModelConfig, Moe, NormKind,
    RopeLayout, RopeScaling,
};
use crate::names::Role;

pub(super) const DEEPSEEK2: Spec = Spec {
    family: Family::Deepseek2,
    gguf: "deepseek2",
    hf: &["deepseek_v2", "deepseek_v3"],
    norm: NormKind::Rms,
    post_norms: false,
    qk_norm: false,
    // The sources store pairs interleaved already, so nothing is permuted.
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
    hf(Role::AttnQ, "model.layers.{l}.self_attn.q_proj.weight"),
    hf(Role::AttnQA, "model.layers.{l}.self_attn.q_a_proj.weight"),
    hf(Role::AttnQANorm, "model.layers.{l}.self_attn.q_a_layernorm.weight"),
    hf(Role::AttnQB, "model.layers.{l}.self_attn.q_b_proj.weight"),
    hf(Role::AttnKvA, "model.layers.{l}.self_attn.kv_a_proj_with_mqa.weight"),
    hf(Role::AttnKvANorm, "model.layers.{l}.self_attn.kv_a_layernorm.weight"),
    hf_as(Role::AttnKB, "model.layers.{l}.self_attn.kv_b_proj.weight", Transform::MlaKeys),
    hf_as(Role::AttnVB, "model.layers.{l}.self_attn.kv_b_proj.weight", Transform::MlaValues),
    hf(Role::AttnOutput, "model.layers.{l}.self_attn.o_proj.weight"),
    hf(Role::FfnNorm, "model.layers.{l}.post_attention_layernorm.weight"),
    hf(Role::FfnGate, "model.layers.{l}.mlp.gate_proj.weight"),
    hf(Role::FfnUp, "model.layers.{l}.mlp.up_proj.weight"),
    hf(Role::FfnDown, "model.layers.{l}.mlp.down_proj.weight"),
    hf(Role::FfnGateInp, "model.layers.{l}.mlp.gate.weight"),
    hf(Role::ExpProbsBias, "model.layers.{l}.mlp.gate.e_score_correction_bias"),
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
    hf(Role::FfnGateShexp, "model.layers.{l}.mlp.shared_experts.gate_proj.weight"),
    hf(Role::FfnUpShexp, "model.layers.{l}.mlp.shared_experts.up_proj.weight"),
    hf(Role::FfnDownShexp, "model.layers.{l}.mlp.shared_experts.down_proj.weight"),
];

fn from_hf(hf: &Hf<'_>, config: &mut ModelConfig) -> Result<(), ConfigError> {
    let v3 = hf.model_type() == "deepseek_v3";
    // Defaults of `DeepseekV2Config` and `DeepseekV3Config` for keys that are absent.
    config.norm.eps = hf.f32_or("rms_norm_eps", 1e-6)?;
    config.tied = hf.bool_or("tie_word_embeddings", false)?;
    if hf.bool_or("attention_bias", false)? {
        return Err(hf.unsupported("attention_bias", "MLA with biases is not implemented"));
    }
    let mla = Mla {
        q_lora_rank: hf.usize_or_null("q_lora_rank", Some(1536))?,
        kv_lora_rank: hf.usize_or("kv_lora_rank", 512)?,
        qk_nope: hf.usize_or("qk_nope_head_dim", 128)?,
        qk_rope: hf.usize_or("qk_rope_head_dim", 64)?,
    };
    config.head_dim = mla.qk_nope.saturating_add(mla.qk_rope);
    config.head_dim_v = hf.usize_or("v_head_dim", 128)?;
    config.n_kv_heads = config.n_heads;
    config.query_scale = ModelConfig::inverse_sqrt(config.head_dim as f64);
    if let Some(rope) = &mut config.rope {
        rope.dim = mla.qk_rope;
        if let RopeScaling::Yarn { factor, .. } = rope.scaling
            && let Some(all) = hf.rope_f64("mscale_all_dim")?
            && all != 0.0
        {
            let log_multiplier = (0.1 * all) as f32;
            config.query_scale =
                ModelConfig::yarn_query_scale(config.head_dim, log_multiplier, factor);
        }
    }
    config.mla = Some(mla);
    config.moe = moe(hf, config, v3)?;
    if config.moe.as_ref().is_some_and(|m| m.n_dense_layers == 0) {
        config.intermediate_size = 0;
    }
    Ok(())
}

fn moe(hf: &Hf<'_>, config: &ModelConfig, v3: bool) -> Result<Option<Moe>, ConfigError> {
    let Some(n_experts) = hf.usize_any(&["n_routed_experts", "num_local_experts"])? else {
        return Ok(None);
    };
    if hf.usize_or("moe_layer_freq", 1)? != 1 {
        return Err(hf.unsupported("moe_layer_freq", "every layer after the dense ones must mix"));
    }
    let expert_size = hf.usize_or("moe_intermediate_size", if v3 { 2048 } else { 1407 })?;
    let n_shared = hf.usize_or_null("n_shared_experts", Some(if v3 { 1 } else { 2 }))?;
    let gating = match hf.str_opt("scoring_func")? {
        Some("softmax") => Gating::Softmax,
        Some("sigmoid") => Gating::Sigmoid,
        Some(_) => return Err(hf.unsupported("scoring_func", "only softmax and sigmoid are")),
        // Versions of transformers with these models built in do not write the key.
        None if v3 => Gating::Sigmoid,
        None => Gating::Softmax,
    };
    // V2-Lite says `greedy`: its groups mean nothing.
    let grouped = hf.str_opt("topk_method")? != Some("greedy");
    let groups = match (hf.usize_opt("n_group")?, hf.usize_opt("topk_group")?) {
        (Some(count), Some(used)) if grouped && count > 1 => Some(ExpertGroups { count, used }),
        _ => None,
    };
    Ok(Some(Moe {
        n_experts,
        n_experts_used: hf.usize_or("num_experts_per_tok", 8)?,
        expert_size,
        shared_size: expert_size.saturating_mul(n_shared.unwrap_or(0)),
        n_dense_layers: hf
            .usize_or("first_k_dense_replace", if v3 { 3 } else { 0 })?
            .min(config.n_layers),
        gating,
        normalise: hf.bool_or("norm_topk_prob", v3)?,
        scale: hf.f32_or("routed_scaling_factor", if v3 { 2.5 } else { 1.0 })?,
        score_bias: gating == Gating::Sigmoid,
        groups,
    }))
}
