//! Model families: what each does where numbers do not say it, and how its source names things.
//!
//! One file a family, holding values and names only. Code that acts on them is in `config` and in
//! `checkpoint`, once for all families.

mod deepseek2;
mod gemma;
mod gpt2;
mod llama;
mod phi3;
mod qwen;

use serde::{Deserialize, Serialize};

use crate::config::{Activation, ConfigError, FfnLayout, Hf, ModelConfig, NormKind, RopeLayout};
use crate::names::Role;

/// A model family, by the architecture that a GGUF file names. Llama covers Mistral and Mixtral;
/// DeepSeek-2 covers DeepSeek-V2 and V3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum Family {
    Llama,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Gemma,
    Gemma2,
    Gemma3,
    Phi3,
    Gpt2,
    Deepseek2,
}

/// What a family does whatever its numbers.
pub(crate) struct Spec {
    pub(crate) family: Family,
    /// `general.architecture` of a GGUF file.
    pub(crate) gguf: &'static str,
    /// `model_type` of a `config.json`.
    pub(crate) hf: &'static [&'static str],
    pub(crate) norm: NormKind,
    pub(crate) post_norms: bool,
    pub(crate) qk_norm: bool,
    /// `None` where positions are learned.
    pub(crate) rope: Option<RopeLayout>,
    pub(crate) activation: Activation,
    pub(crate) ffn: FfnLayout,
    pub(crate) fused_qkv: bool,
    /// Whether embeddings are multiplied by the root of the hidden size.
    pub(crate) scaled_embedding: bool,
    /// Of every so many layers the last attends to everything and the others have the window,
    /// where there is one; 1: all layers have it.
    pub(crate) window_period: usize,
    /// Window of a GGUF file that does not say it.
    pub(crate) default_window: Option<usize>,
    /// Base of rotary frequencies in layers with a window, where a source does not say it.
    pub(crate) theta_local: Option<f32>,
    /// Fills in what differs in a `config.json` of this family.
    pub(crate) from_hf: fn(&Hf<'_>, &mut ModelConfig) -> Result<(), ConfigError>,
    /// How the family's safetensors files name and lay out tensors.
    pub(crate) names: &'static [HfName],
    /// Beginnings of Hugging Face names that stand for others in some checkpoints.
    pub(crate) prefixes: &'static [(&'static str, &'static str)],
    /// Hugging Face tensors that carry nothing (masks, inverse frequencies), by the end of name.
    pub(crate) ignored: &'static [&'static str],
}

/// How a canonical tensor comes out of a Hugging Face one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transform {
    /// As it is.
    Same,
    /// Rows of every query head: from rotated halves to interleaved pairs.
    InterleaveQ,
    /// The same for key heads.
    InterleaveK,
    /// One is added to every element (Gemma's norms).
    PlusOne,
    /// Rows become columns (GPT-2's `Conv1D`).
    Transpose,
    /// One Hugging Face tensor per expert; `{e}` in the name is the expert.
    Experts,
    /// The key part of every head of `kv_b_proj`, transposed per head.
    MlaKeys,
    /// The value part of every head of `kv_b_proj`.
    MlaValues,
}

/// A canonical role and the Hugging Face tensor that it is made of.
pub(crate) struct HfName {
    pub(crate) role: Role,
    /// With `{l}` for the layer and `{e}` for the expert.
    pub(crate) name: &'static str,
    pub(crate) transform: Transform,
}

pub(crate) const fn hf(role: Role, name: &'static str) -> HfName {
    HfName { role, name, transform: Transform::Same }
}

pub(crate) const fn hf_as(role: Role, name: &'static str, transform: Transform) -> HfName {
    HfName { role, name, transform }
}

const SPECS: [&Spec; 10] = [
    &llama::LLAMA,
    &qwen::QWEN2,
    &qwen::QWEN3,
    &qwen::QWEN3_MOE,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &phi3::PHI3,
    &gpt2::GPT2,
    &deepseek2::DEEPSEEK2,
];

impl Family {
    /// Every family that larql reads.
    pub fn all() -> impl Iterator<Item = Self> {
        SPECS.iter().map(|s| s.family)
    }

    /// The family's name: its GGUF architecture (`gemma3`).
    pub fn name(self) -> &'static str {
        self.spec().gguf
    }

    /// The family of a GGUF file's `general.architecture`.
    ///
    /// # Errors
    /// [`ConfigError::UnknownFamily`], with those that are known.
    pub fn from_gguf_name(name: &str) -> Result<Self, ConfigError> {
        match SPECS.iter().find(|s| s.gguf == name) {
            Some(spec) => Ok(spec.family),
            None => Err(unknown(name, SPECS.iter().map(|s| s.gguf))),
        }
    }

    /// The family of a `config.json`'s `model_type`.
    ///
    /// # Errors
    /// [`ConfigError::UnknownFamily`], with those that are known.
    pub fn from_hf_name(name: &str) -> Result<Self, ConfigError> {
        match SPECS.iter().find(|s| s.hf.contains(&name)) {
            Some(spec) => Ok(spec.family),
            None => Err(unknown(name, SPECS.iter().flat_map(|s| s.hf.iter().copied()))),
        }
    }

    pub(crate) fn spec(self) -> &'static Spec {
        SPECS[self as usize]
    }
}

fn unknown<'a>(found: &str, known: impl Iterator<Item = &'a str>) -> ConfigError {
    let known = known.collect::<Vec<_>>().join(", ");
    ConfigError::UnknownFamily { found: found.to_owned(), known }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_follow_the_enum_and_names_lead_back() {
        for (i, family) in Family::all().enumerate() {
            assert_eq!(family as usize, i);
            assert_eq!(Family::from_gguf_name(family.name()), Ok(family));
            for name in family.spec().hf {
                assert_eq!(Family::from_hf_name(name), Ok(family));
            }
            let json = serde_json::to_string(&family).unwrap();
            assert_eq!(json, format!("\"{}\"", family.name()));
        }
    }

    #[test]
    fn an_unknown_family_is_refused_with_the_known_ones() {
        let text = Family::from_gguf_name("mamba").unwrap_err().to_string();
        assert!(text.contains("`mamba`") && text.contains("gemma3, phi3, gpt2"), "{text}");
        let text = Family::from_hf_name("mamba").unwrap_err().to_string();
        assert!(text.contains("mixtral") && text.contains("deepseek_v3"), "{text}");
    }
}
