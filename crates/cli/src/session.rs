//! An opened vindex with the kernels that search it: what the searching commands share.

use std::path::Path;

use larql_checkpoint::tokenizer::{EncodeOptions, Tokenizer};
use larql_compute::Cpu;
use larql_vindex::labels::{FeatureLabels, LabelOptions, Labels, LazyLabels};
use larql_vindex::search::{Hit, Search};
use larql_vindex::{Level, Vindex};
use serde::Serialize;

use crate::context::Context;
use crate::error::{Diagnostic, Failure};
use crate::render::{Column, Table, units};

/// A vindex, opened, and a CPU.
pub(crate) struct Session<'a> {
    pub(crate) vindex: Vindex,
    pub(crate) cpu: Cpu,
    context: &'a Context,
}

/// A token, by id and text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct TokenRow {
    pub(crate) id: u32,
    pub(crate) text: String,
}

/// A feature's label: the tokens that it writes, and those that it writes against.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct LabelRow {
    pub(crate) promotes: Vec<LabelToken>,
    pub(crate) suppresses: Vec<LabelToken>,
}

/// A token of a label.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct LabelToken {
    pub(crate) id: u32,
    pub(crate) text: String,
    pub(crate) score: f32,
}

/// A feature that a search found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct HitRow {
    pub(crate) layer: usize,
    pub(crate) feature: usize,
    pub(crate) score: f32,
    /// `null` where the vindex has no labels.
    pub(crate) label: Option<LabelRow>,
}

impl<'a> Session<'a> {
    pub(crate) fn open(path: &Path, context: &'a Context) -> Result<Session<'a>, Failure> {
        let vindex = Vindex::open(path)?;
        Ok(Session { vindex, cpu: context.cpu()?, context })
    }

    pub(crate) fn search(&self) -> Search<'_> {
        Search::new(&self.vindex, &self.cpu)
    }

    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer, Failure> {
        Ok(self.vindex.tokenizer()?)
    }

    /// The tokens of a word as it stands inside a sentence, after a blank; where the word alone
    /// takes fewer tokens (as scripts without blanks do), those.
    pub(crate) fn word(&self, word: &str) -> Result<Vec<TokenRow>, Failure> {
        if word.trim().is_empty() {
            return Err(Diagnostic::new("a word is needed, and this one is empty").into());
        }
        let within = self.encode(&format!(" {}", word.trim_start()))?;
        let alone = self.encode(word)?;
        let ids = if alone.len() < within.len() { alone } else { within };
        self.token_rows(&ids)
    }

    /// The tokens of a text, without any that the model wants added.
    pub(crate) fn text(&self, text: &str) -> Result<Vec<TokenRow>, Failure> {
        if text.is_empty() {
            return Err(Diagnostic::new("a text is needed, and this one is empty").into());
        }
        self.token_rows(&self.encode(text)?)
    }

    /// The hits with the labels of their features.
    pub(crate) fn label(&self, hits: Vec<Hit>) -> Result<Vec<HitRow>, Failure> {
        let ids: Vec<_> = hits.iter().map(|hit| (hit.layer, hit.feature)).collect();
        let row = |(hit, label): (Hit, Option<LabelRow>)| HitRow {
            layer: hit.layer,
            feature: hit.feature,
            score: hit.score,
            label,
        };
        Ok(hits.into_iter().zip(self.labels_of(&ids)?).map(row).collect())
    }

    /// The labels of some `(layer, feature)`. Those that are missing are computed and kept, where
    /// the vindex has a label file that can be filled; without one there are none.
    pub(crate) fn labels_of(
        &self,
        features: &[(usize, usize)],
    ) -> Result<Vec<Option<LabelRow>>, Failure> {
        let Some(labels) = Labels::open(&self.vindex)? else {
            return Ok(vec![None; features.len()]);
        };
        let tokenizer = self.tokenizer()?;
        let row = |label: FeatureLabels<'_>| LabelRow {
            promotes: label.promoted().map(|entry| label_token(tokenizer, entry)).collect(),
            suppresses: label.suppressed().map(|entry| label_token(tokenizer, entry)).collect(),
        };
        if self.vindex.level() == Level::Browse {
            // Nothing can be computed without the down projections; what is there is shown.
            let get = |&(layer, feature): &(usize, usize)| Ok(labels.get(layer, feature)?.map(row));
            return features.iter().map(get).collect();
        }
        let lazy = LazyLabels::open(&self.vindex, &self.cpu, &LabelOptions::default())?;
        let rows = lazy.get(features)?.into_iter().map(|label| Some(row(label))).collect();
        if let Some(why) = lazy.not_kept() {
            self.context.remark(&format!("labels are shown but not kept: {why}"));
        }
        Ok(rows)
    }

    /// The label of one feature.
    pub(crate) fn label_of(
        &self,
        layer: usize,
        feature: usize,
    ) -> Result<Option<LabelRow>, Failure> {
        Ok(self.labels_of(&[(layer, feature)])?.pop().flatten())
    }

    /// A token by its id.
    pub(crate) fn token(&self, id: u32) -> Result<TokenRow, Failure> {
        Ok(TokenRow { id, text: self.tokenizer()?.token_text(id) })
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, Failure> {
        Ok(self.tokenizer()?.encode(text, EncodeOptions::FRAGMENT)?)
    }

    fn token_rows(&self, ids: &[u32]) -> Result<Vec<TokenRow>, Failure> {
        let tokenizer = self.tokenizer()?;
        Ok(ids.iter().map(|&id| TokenRow { id, text: tokenizer.token_text(id) }).collect())
    }
}

fn label_token(tokenizer: &Tokenizer, (id, score): (u32, f32)) -> LabelToken {
    LabelToken { id, text: tokenizer.token_text(id), score }
}

/// `␣France (7001)`, several joined by blanks.
pub(crate) fn tokens_text(tokens: &[TokenRow]) -> String {
    let each = tokens.iter().map(|token| format!("{} ({})", units::token(&token.text), token.id));
    each.collect::<Vec<_>>().join(" ")
}

/// Hits with their labels. The score's column is named after what it is. Both lists are shown: the
/// sign of a feature's activation is not that of its gate score (the up projection decides it).
pub(crate) fn hits_table(hits: &[HitRow], score: &'static str) -> Table {
    let mut table = Table::new([
        Column::number("layer"),
        Column::number("feature"),
        Column::number(score),
        Column::text("+ writes"),
        Column::text("- writes"),
    ]);
    let mut previous = None;
    for hit in hits {
        let layer = format!("L{}", hit.layer);
        let shown = if previous == Some(hit.layer) { String::new() } else { layer };
        previous = Some(hit.layer);
        table.row([
            shown,
            hit.feature.to_string(),
            format!("{:+.4}", hit.score),
            tokens_of(hit.label.as_ref(), false, 3),
            tokens_of(hit.label.as_ref(), true, 3),
        ]);
    }
    table
}

/// The first `shown` tokens of a label: those that the feature writes when it fires positively, or
/// those that it writes when it fires negatively.
pub(crate) fn tokens_of(label: Option<&LabelRow>, negative: bool, shown: usize) -> String {
    let Some(label) = label else { return "-".to_owned() };
    let tokens = if negative { &label.suppresses } else { &label.promotes };
    let shown = tokens.iter().take(shown).map(|token| units::token(&token.text));
    shown.collect::<Vec<_>>().join("  ")
}
