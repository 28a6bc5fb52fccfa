//! `Model`: a vindex made ready to run. Every tensor that the forward pass reads is looked up
//! once; matrices stay where they are mapped, norm weights and biases are small and held in f32.

use larql_checkpoint::config::{ModelConfig, NormKind};
use larql_checkpoint::{Role, TensorId};
use larql_compute::{Cpu, Matrix};
use larql_vindex::{LmHead, Vindex};

use crate::InferenceError;
use crate::ffn::{FeatureNorms, FfnMode};

/// A model that can be run: its weights, and the CPU that runs them. Free of state, so that any
/// number of [`State`](crate::State)s may share it.
pub struct Model<'a> {
    pub(crate) vindex: &'a Vindex,
    pub(crate) cpu: &'a Cpu,
    pub(crate) embedding: Matrix<'a>,
    pub(crate) positions: Option<Matrix<'a>>,
    pub(crate) layers: Vec<Layer<'a>>,
    pub(crate) output_norm: Norm,
    pub(crate) head: LmHead<'a>,
    pub(crate) ffn_mode: FfnMode,
    pub(crate) feature_norms: FeatureNorms,
}

/// One block.
pub(crate) struct Layer<'a> {
    pub(crate) attn_norm: Norm,
    pub(crate) attention: AttentionWeights<'a>,
    pub(crate) attn_output: Projection<'a>,
    pub(crate) post_attn_norm: Option<Norm>,
    pub(crate) ffn_norm: Norm,
    pub(crate) ffn: FfnWeights<'a>,
    pub(crate) post_ffn_norm: Option<Norm>,
    pub(crate) window: Option<usize>,
}

/// A norm's weight and bias.
pub(crate) struct Norm {
    kind: NormKind,
    eps: f32,
    weight: Vec<f32>,
    bias: Vec<f32>,
}

/// A matrix and its bias.
pub(crate) struct Projection<'a> {
    pub(crate) matrix: Matrix<'a>,
    pub(crate) bias: Option<Vec<f32>>,
}

/// Where queries, keys and values come from.
pub(crate) enum AttentionWeights<'a> {
    /// A projection each; fused ones are three ranges of rows of one matrix.
    Heads { q: Projection<'a>, k: Projection<'a>, v: Projection<'a>, norms: Option<(Norm, Norm)> },
    /// Multi-head latent attention.
    Latent(Latent<'a>),
}

/// The weights of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434).
pub(crate) struct Latent<'a> {
    pub(crate) query: LatentQuery<'a>,
    pub(crate) kv_a: Matrix<'a>,
    pub(crate) kv_a_norm: Norm,
    pub(crate) up: LatentUp<'a>,
}

/// How the query is made.
pub(crate) enum LatentQuery<'a> {
    /// Projected directly.
    Direct(Matrix<'a>),
    /// Through a compressed query.
    Compressed { a: Matrix<'a>, norm: Norm, b: Matrix<'a> },
}

/// The up-projections of the latent.
pub(crate) enum LatentUp<'a> {
    /// Keys transposed per head, values apart.
    Split { k: Matrix<'a>, v: Matrix<'a> },
    /// One matrix, per head the rows of the keys, then of the values (older files).
    Fused(Matrix<'a>),
}

/// The weights of an FFN.
pub(crate) enum FfnWeights<'a> {
    /// `up` is `None` where there is no gate; then `key` holds the up rows.
    Dense { key: Projection<'a>, up: Option<Matrix<'a>>, down: Projection<'a> },
    /// Experts, stacked, and one expert that every token visits.
    Experts {
        router: Matrix<'a>,
        score_bias: Option<Vec<f32>>,
        routed: Expert<'a>,
        shared: Option<Expert<'a>>,
    },
}

/// Gate, up and down matrices of one expert or of several, stacked.
#[derive(Clone, Copy)]
pub(crate) struct Expert<'a> {
    pub(crate) gate: Matrix<'a>,
    pub(crate) up: Matrix<'a>,
    pub(crate) down: Matrix<'a>,
}

impl Expert<'_> {
    /// Expert `e` of stacked ones with `size` features each.
    pub(crate) fn nth(&self, e: usize, size: usize, hidden_size: usize) -> Self {
        Self {
            gate: self.gate.row_range(e * size..(e + 1) * size),
            up: self.up.row_range(e * size..(e + 1) * size),
            down: self.down.row_range(e * hidden_size..(e + 1) * hidden_size),
        }
    }
}

impl<'a> Model<'a> {
    /// Looks up everything that a forward pass over `vindex` reads.
    ///
    /// # Errors
    /// A level that lacks tensors, or layers that were left out; the message names the command
    /// that adds them.
    pub fn load(vindex: &'a Vindex, cpu: &'a Cpu) -> Result<Self, InferenceError> {
        let config = vindex.config();
        let weights = Weights { vindex, layer: None };
        let layers = (0..config.n_layers)
            .map(|i| weights.of_layer(i).block(i))
            .collect::<Result<Vec<_>, InferenceError>>()?;
        let learned = config.rope.is_none();
        Ok(Self {
            vindex,
            cpu,
            embedding: weights.matrix(Role::TokenEmbd)?,
            positions: learned.then(|| weights.matrix(Role::PositionEmbd)).transpose()?,
            layers,
            output_norm: weights.norm(Role::OutputNorm, Role::OutputNormBias)?,
            head: vindex.lm_head()?,
            ffn_mode: FfnMode::Dense,
            feature_norms: FeatureNorms::default(),
        })
    }

    /// The model's configuration.
    pub fn config(&self) -> &'a ModelConfig {
        self.vindex.config()
    }

    /// The vindex that it runs.
    pub fn vindex(&self) -> &'a Vindex {
        self.vindex
    }

    /// The CPU that runs it.
    pub fn cpu(&self) -> &'a Cpu {
        self.cpu
    }

    /// The LM head.
    pub fn head(&self) -> &LmHead<'a> {
        &self.head
    }

    /// Bytes of block weights that one token reads, LM head and cache not counted: all matrices,
    /// but of experts only those that a token visits.
    pub fn bytes_per_token(&self) -> u64 {
        let mut total = 0;
        let moe = self.config().moe.as_ref();
        for layer in &self.layers {
            let mut add = |m: &Matrix<'_>| total += m.bytes().len() as u64;
            match &layer.attention {
                AttentionWeights::Heads { q, k, v, .. } => {
                    [q, k, v].iter().for_each(|p| add(&p.matrix));
                }
                AttentionWeights::Latent(latent) => {
                    match &latent.query {
                        LatentQuery::Direct(q) => add(q),
                        LatentQuery::Compressed { a, b, .. } => {
                            [a, b].into_iter().for_each(&mut add);
                        }
                    }
                    add(&latent.kv_a);
                    match &latent.up {
                        LatentUp::Split { k, v } => [k, v].into_iter().for_each(&mut add),
                        LatentUp::Fused(both) => add(both),
                    }
                }
            }
            add(&layer.attn_output.matrix);
            match &layer.ffn {
                FfnWeights::Dense { key, up, down } => {
                    add(&key.matrix);
                    add(&down.matrix);
                    up.iter().for_each(&mut add);
                }
                FfnWeights::Experts { router, routed, shared, .. } => {
                    add(router);
                    if let Some(shared) = shared {
                        [shared.gate, shared.up, shared.down].iter().for_each(&mut add);
                    }
                    let all = [routed.gate, routed.up, routed.down];
                    let all: u64 = all.iter().map(|m| m.bytes().len() as u64).sum();
                    let (used, of) = moe.map_or((1, 1), |m| (m.n_experts_used, m.n_experts));
                    total += all * used as u64 / of.max(1) as u64;
                }
            }
        }
        total
    }
}

impl Norm {
    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        size_of_val(&self.weight[..]) + size_of_val(&self.bias[..])
    }

    /// The norm of each row of `x` into `out`, both `[n, width]`.
    pub(crate) fn apply(
        &self,
        cpu: &Cpu,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), InferenceError> {
        match self.kind {
            NormKind::Rms => cpu.rms_norm(x, &self.weight, self.eps, out)?,
            NormKind::Layer => cpu.layer_norm(x, &self.weight, &self.bias, self.eps, out)?,
        }
        Ok(())
    }

    /// The factor by which one row `x` is scaled before the weights: what makes the norm linear
    /// once it is held fast.
    pub(crate) fn scale(&self, x: &[f32]) -> f64 {
        let n = x.len() as f64;
        let mean = match self.kind {
            NormKind::Rms => 0.0,
            NormKind::Layer => x.iter().map(|&v| f64::from(v)).sum::<f64>() / n,
        };
        let square = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
        1.0 / (square + f64::from(self.eps)).sqrt()
    }

    /// The vector whose dot product with any `y` is that of `direction` with the norm of `y`, its
    /// scale held at `scale` and its bias left out, `[width]`.
    pub(crate) fn pull_back(&self, direction: &[f32], scale: f64) -> Vec<f32> {
        let weighted = direction.iter().zip(&self.weight);
        let mut back: Vec<f64> =
            weighted.map(|(&d, &w)| f64::from(d) * f64::from(w) * scale).collect();
        if self.kind == NormKind::Layer {
            let mean = back.iter().sum::<f64>() / back.len() as f64;
            back.iter_mut().for_each(|v| *v -= mean);
        }
        back.into_iter().map(|v| v as f32).collect()
    }

    /// What the norm adds whatever comes, `[width]`; empty where it adds nothing.
    pub(crate) fn bias(&self) -> &[f32] {
        &self.bias
    }
}

impl Projection<'_> {
    /// Adds the bias to each row of `y`, `[n, rows]`.
    pub(crate) fn add_bias(&self, y: &mut [f32]) {
        let Some(bias) = &self.bias else { return };
        for y in y.chunks_exact_mut(bias.len()) {
            y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        }
    }
}

/// Looks tensors up, of one layer or of the model.
#[derive(Clone, Copy)]
struct Weights<'a> {
    vindex: &'a Vindex,
    layer: Option<usize>,
}

impl<'a> Weights<'a> {
    fn of_layer(self, layer: usize) -> Self {
        Self { layer: Some(layer), ..self }
    }

    fn id(&self, role: Role) -> TensorId {
        TensorId { role, layer: self.layer }
    }

    fn matrix(&self, role: Role) -> Result<Matrix<'a>, InferenceError> {
        Ok(self.vindex.require(self.id(role))?)
    }

    fn vector(&self, role: Role) -> Result<Vec<f32>, InferenceError> {
        Ok(self.vindex.vector(self.id(role))?)
    }

    fn norm(&self, weight: Role, bias: Role) -> Result<Norm, InferenceError> {
        let norm = self.vindex.config().norm;
        let weight = self.vector(weight)?;
        let bias = match norm.kind {
            NormKind::Rms => Vec::new(),
            NormKind::Layer => self.vector(bias)?,
        };
        Ok(Norm { kind: norm.kind, eps: norm.eps, weight, bias })
    }

    /// A norm that is an RMS norm in every family.
    fn rms(&self, role: Role) -> Result<Norm, InferenceError> {
        let (eps, weight) = (self.vindex.config().norm.eps, self.vector(role)?);
        Ok(Norm { kind: NormKind::Rms, eps, weight, bias: Vec::new() })
    }

    fn projection(
        &self,
        role: Role,
        bias: Role,
        biased: bool,
    ) -> Result<Projection<'a>, InferenceError> {
        let bias = biased.then(|| self.vector(bias)).transpose()?;
        Ok(Projection { matrix: self.matrix(role)?, bias })
    }

    fn block(&self, index: usize) -> Result<Layer<'a>, InferenceError> {
        let config = self.vindex.config();
        let post = |role| config.post_norms.then(|| self.rms(role)).transpose();
        Ok(Layer {
            attn_norm: self.norm(Role::AttnNorm, Role::AttnNormBias)?,
            attention: self.attention(config)?,
            attn_output: self.projection(
                Role::AttnOutput,
                Role::AttnOutputBias,
                config.biases.attn_output,
            )?,
            post_attn_norm: post(Role::PostAttnNorm)?,
            ffn_norm: self.norm(Role::FfnNorm, Role::FfnNormBias)?,
            ffn: if config.is_moe_layer(index) { self.experts(config)? } else { self.ffn(config)? },
            post_ffn_norm: post(Role::PostFfnNorm)?,
            window: config.windows[index],
        })
    }

    fn attention(&self, config: &ModelConfig) -> Result<AttentionWeights<'a>, InferenceError> {
        if config.mla.is_some() {
            let up = match self.vindex.matrix(self.id(Role::AttnKvB)) {
                Some(both) => LatentUp::Fused(both),
                None => {
                    LatentUp::Split { k: self.matrix(Role::AttnKB)?, v: self.matrix(Role::AttnVB)? }
                }
            };
            let compressed = config.mla.as_ref().is_some_and(|mla| mla.q_lora_rank.is_some());
            let query = if compressed {
                LatentQuery::Compressed {
                    a: self.matrix(Role::AttnQA)?,
                    norm: self.rms(Role::AttnQANorm)?,
                    b: self.matrix(Role::AttnQB)?,
                }
            } else {
                LatentQuery::Direct(self.matrix(Role::AttnQ)?)
            };
            let kv_a = self.matrix(Role::AttnKvA)?;
            let kv_a_norm = self.rms(Role::AttnKvANorm)?;
            return Ok(AttentionWeights::Latent(Latent { query, kv_a, kv_a_norm, up }));
        }
        let norms = config.qk_norm.then(|| -> Result<_, InferenceError> {
            Ok((self.rms(Role::AttnQNorm)?, self.rms(Role::AttnKNorm)?))
        });
        let norms = norms.transpose()?;
        let biased = config.biases.qkv;
        if !config.fused_qkv {
            return Ok(AttentionWeights::Heads {
                q: self.projection(Role::AttnQ, Role::AttnQBias, biased)?,
                k: self.projection(Role::AttnK, Role::AttnKBias, biased)?,
                v: self.projection(Role::AttnV, Role::AttnVBias, biased)?,
                norms,
            });
        }
        let all = self.projection(Role::AttnQkv, Role::AttnQkvBias, biased)?;
        let (q, k) = (config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim);
        let part = |rows: std::ops::Range<usize>| Projection {
            bias: all.bias.as_ref().map(|bias| bias[rows.clone()].to_vec()),
            matrix: all.matrix.row_range(rows),
        };
        let rows = all.matrix.rows();
        Ok(AttentionWeights::Heads {
            q: part(0..q),
            k: part(q..q + k),
            v: part(q + k..rows),
            norms,
        })
    }

    fn ffn(&self, config: &ModelConfig) -> Result<FfnWeights<'a>, InferenceError> {
        use larql_checkpoint::config::FfnLayout;
        let biased = config.biases.ffn;
        let down = self.projection(Role::FfnDown, Role::FfnDownBias, biased)?;
        let up = self.projection(Role::FfnUp, Role::FfnUpBias, biased)?;
        let size = config.intermediate_size;
        Ok(match config.ffn {
            FfnLayout::Gated => {
                let key = Projection { matrix: self.matrix(Role::FfnGate)?, bias: None };
                FfnWeights::Dense { key, up: Some(up.matrix), down }
            }
            FfnLayout::GatedFused => FfnWeights::Dense {
                key: Projection { matrix: up.matrix.row_range(0..size), bias: None },
                up: Some(up.matrix.row_range(size..2 * size)),
                down,
            },
            FfnLayout::Plain => FfnWeights::Dense { key: up, up: None, down },
        })
    }

    fn experts(&self, config: &ModelConfig) -> Result<FfnWeights<'a>, InferenceError> {
        let expert = |gate, up, down| -> Result<Expert<'a>, InferenceError> {
            let (gate, up) = (self.matrix(gate)?, self.matrix(up)?);
            Ok(Expert { gate, up, down: self.matrix(down)? })
        };
        let moe = config.moe.as_ref();
        let shared = moe.is_some_and(|moe| moe.shared_size > 0);
        let biased = moe.is_some_and(|moe| moe.score_bias);
        Ok(FfnWeights::Experts {
            router: self.matrix(Role::FfnGateInp)?,
            score_bias: biased.then(|| self.vector(Role::ExpProbsBias)).transpose()?,
            routed: expert(Role::FfnGateExps, Role::FfnUpExps, Role::FfnDownExps)?,
            shared: shared
                .then(|| expert(Role::FfnGateShexp, Role::FfnUpShexp, Role::FfnDownShexp))
                .transpose()?,
        })
    }
}
