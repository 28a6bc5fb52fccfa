//! `describe`: which features write a word.
//!
//! A static reverse look-up, no forward pass: the features whose output direction is closest to the
//! word's unembedding, by cosine, of both signs. It says what a feature would write if it fired, not
//! that it fires, and not that the model uses it.

use std::ops::Range;

use larql_compute::{Order, TopK};

use super::{Hit, Search};
use crate::VindexError;

/// Most tokens of one word. Every distinct token is compared with every feature, and all cosines
/// are kept until the strongest are known.
pub const MAX_DESCRIBED_TOKENS: usize = 64;

/// What to look for, and where.
#[derive(Debug, Clone, PartialEq)]
pub struct DescribeOptions {
    /// Layers to search; all where `None`.
    pub layers: Option<Range<usize>>,
    /// Features to return for each part of the word.
    pub top: usize,
    /// Smallest |cosine| to return.
    pub min: f32,
}

impl Default for DescribeOptions {
    fn default() -> Self {
        Self { layers: None, top: 20, min: 0.0 }
    }
}

/// A feature whose output direction lies along or against a word's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WrittenBy {
    /// The feature; its score is the cosine, negative where it suppresses the word when it fires
    /// positively.
    pub hit: Hit,
    /// Share of the feature's output that points along the word: cosine².
    pub share: f32,
    /// Standard deviations from the mean cosine that this word has with all searched features.
    pub sigma: f32,
}

/// The features that write one token, or the parts of a word taken together.
#[derive(Debug, Clone, PartialEq)]
pub struct DescribedPart {
    /// The tokens whose unit unembeddings are summed; one, or all of the word's.
    pub tokens: Vec<u32>,
    /// Features by layer, then by |cosine| descending.
    pub features: Vec<WrittenBy>,
    /// Mean of the cosine over all searched features.
    pub mean: f32,
    /// Standard deviation of the cosine over all searched features.
    pub deviation: f32,
    /// |cosine| that the strongest of as many random directions would be expected to reach,
    /// `sqrt(2 ln(2n)) * deviation` (Gaussian extreme value).
    pub chance: f32,
}

/// The answer to `describe`.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// One entry for each distinct token of the word, then, where there are several, one for all together.
    pub parts: Vec<DescribedPart>,
    /// Features searched.
    pub n_features: usize,
}

impl Search<'_> {
    /// The features that write the word which `tokens` spell.
    ///
    /// # Errors
    /// No tokens or more than [`MAX_DESCRIBED_TOKENS`], a token outside the vocabulary, layers that
    /// the model does not have, a level without down projection, norms or unembedding.
    pub fn describe(
        &self,
        tokens: &[u32],
        options: &DescribeOptions,
    ) -> Result<Description, VindexError> {
        let layers = self.checked_layers(options.layers.clone())?;
        let (groups, targets) = self.word_targets(tokens)?;
        let mut cosines: Vec<Vec<Hit>> = vec![Vec::new(); groups.len()];
        for (layer, of_layer) in layers.clone().zip(self.cosines_of_layers(&layers, &targets)?) {
            for (hits, cosines) in cosines.iter_mut().zip(of_layer) {
                let found = cosines.into_iter().enumerate();
                hits.extend(found.map(|(feature, score)| Hit { layer, feature, score }));
            }
        }
        let n_features = cosines.first().map_or(0, Vec::len);
        let parts = groups
            .into_iter()
            .zip(cosines)
            .map(|(tokens, hits)| strongest(tokens, &hits, options))
            .collect::<Result<_, _>>()?;
        Ok(Description { parts, n_features })
    }

    /// The unembedding rows to look for: of each distinct token, and the sum of their unit vectors.
    #[allow(clippy::type_complexity, reason = "two parallel lists, used once")]
    fn word_targets(&self, tokens: &[u32]) -> Result<(Vec<Vec<u32>>, Vec<Vec<f32>>), VindexError> {
        if tokens.is_empty() {
            return Err(VindexError::EmptyQuery);
        }
        if tokens.len() > MAX_DESCRIBED_TOKENS {
            return Err(VindexError::LongQuery { tokens: tokens.len(), max: MAX_DESCRIBED_TOKENS });
        }
        let mut groups: Vec<Vec<u32>> = Vec::new();
        for &token in tokens {
            if !groups.contains(&vec![token]) {
                groups.push(vec![token]);
            }
        }
        let mut targets =
            groups.iter().map(|group| self.unembedding(group[0])).collect::<Result<Vec<_>, _>>()?;
        if groups.len() > 1 {
            let mut together = vec![0.0f32; targets[0].len()];
            for token in tokens {
                let target = self.unembedding(*token)?;
                let norm = super::norm::l2(&target).max(f32::MIN_POSITIVE);
                together.iter_mut().zip(&target).for_each(|(t, v)| *t += v / norm);
            }
            groups.push(tokens.to_vec());
            targets.push(together);
        }
        Ok((groups, targets))
    }

    /// [`Search::output_cosines`] of several layers, threads over layers.
    #[allow(clippy::type_complexity, reason = "[layer][target][feature], used once")]
    fn cosines_of_layers(
        &self,
        layers: &Range<usize>,
        targets: &[Vec<f32>],
    ) -> Result<Vec<Vec<Vec<f32>>>, VindexError> {
        let mut found: Vec<_> = layers.clone().map(|layer| (layer, Ok(Vec::new()))).collect();
        self.cpu.pool().for_each_chunk(&mut found, 1, |_, slots| {
            for (layer, cosines) in slots {
                *cosines = self.output_cosines(*layer, targets);
            }
        });
        found.into_iter().map(|(_, cosines)| cosines).collect()
    }
}

fn strongest(
    tokens: Vec<u32>,
    hits: &[Hit],
    options: &DescribeOptions,
) -> Result<DescribedPart, VindexError> {
    let n = hits.len().max(1) as f64;
    let mean = hits.iter().map(|h| f64::from(h.score)).sum::<f64>() / n;
    let variance = hits.iter().map(|h| (f64::from(h.score) - mean).powi(2)).sum::<f64>() / n;
    let deviation = variance.sqrt();
    let mut top = TopK::new(options.top, Order::Abs);
    for (i, hit) in hits.iter().enumerate() {
        if hit.score.is_nan() {
            return Err(VindexError::NanFeature { layer: hit.layer, feature: hit.feature });
        }
        if hit.score.abs() >= options.min {
            top.push(i, hit.score)?;
        }
    }
    let mut features: Vec<WrittenBy> = top
        .into_sorted()
        .into_iter()
        .map(|s| WrittenBy {
            hit: hits[s.row],
            share: s.score * s.score,
            sigma: ((f64::from(s.score) - mean) / deviation.max(f64::MIN_POSITIVE)) as f32,
        })
        .collect();
    // Stable: within a layer the order by |cosine| stays.
    features.sort_by_key(|f| f.hit.layer);
    Ok(DescribedPart {
        tokens,
        features,
        mean: mean as f32,
        deviation: deviation as f32,
        chance: ((2.0 * (2.0 * n).ln()).sqrt() * deviation) as f32,
    })
}
