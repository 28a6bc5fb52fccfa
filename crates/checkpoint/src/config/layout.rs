//! Which tensors a configuration implies, of which shapes, and where the FFN's features are in
//! them.

use std::ops::Range;

use super::{FfnLayout, ModelConfig, NormKind, RopeScaling};
use crate::names::{Role, TensorId};

/// A tensor that a configuration implies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Which tensor.
    pub id: TensorId,
    /// Its shape, columns first.
    pub shape: Vec<usize>,
}

/// Consecutive features of a layer whose gate (or up) rows are consecutive rows of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FfnPart {
    /// The tensor's role; its layer is the one that was asked for.
    pub role: Role,
    /// Rows of the tensor (experts flattened), one a feature.
    pub rows: Range<usize>,
    /// Feature id of the first row.
    pub first_feature: usize,
}

/// Consecutive features of a layer whose output directions are the columns of a block of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownPart {
    /// The tensor's role; its layer is the one that was asked for.
    pub role: Role,
    /// Rows of the tensor (experts flattened): `hidden_size` of them, one an output element.
    pub rows: Range<usize>,
    /// Feature id of the first column.
    pub first_feature: usize,
    /// Number of columns, all of which are features.
    pub n_features: usize,
}

impl ModelConfig {
    /// Whether layer `layer` has experts instead of a dense FFN.
    pub fn is_moe_layer(&self, layer: usize) -> bool {
        self.moe.as_ref().is_some_and(|moe| layer >= moe.n_dense_layers)
    }

    /// Features of layer `layer`: hidden units of its FFN, or of all experts, routed ones first,
    /// then shared ones.
    pub fn n_features(&self, layer: usize) -> usize {
        match &self.moe {
            Some(moe) if self.is_moe_layer(layer) => {
                moe.n_experts * moe.expert_size + moe.shared_size
            }
            _ => self.intermediate_size,
        }
    }

    /// Features of one routed expert of layer `layer`; `None` for a dense layer. Feature
    /// `expert * expert_size + j` is feature `j` of that expert.
    pub fn expert_size(&self, layer: usize) -> Option<usize> {
        self.moe.as_ref().filter(|_| self.is_moe_layer(layer)).map(|moe| moe.expert_size)
    }

    /// The rows that a residual is held against to find which features fire: gate rows, or up rows
    /// where there is no gate. In order of feature ids, covering all of them.
    pub fn ffn_keys(&self, layer: usize) -> Vec<FfnPart> {
        match (self.is_moe_layer(layer), self.ffn) {
            (true, _) => self.expert_parts(Role::FfnGateExps, Role::FfnGateShexp),
            (false, FfnLayout::Gated) => self.dense_part(Role::FfnGate, 0),
            (false, FfnLayout::GatedFused | FfnLayout::Plain) => self.dense_part(Role::FfnUp, 0),
        }
    }

    /// The rows whose product with the residual multiplies the activation; empty where the FFN has
    /// no gate.
    pub fn ffn_ups(&self, layer: usize) -> Vec<FfnPart> {
        match (self.is_moe_layer(layer), self.ffn) {
            (true, _) => self.expert_parts(Role::FfnUpExps, Role::FfnUpShexp),
            (false, FfnLayout::Gated) => self.dense_part(Role::FfnUp, 0),
            (false, FfnLayout::GatedFused) => self.dense_part(Role::FfnUp, self.intermediate_size),
            (false, FfnLayout::Plain) => Vec::new(),
        }
    }

    /// Where the output direction of every feature stands: a column of a block of rows, one block
    /// for a dense layer, one for each expert and one for the shared experts otherwise.
    pub fn ffn_downs(&self, layer: usize) -> Vec<DownPart> {
        let hidden = self.hidden_size;
        let Some(moe) = self.moe.as_ref().filter(|_| self.is_moe_layer(layer)) else {
            return vec![DownPart {
                role: Role::FfnDown,
                rows: 0..hidden,
                first_feature: 0,
                n_features: self.intermediate_size,
            }];
        };
        let routed = (0..moe.n_experts).map(|e| DownPart {
            role: Role::FfnDownExps,
            rows: e * hidden..(e + 1) * hidden,
            first_feature: e * moe.expert_size,
            n_features: moe.expert_size,
        });
        let shared = (moe.shared_size > 0).then(|| DownPart {
            role: Role::FfnDownShexp,
            rows: 0..hidden,
            first_feature: moe.n_experts * moe.expert_size,
            n_features: moe.shared_size,
        });
        routed.chain(shared).collect()
    }

    fn dense_part(&self, role: Role, first_row: usize) -> Vec<FfnPart> {
        let rows = first_row..first_row + self.intermediate_size;
        vec![FfnPart { role, rows, first_feature: 0 }]
    }

    fn expert_parts(&self, routed: Role, shared: Role) -> Vec<FfnPart> {
        let Some(moe) = &self.moe else { return Vec::new() };
        let n_routed = moe.n_experts * moe.expert_size;
        let mut parts = vec![FfnPart { role: routed, rows: 0..n_routed, first_feature: 0 }];
        if moe.shared_size > 0 {
            let rows = 0..moe.shared_size;
            parts.push(FfnPart { role: shared, rows, first_feature: n_routed });
        }
        parts
    }

    /// Every tensor that the configuration implies, in the order in which a writer puts them:
    /// embeddings, layers, head. With MLA the newer, split form of `kv_b` is implied.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let mut list = Specs { layer: None, out: Vec::new() };
        let hidden = self.hidden_size;
        list.add(Role::TokenEmbd, &[hidden, self.vocab_size]);
        match &self.rope {
            None => list.add(Role::PositionEmbd, &[hidden, self.context_length]),
            Some(rope) => match rope.scaling {
                RopeScaling::Factors => list.add(Role::RopeFreqs, &[rope.dim / 2]),
                RopeScaling::LongRope { .. } => {
                    list.add(Role::RopeFactorsLong, &[rope.dim / 2]);
                    list.add(Role::RopeFactorsShort, &[rope.dim / 2]);
                }
                RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Yarn { .. } => {}
            },
        }
        for layer in 0..self.n_layers {
            list.layer = Some(layer);
            list.norm(self, Role::AttnNorm, Role::AttnNormBias);
            self.attention(&mut list);
            list.norm(self, Role::FfnNorm, Role::FfnNormBias);
            if self.is_moe_layer(layer) {
                self.experts(&mut list);
            } else {
                self.dense_ffn(&mut list);
            }
            if self.post_norms {
                list.add(Role::PostAttnNorm, &[hidden]);
                list.add(Role::PostFfnNorm, &[hidden]);
            }
        }
        list.layer = None;
        list.norm(self, Role::OutputNorm, Role::OutputNormBias);
        if !self.tied {
            list.add(Role::Output, &[hidden, self.vocab_size]);
        }
        list.out
    }

    fn attention(&self, list: &mut Specs) {
        let hidden = self.hidden_size;
        let (q, k) = (self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim);
        let v = self.n_kv_heads * self.head_dim_v;
        let qkv_biases = self.biases.qkv;
        if let Some(mla) = &self.mla {
            match mla.q_lora_rank {
                Some(rank) => {
                    list.add(Role::AttnQA, &[hidden, rank]);
                    list.add(Role::AttnQANorm, &[rank]);
                    list.add(Role::AttnQB, &[rank, q]);
                }
                None => list.add(Role::AttnQ, &[hidden, q]),
            }
            list.add(Role::AttnKvA, &[hidden, mla.kv_lora_rank + mla.qk_rope]);
            list.add(Role::AttnKvANorm, &[mla.kv_lora_rank]);
            list.add(Role::AttnKB, &[mla.qk_nope, mla.kv_lora_rank, self.n_heads]);
            list.add(Role::AttnVB, &[mla.kv_lora_rank, self.head_dim_v, self.n_heads]);
        } else if self.fused_qkv {
            list.with_bias(Role::AttnQkv, Role::AttnQkvBias, hidden, q + k + v, qkv_biases);
        } else {
            list.with_bias(Role::AttnQ, Role::AttnQBias, hidden, q, qkv_biases);
            list.with_bias(Role::AttnK, Role::AttnKBias, hidden, k, qkv_biases);
            list.with_bias(Role::AttnV, Role::AttnVBias, hidden, v, qkv_biases);
        }
        if self.qk_norm {
            list.add(Role::AttnQNorm, &[self.head_dim]);
            list.add(Role::AttnKNorm, &[self.head_dim]);
        }
        let (role, bias) = (Role::AttnOutput, Role::AttnOutputBias);
        let wide = self.n_heads * self.head_dim_v;
        list.with_bias(role, bias, wide, hidden, self.biases.attn_output);
    }

    fn dense_ffn(&self, list: &mut Specs) {
        let (hidden, ff, bias) = (self.hidden_size, self.intermediate_size, self.biases.ffn);
        if self.ffn == FfnLayout::Gated {
            list.add(Role::FfnGate, &[hidden, ff]);
        }
        let up = if self.ffn == FfnLayout::GatedFused { 2 * ff } else { ff };
        list.with_bias(Role::FfnUp, Role::FfnUpBias, hidden, up, bias);
        list.with_bias(Role::FfnDown, Role::FfnDownBias, ff, hidden, bias);
    }

    fn experts(&self, list: &mut Specs) {
        let Some(moe) = &self.moe else { return };
        let (hidden, size, n) = (self.hidden_size, moe.expert_size, moe.n_experts);
        list.add(Role::FfnGateInp, &[hidden, n]);
        if moe.score_bias {
            list.add(Role::ExpProbsBias, &[n]);
        }
        list.add(Role::FfnGateExps, &[hidden, size, n]);
        list.add(Role::FfnUpExps, &[hidden, size, n]);
        list.add(Role::FfnDownExps, &[size, hidden, n]);
        if moe.shared_size > 0 {
            list.add(Role::FfnGateShexp, &[hidden, moe.shared_size]);
            list.add(Role::FfnUpShexp, &[hidden, moe.shared_size]);
            list.add(Role::FfnDownShexp, &[moe.shared_size, hidden]);
        }
    }
}

/// A list of tensors in the making, and the layer that is being listed.
struct Specs {
    layer: Option<usize>,
    out: Vec<TensorSpec>,
}

impl Specs {
    fn add(&mut self, role: Role, shape: &[usize]) {
        self.out
            .push(TensorSpec { id: TensorId { role, layer: self.layer }, shape: shape.to_vec() });
    }

    fn with_bias(&mut self, role: Role, bias: Role, cols: usize, rows: usize, biased: bool) {
        self.add(role, &[cols, rows]);
        if biased {
            self.add(bias, &[rows]);
        }
    }

    fn norm(&mut self, config: &ModelConfig, weight: Role, bias: Role) {
        self.add(weight, &[config.hidden_size]);
        if config.norm.kind == NormKind::Layer {
            self.add(bias, &[config.hidden_size]);
        }
    }
}
