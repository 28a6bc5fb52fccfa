//! Canonical tensor names: GGUF's, as llama.cpp spells them, for every family and source.
//!
//! A tensor's identity in larql is a [`TensorId`] (what it is for, and in which layer); its name is
//! only how that is written down. Biases are roles of their own, so that a name is one table row.

use serde::{Deserialize, Serialize};

/// What a tensor is for. The shapes are in `ne` order (columns first), as GGUF writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Input embedding, `[hidden, vocab]`.
    TokenEmbd,
    /// Learned positions (GPT-2), `[hidden, context]`.
    PositionEmbd,
    /// Weight of the last norm, `[hidden]`.
    OutputNorm,
    /// Bias of the last norm (LayerNorm families).
    OutputNormBias,
    /// LM head, `[hidden, vocab]`; absent where it is tied to the input embedding.
    Output,
    /// Divisors of the rotary frequencies (Llama 3 scaling), `[rope_dim / 2]`.
    RopeFreqs,
    /// `LongRoPE` divisors for contexts beyond the original one, `[rope_dim / 2]`.
    RopeFactorsLong,
    /// `LongRoPE` divisors for contexts within the original one, `[rope_dim / 2]`.
    RopeFactorsShort,
    /// Norm before attention, `[hidden]`.
    AttnNorm,
    /// Its bias.
    AttnNormBias,
    /// Query projection, `[hidden, n_heads * head_dim]`.
    AttnQ,
    /// Its bias.
    AttnQBias,
    /// Key projection, `[hidden, n_kv_heads * head_dim]`.
    AttnK,
    /// Its bias.
    AttnKBias,
    /// Value projection, `[hidden, n_kv_heads * head_dim_v]`.
    AttnV,
    /// Its bias.
    AttnVBias,
    /// Query, key and value rows in one matrix (GPT-2, Phi-3).
    AttnQkv,
    /// Its bias.
    AttnQkvBias,
    /// Output projection, `[n_heads * head_dim_v, hidden]`.
    AttnOutput,
    /// Its bias.
    AttnOutputBias,
    /// Norm of every query head, `[head_dim]`.
    AttnQNorm,
    /// Norm of every key head, `[head_dim]`.
    AttnKNorm,
    /// Norm of attention's output before it joins the residual (Gemma 2 and 3), `[hidden]`.
    PostAttnNorm,
    /// MLA: down-projection of the query, `[hidden, q_lora_rank]`.
    AttnQA,
    /// MLA: norm of the compressed query, `[q_lora_rank]`.
    AttnQANorm,
    /// MLA: up-projection of the query, `[q_lora_rank, n_heads * (qk_nope + qk_rope)]`.
    AttnQB,
    /// MLA: down-projection to the latent and the shared rotary key,
    /// `[hidden, kv_lora_rank + qk_rope]`.
    AttnKvA,
    /// MLA: norm of the latent, `[kv_lora_rank]`.
    AttnKvANorm,
    /// MLA, older files: `[kv_lora_rank, n_heads * (qk_nope + v_head_dim)]`.
    AttnKvB,
    /// MLA: the key half of `AttnKvB`, transposed per head, `[qk_nope, kv_lora_rank, n_heads]`.
    AttnKB,
    /// MLA: the value half of `AttnKvB`, `[kv_lora_rank, v_head_dim, n_heads]`.
    AttnVB,
    /// Norm before the FFN, `[hidden]`.
    FfnNorm,
    /// Its bias.
    FfnNormBias,
    /// Norm of the FFN's output before it joins the residual (Gemma 2 and 3), `[hidden]`.
    PostFfnNorm,
    /// Gate rows, `[hidden, intermediate]`.
    FfnGate,
    /// Up rows, `[hidden, intermediate]`; Phi-3: gate rows, then up rows.
    FfnUp,
    /// Its bias.
    FfnUpBias,
    /// Down projection, `[intermediate, hidden]`: a feature is a column.
    FfnDown,
    /// Its bias.
    FfnDownBias,
    /// Router, `[hidden, n_experts]`.
    FfnGateInp,
    /// Routed experts' gate rows, `[hidden, expert_size, n_experts]`.
    FfnGateExps,
    /// Routed experts' up rows, `[hidden, expert_size, n_experts]`.
    FfnUpExps,
    /// Routed experts' down projections, `[expert_size, hidden, n_experts]`.
    FfnDownExps,
    /// Shared experts' gate rows, `[hidden, shared_size]`.
    FfnGateShexp,
    /// Shared experts' up rows, `[hidden, shared_size]`.
    FfnUpShexp,
    /// Shared experts' down projection, `[shared_size, hidden]`.
    FfnDownShexp,
    /// Bias added to router scores when experts are chosen (DeepSeek-V3), `[n_experts]`.
    ExpProbsBias,
}

/// One line of the table that every name is read from.
struct Entry {
    role: Role,
    /// The name, or what follows `blk.N.`.
    stem: &'static str,
    per_layer: bool,
}

const fn global(role: Role, stem: &'static str) -> Entry {
    Entry { role, stem, per_layer: false }
}

const fn layer(role: Role, stem: &'static str) -> Entry {
    Entry { role, stem, per_layer: true }
}

/// In the order of the enum (a test says so), so that looking a role up is an index.
const TABLE: [Entry; 47] = [
    global(Role::TokenEmbd, "token_embd.weight"),
    global(Role::PositionEmbd, "position_embd.weight"),
    global(Role::OutputNorm, "output_norm.weight"),
    global(Role::OutputNormBias, "output_norm.bias"),
    global(Role::Output, "output.weight"),
    global(Role::RopeFreqs, "rope_freqs.weight"),
    global(Role::RopeFactorsLong, "rope_factors_long.weight"),
    global(Role::RopeFactorsShort, "rope_factors_short.weight"),
    layer(Role::AttnNorm, "attn_norm.weight"),
    layer(Role::AttnNormBias, "attn_norm.bias"),
    layer(Role::AttnQ, "attn_q.weight"),
    layer(Role::AttnQBias, "attn_q.bias"),
    layer(Role::AttnK, "attn_k.weight"),
    layer(Role::AttnKBias, "attn_k.bias"),
    layer(Role::AttnV, "attn_v.weight"),
    layer(Role::AttnVBias, "attn_v.bias"),
    layer(Role::AttnQkv, "attn_qkv.weight"),
    layer(Role::AttnQkvBias, "attn_qkv.bias"),
    layer(Role::AttnOutput, "attn_output.weight"),
    layer(Role::AttnOutputBias, "attn_output.bias"),
    layer(Role::AttnQNorm, "attn_q_norm.weight"),
    layer(Role::AttnKNorm, "attn_k_norm.weight"),
    layer(Role::PostAttnNorm, "post_attention_norm.weight"),
    layer(Role::AttnQA, "attn_q_a.weight"),
    layer(Role::AttnQANorm, "attn_q_a_norm.weight"),
    layer(Role::AttnQB, "attn_q_b.weight"),
    layer(Role::AttnKvA, "attn_kv_a_mqa.weight"),
    layer(Role::AttnKvANorm, "attn_kv_a_norm.weight"),
    layer(Role::AttnKvB, "attn_kv_b.weight"),
    layer(Role::AttnKB, "attn_k_b.weight"),
    layer(Role::AttnVB, "attn_v_b.weight"),
    layer(Role::FfnNorm, "ffn_norm.weight"),
    layer(Role::FfnNormBias, "ffn_norm.bias"),
    layer(Role::PostFfnNorm, "post_ffw_norm.weight"),
    layer(Role::FfnGate, "ffn_gate.weight"),
    layer(Role::FfnUp, "ffn_up.weight"),
    layer(Role::FfnUpBias, "ffn_up.bias"),
    layer(Role::FfnDown, "ffn_down.weight"),
    layer(Role::FfnDownBias, "ffn_down.bias"),
    layer(Role::FfnGateInp, "ffn_gate_inp.weight"),
    layer(Role::FfnGateExps, "ffn_gate_exps.weight"),
    layer(Role::FfnUpExps, "ffn_up_exps.weight"),
    layer(Role::FfnDownExps, "ffn_down_exps.weight"),
    layer(Role::FfnGateShexp, "ffn_gate_shexp.weight"),
    layer(Role::FfnUpShexp, "ffn_up_shexp.weight"),
    layer(Role::FfnDownShexp, "ffn_down_shexp.weight"),
    layer(Role::ExpProbsBias, "exp_probs_b.bias"),
];

impl Role {
    /// Every role, in the order of the enum.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|e| e.role)
    }

    fn entry(self) -> &'static Entry {
        &TABLE[self as usize]
    }

    /// Whether there is one such tensor in every layer, or one in the model.
    pub fn per_layer(self) -> bool {
        self.entry().per_layer
    }

    /// The canonical name without `blk.N.` (`ffn_gate.weight`).
    pub fn stem(self) -> &'static str {
        self.entry().stem
    }

    /// Whether the tensor is kept in F32 whatever the model's dtype, as llama.cpp's tools keep it:
    /// norms, biases, rotary divisors, the router and learned positions. They are small, and the
    /// model is sensitive to them.
    pub fn always_f32(self) -> bool {
        let stem = self.stem();
        stem.ends_with("_norm.weight")
            || stem.ends_with(".bias")
            || stem.starts_with("rope_")
            || matches!(self, Self::FfnGateInp | Self::PositionEmbd)
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.stem())
    }
}

/// Which tensor: a role and, for roles that stand in every layer, the layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TensorId {
    /// What the tensor is for.
    pub role: Role,
    /// The layer, counted from 0; `None` for tensors of the whole model.
    pub layer: Option<usize>,
}

impl TensorId {
    /// A tensor of the whole model.
    pub const fn global(role: Role) -> Self {
        Self { role, layer: None }
    }

    /// A tensor of layer `layer`.
    pub const fn layer(role: Role, layer: usize) -> Self {
        Self { role, layer: Some(layer) }
    }

    /// The tensor of that canonical name; `None` for a name that larql does not know.
    pub fn from_name(name: &str) -> Option<Self> {
        let Some(rest) = name.strip_prefix("blk.") else {
            return find(name, false).map(Self::global);
        };
        let (number, stem) = rest.split_once('.')?;
        // `+3`, `03` and the like would parse as well, but are not how anybody writes a layer.
        let layer: usize = number.parse().ok()?;
        if layer.to_string() != number {
            return None;
        }
        find(stem, true).map(|role| Self::layer(role, layer))
    }
}

fn find(stem: &str, per_layer: bool) -> Option<Role> {
    TABLE.iter().find(|e| e.per_layer == per_layer && e.stem == stem).map(|e| e.role)
}

/// The canonical name (`blk.3.ffn_gate.weight`).
impl std::fmt::Display for TensorId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "blk.{layer}.{}", self.role.stem()),
            None => f.write_str(self.role.stem()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_follows_the_enum_and_names_round_trip() {
        for (i, entry) in TABLE.iter().enumerate() {
            assert_eq!(entry.role as usize, i, "{}", entry.stem);
            let id = TensorId { role: entry.role, layer: entry.per_layer.then_some(17) };
            assert_eq!(TensorId::from_name(&id.to_string()), Some(id));
        }
        assert_eq!(Role::ExpProbsBias as usize + 1, TABLE.len());
    }

    #[test]
    fn other_names_are_unknown() {
        for name in [
            "",
            "blk.",
            "blk.x.ffn_up.weight",
            "blk.+1.ffn_up.weight",
            "blk.01.ffn_up.weight",
            "blk.1.output.weight",
            "ffn_up.weight",
            "blk.99999999999999999999999.ffn_up.weight",
            "output.weight ",
        ] {
            assert_eq!(TensorId::from_name(name), None, "{name:?}");
        }
        let id = TensorId::from_name("blk.3.ffn_gate.weight").unwrap();
        assert_eq!(id, TensorId::layer(Role::FfnGate, 3));
    }
}
