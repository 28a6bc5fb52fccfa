//! `State`: one running text. Its tokens, the keys and values of all layers, and the buffers that
//! the forward pass works in.

use std::fmt;

use larql_compute::{Activations, Dtype, KvBuffer, KvShape};
use larql_vindex::HeapUse;

use crate::profile::Profile;
use crate::rope::{Angles, Rotary};
use crate::{InferenceError, Model};

/// Tokens that one pass takes: enough that every weight that is read is used often.
pub(crate) const BATCH: usize = 512;

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvDtype {
    /// Half precision.
    #[default]
    F16,
    /// 8 bits with a scale for every 32 elements: half of F16's memory; heads must be a multiple
    /// of 32 wide.
    Q8_0,
    /// Single precision.
    F32,
}

impl KvDtype {
    /// The block format.
    pub fn dtype(self) -> Dtype {
        match self {
            Self::F16 => Dtype::F16,
            Self::Q8_0 => Dtype::Q8_0,
            Self::F32 => Dtype::F32,
        }
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dtype().fmt(f)
    }
}

/// What happens when a text outgrows its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overflow {
    /// [`InferenceError::ContextFull`].
    #[default]
    Error,
    /// The older half of the text (not its first token) is forgotten and the rest is run again, so
    /// that the model goes on as if it had never seen the forgotten part.
    Shift,
}

/// How a [`State`] is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheOptions {
    /// Positions that the text may have. Memory is taken as they are written.
    pub context: usize,
    /// How keys and values are stored.
    pub kv: KvDtype,
    /// What happens beyond `context`.
    pub overflow: Overflow,
}

/// One running text.
pub struct State {
    pub(crate) options: CacheOptions,
    pub(crate) tokens: Vec<u32>,
    pub(crate) layers: Vec<KvBuffer>,
    pub(crate) rotary: Option<Rotary>,
    /// One past the last position ever written: ring buffers hold nothing older than this less
    /// their capacity.
    pub(crate) written: usize,
    pub(crate) forgotten: usize,
    pub(crate) hidden: Vec<f32>,
    pub(crate) work: Workspace,
    pub(crate) profile: Profile,
}

/// Buffers of the forward pass, `[n, ..]` each, kept from step to step.
#[derive(Default)]
pub(crate) struct Workspace {
    /// The residual.
    pub(crate) x: Vec<f32>,
    /// The normed residual.
    pub(crate) h: Vec<f32>,
    /// What a sublayer gives, before and after its post-norm.
    pub(crate) out: Vec<f32>,
    pub(crate) normed: Vec<f32>,
    pub(crate) q: Vec<f32>,
    pub(crate) k: Vec<f32>,
    pub(crate) v: Vec<f32>,
    /// Scratch of attention: normed heads, latent queries.
    pub(crate) heads: Vec<f32>,
    pub(crate) attended: Vec<f32>,
    pub(crate) gate: Vec<f32>,
    pub(crate) up: Vec<f32>,
    pub(crate) activations: Activations,
    pub(crate) angles: Angles,
}

impl Model<'_> {
    /// An empty text.
    ///
    /// # Errors
    /// A context of 0, or longer than learned positions reach; heads that the cache's format
    /// cannot store; a size beyond the address space.
    pub fn state(&self, options: CacheOptions) -> Result<State, InferenceError> {
        let config = self.config();
        if options.context == 0 {
            return Err(InferenceError::Option {
                what: "the context",
                found: "0".to_owned(),
                expected: "at least 1",
            });
        }
        if config.rope.is_none() && options.context > config.context_length {
            return Err(InferenceError::ContextBeyondModel {
                asked: options.context,
                context_length: config.context_length,
            });
        }
        let shape = match &config.mla {
            None => KvShape {
                n_kv_heads: config.n_kv_heads,
                head_dim: config.head_dim,
                head_dim_v: config.head_dim_v,
                values_in_keys: false,
            },
            Some(mla) => KvShape {
                n_kv_heads: 1,
                head_dim: mla.kv_lora_rank + mla.qk_rope,
                head_dim_v: mla.kv_lora_rank,
                values_in_keys: true,
            },
        };
        let layers = self.layers.iter().map(|layer| {
            let reach = layer.window.map_or(options.context, |window| window - 1 + BATCH);
            KvBuffer::new(shape, options.kv.dtype(), reach.min(options.context))
        });
        Ok(State {
            options,
            tokens: Vec::new(),
            layers: layers.collect::<Result<_, _>>()?,
            rotary: Rotary::new(self.vindex, options.context)?,
            written: 0,
            forgotten: 0,
            hidden: Vec::new(),
            work: Workspace::default(),
            profile: Profile::default(),
        })
    }
}

impl State {
    /// Number of tokens in the cache.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The tokens in the cache.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Positions that the text may have.
    pub fn context(&self) -> usize {
        self.options.context
    }

    /// Tokens that were forgotten because the text outgrew its context ([`Overflow::Shift`]).
    pub fn forgotten(&self) -> usize {
        self.forgotten
    }

    /// Hidden states after the final norm, `[n, hidden_size]`, of the positions of the last feed
    /// that were kept: the last one, or all after [`Model::feed_all`].
    pub fn hidden(&self) -> &[f32] {
        &self.hidden
    }

    /// Bytes of keys and values that the cache has room for.
    pub fn cache_bytes(&self) -> usize {
        self.layers.iter().map(KvBuffer::bytes).sum()
    }

    /// Bytes on the heap by owner.
    pub fn heap(&self) -> Vec<HeapUse> {
        let work = &self.work;
        let buffers = [
            &work.x,
            &work.h,
            &work.out,
            &work.normed,
            &work.q,
            &work.k,
            &work.v,
            &work.heads,
            &work.attended,
            &work.gate,
            &work.up,
            &self.hidden,
        ];
        let buffers: usize =
            buffers.iter().map(|buffer| buffer.capacity() * size_of::<f32>()).sum();
        let work = buffers + work.activations.memory() + work.angles.memory();
        vec![
            HeapUse { owner: "keys and values", bytes: self.cache_bytes() as u64 },
            HeapUse { owner: "buffers of the forward pass", bytes: work as u64 },
        ]
    }

    /// Where the time of this text went.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Forgets the timings so far.
    pub fn reset_profile(&mut self) {
        self.profile = Profile::default();
    }

    /// Keeps the first `len` tokens and returns how many are left: `len`, or 0 where a windowed
    /// layer no longer holds what the next position would see, and the text must be fed again.
    /// More than there are keeps all.
    pub fn truncate(&mut self, len: usize) -> usize {
        let len = len.min(self.tokens.len());
        let reaches = self.layers.iter().all(|layer| {
            // The next positions see at most `capacity - BATCH + 1` back, and the ring still holds
            // everything from `written - capacity` on.
            let oldest_needed = (len + BATCH).saturating_sub(layer.capacity());
            let oldest_held = self.written.saturating_sub(layer.capacity());
            oldest_needed >= oldest_held || layer.capacity() >= self.written
        });
        let keep = if reaches { len } else { 0 };
        self.tokens.truncate(keep);
        self.hidden.clear();
        keep
    }

    /// Empties the text.
    pub fn reset(&mut self) {
        self.tokens.clear();
        self.hidden.clear();
        self.written = 0;
        self.forgotten = 0;
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State({} of {} tokens)", self.tokens.len(), self.options.context)
    }
}
