//! `ModelConfig`: everything that a forward pass must know about a model, whatever file it came
//! from. It holds numbers and choices, never names of a source; GGUF and Hugging Face files of one
//! model give equal values.

mod error;
mod gguf;
mod hf;
mod layout;
mod validate;
mod write;

use serde::{Deserialize, Serialize};

pub use crate::families::Family;
pub use error::ConfigError;
pub use layout::{DownPart, FfnPart, TensorSpec};

pub(crate) use hf::Hf;

/// A model's normalised configuration. Built by [`ModelConfig::from_gguf`] and
/// [`ModelConfig::from_hf`], which validate every number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Which family's rules apply where numbers do not say it.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of transformer blocks.
    pub n_layers: usize,
    /// Rows of the embedding and of the LM head.
    pub vocab_size: usize,
    /// Positions that the model was made for.
    pub context_length: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`. With MLA, equal to `n_heads` (decompressed).
    pub n_kv_heads: usize,
    /// Elements of a query or key head. With MLA: `qk_nope + qk_rope`.
    pub head_dim: usize,
    /// Elements of a value head.
    pub head_dim_v: usize,
    /// Features of a dense FFN; 0 where every layer is a mixture of experts.
    pub intermediate_size: usize,
    /// The norms. Their weights already include any offset (Gemma's +1).
    pub norm: Norm,
    /// Whether attention's and the FFN's outputs are normed before they join the residual.
    pub post_norms: bool,
    /// Whether every query and key head is normed before the rotation.
    pub qk_norm: bool,
    /// Rotary positions; `None` where positions are learned (GPT-2).
    pub rope: Option<Rope>,
    /// For each layer, how many of the latest positions (its own included) it attends to; `None`
    /// for all of them.
    pub windows: Vec<Option<usize>>,
    /// Non-linearity of the FFN.
    pub activation: Activation,
    /// How gate and up rows are stored.
    pub ffn: FfnLayout,
    /// Whether query, key and value rows stand in one matrix.
    pub fused_qkv: bool,
    /// Attention scores become `cap * tanh(score / cap)`.
    pub attn_softcap: Option<f32>,
    /// Logits become `cap * tanh(logit / cap)`.
    pub final_softcap: Option<f32>,
    /// Embeddings are multiplied by this before the first block.
    pub embedding_scale: f32,
    /// Attention scores are multiplied by this, before any soft-cap.
    pub query_scale: f32,
    /// Whether the LM head is the input embedding.
    pub tied: bool,
    /// Which projections have biases.
    pub biases: Biases,
    /// Mixture of experts, where the model is one.
    pub moe: Option<Moe>,
    /// Multi-head latent attention (DeepSeek), where the model uses it.
    pub mla: Option<Mla>,
}

/// The kind of every norm of a model and its epsilon.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Norm {
    /// Root mean square, or mean and variance.
    pub kind: NormKind,
    /// Added to the mean square (or the variance) before the root.
    pub eps: f32,
}

/// What a norm does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps) * weight`.
    Rms,
    /// `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`.
    Layer,
}

/// Rotary position embedding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Which elements of a head form a pair, in the stored (canonical) row order.
    pub layout: RopeLayout,
    /// How many elements of a head are rotated; the first ones, with MLA the last ones.
    pub dim: usize,
    /// Base of the frequencies.
    pub theta: f32,
    /// Base in layers with a window, where it differs (Gemma 3). Those layers are not scaled.
    pub theta_local: Option<f32>,
    /// How the frequencies are stretched for longer contexts.
    pub scaling: RopeScaling,
}

/// Which elements of a head are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeLayout {
    /// Element `i` with element `i + dim / 2`.
    Half,
    /// Element `2i` with element `2i + 1`.
    Interleaved,
}

/// How rotary frequencies are changed for contexts longer than those of pre-training.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Positions are divided by `factor`.
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// Each frequency is divided by its entry of tensor `rope_freqs.weight` (Llama 3).
    Factors,
    /// YaRN: a blend of interpolated and original frequencies between two wavelengths.
    Yarn {
        /// The divisor of interpolated frequencies.
        factor: f32,
        /// Positions of pre-training.
        original_context: usize,
        /// Rotations over the original context from which a frequency is left alone.
        beta_fast: f32,
        /// Rotations over the original context up to which a frequency is interpolated.
        beta_slow: f32,
        /// Multiplies sine and cosine.
        attention_factor: f32,
    },
    /// `LongRoPE` (Phi-3): frequencies are divided by `rope_factors_short.weight` in contexts up to
    /// the original one, and by `rope_factors_long.weight` beyond it.
    LongRope {
        /// Positions of pre-training.
        original_context: usize,
        /// Multiplies sine and cosine.
        attention_factor: f32,
    },
}

/// Non-linearity of the FFN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU by its tanh approximation.
    GeluTanh,
    /// GELU by the error function.
    Gelu,
}

/// How an FFN's first matrices are stored. Experts are always [`FfnLayout::Gated`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FfnLayout {
    /// `act(gate · x) * (up · x)`, two matrices.
    Gated,
    /// The same; `ffn_up` holds the gate rows, then the up rows (Phi-3).
    GatedFused,
    /// `act(up · x)`: the up row is the feature's key (GPT-2).
    Plain,
}

/// Which projections have biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Biases {
    /// Query, key and value.
    pub qkv: bool,
    /// Attention's output projection.
    pub attn_output: bool,
    /// The FFN's up and down projections.
    pub ffn: bool,
    /// The norms.
    pub norm: bool,
}

/// A mixture of experts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Moe {
    /// Routed experts of a layer.
    pub n_experts: usize,
    /// Routed experts that a token visits.
    pub n_experts_used: usize,
    /// Features of one routed expert.
    pub expert_size: usize,
    /// Features of all shared experts together, which every token visits; 0 for none.
    pub shared_size: usize,
    /// The first layers, which have a dense FFN instead.
    pub n_dense_layers: usize,
    /// What turns router logits into scores.
    pub gating: Gating,
    /// Whether the chosen scores are divided by their sum.
    pub normalise: bool,
    /// The chosen scores are multiplied by this, after the division.
    pub scale: f32,
    /// Whether a learned bias is added to the scores for the choice only (DeepSeek-V3).
    pub score_bias: bool,
    /// Experts are chosen only from the best groups, where they are grouped.
    pub groups: Option<ExpertGroups>,
}

/// What turns router logits into scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gating {
    /// Softmax over all experts of the layer.
    Softmax,
    /// Each expert's own sigmoid.
    Sigmoid,
}

/// Group-limited routing. A group's score is its best expert's with [`Gating::Softmax`]
/// (DeepSeek-V2), and the sum of its best two with [`Gating::Sigmoid`] (DeepSeek-V3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertGroups {
    /// Groups of equal size, consecutive experts.
    pub count: usize,
    /// Groups that a token may choose from.
    pub used: usize,
}

/// Multi-head latent attention.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mla {
    /// Width of the compressed query; `None` where the query is projected directly.
    pub q_lora_rank: Option<usize>,
    /// Width of the compressed keys and values (the latent that is cached).
    pub kv_lora_rank: usize,
    /// Elements of a head without position.
    pub qk_nope: usize,
    /// Elements of a head that are rotated; the key's are shared by all heads.
    pub qk_rope: usize,
}

impl ModelConfig {
    /// Whether the FFN multiplies a gated activation with an up projection.
    pub fn gated(&self) -> bool {
        self.ffn != FfnLayout::Plain
    }

    /// What scores are multiplied by in a GGUF file that does not say it, from (hidden size, depth,
    /// heads, head width): the 27B models of Gemma 2 and 3, known by their depth, scale queries by
    /// `hidden / heads`; everything else by the head's width.
    pub(crate) fn query_scale_of(family: Family, dims: (usize, usize, usize, usize)) -> f32 {
        let (hidden_size, n_layers, n_heads, head_dim) = dims;
        let by_hidden = matches!((family, n_layers), (Family::Gemma2, 46) | (Family::Gemma3, 62));
        let n = if by_hidden { hidden_size / n_heads.max(1) } else { head_dim };
        Self::inverse_sqrt(n as f64)
    }

    /// The sine-and-cosine factor and query scale of YaRN as DeepSeek uses it: the model is told
    /// the logarithm's multiplier, and the scale of the scores grows with its square while sine
    /// and cosine stay as they are.
    pub(crate) fn yarn_query_scale(head_dim: usize, log_multiplier: f32, factor: f32) -> f32 {
        let mscale = 1.0 + f64::from(log_multiplier) * f64::from(factor).ln();
        (mscale * mscale / (head_dim as f64).sqrt()) as f32
    }

    /// The factor of sine and cosine where a GGUF file does not say it.
    pub(crate) fn yarn_usual_attention_factor(factor: f32, log_multiplier: Option<f32>) -> f32 {
        match log_multiplier {
            Some(_) => 1.0,
            None => Self::yarn_attention_factor(factor),
        }
    }

    /// YaRN's usual factor of sine and cosine.
    pub(crate) fn yarn_attention_factor(factor: f32) -> f32 {
        if factor > 1.0 { (0.1 * f64::from(factor).ln() + 1.0) as f32 } else { 1.0 }
    }

    /// `1 / sqrt(n)`, rounded once, so that every source gives the same bits.
    pub(crate) fn inverse_sqrt(n: f64) -> f32 {
        (1.0 / n.sqrt()) as f32
    }
}
