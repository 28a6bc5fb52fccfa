//! Values that flags take, with their notations.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use larql_compute::Dtype;
use larql_vindex::labels::LabelScore;
use larql_vindex::{Group, Level};

/// One of the levels by name.
pub(crate) fn level() -> impl TypedValueParser<Value = Level> {
    PossibleValuesParser::new(Level::ALL.map(Level::name))
        .try_map(|name| Level::from_name(&name).ok_or("not a level"))
}

/// One of the role groups by name.
pub(crate) fn group() -> impl TypedValueParser<Value = Group> {
    PossibleValuesParser::new(Group::ALL.map(Group::name))
        .try_map(|name| Group::from_name(&name).ok_or("not a role group"))
}

/// One of the label scores by name.
pub(crate) fn score() -> impl TypedValueParser<Value = LabelScore> {
    PossibleValuesParser::new(LabelScore::ALL.map(LabelScore::name))
        .try_map(|name| LabelScore::from_name(&name).ok_or("not a score"))
}

/// A dtype by name; `q4k` and `q4_k` are the same.
pub(crate) fn dtype(name: &str) -> Result<Dtype, String> {
    Dtype::from_name(name)
        .ok_or_else(|| "known dtypes are f32, f16, bf16, q4_0, q8_0, q4_k and q6_k".to_owned())
}

/// A feature by its address, written `LAYER:FEATURE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FeatureRef {
    pub(crate) layer: usize,
    pub(crate) feature: usize,
}

impl FromStr for FeatureRef {
    type Err = String;

    fn from_str(text: &str) -> Result<FeatureRef, String> {
        let parsed = text
            .split_once(':')
            .and_then(|(layer, feature)| Some((layer.parse().ok()?, feature.parse().ok()?)));
        match parsed {
            Some((layer, feature)) => Ok(FeatureRef { layer, feature }),
            None => Err("a feature is written LAYER:FEATURE, for example 17:1388".to_owned()),
        }
    }
}

impl fmt::Display for FeatureRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.layer, self.feature)
    }
}

/// A range of layers as written; an open end is filled in by the model's depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LayerRange {
    start: usize,
    /// Excluded; `None`: to the last layer.
    end: Option<usize>,
}

impl LayerRange {
    /// The layers meant, of a model with `n_layers`. An end beyond the model is refused by the
    /// libraries, which know how to say it; an open one is not beyond.
    pub(crate) fn resolve(self, n_layers: usize) -> Range<usize> {
        self.start..self.end.unwrap_or(n_layers.max(self.start))
    }
}

impl FromStr for LayerRange {
    type Err = String;

    fn from_str(text: &str) -> Result<LayerRange, String> {
        parse_range(text).filter(|range| range.end.is_none_or(|end| end > range.start)).ok_or_else(
            || {
                "layers are written 3, 3..7 (without 7), 3..=6, 3.. or ..7, and not empty"
                    .to_owned()
            },
        )
    }
}

fn parse_range(text: &str) -> Option<LayerRange> {
    let Some((start, end)) = text.split_once("..") else {
        let start: usize = text.parse().ok()?;
        return Some(LayerRange { start, end: Some(start.checked_add(1)?) });
    };
    let start = if start.is_empty() { 0 } else { start.parse().ok()? };
    let end = match end.strip_prefix('=') {
        Some(last) => Some(last.parse::<usize>().ok()?.checked_add(1)?),
        None if end.is_empty() => None,
        None => Some(end.parse().ok()?),
    };
    Some(LayerRange { start, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_addressed_by_layer_and_number() {
        assert_eq!("17:1388".parse(), Ok(FeatureRef { layer: 17, feature: 1388 }));
        for wrong in ["17", "17:", ":1", "a:b", "1:2:3", "-1:2", ""] {
            assert!(wrong.parse::<FeatureRef>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn layer_ranges_are_written_as_in_rust() {
        let resolved = |text: &str| text.parse::<LayerRange>().map(|range| range.resolve(18));
        assert_eq!(resolved("3"), Ok(3..4));
        assert_eq!(resolved("3..7"), Ok(3..7));
        assert_eq!(resolved("3..=6"), Ok(3..7));
        assert_eq!(resolved("3.."), Ok(3..18));
        assert_eq!(resolved("..7"), Ok(0..7));
        assert_eq!(resolved(".."), Ok(0..18));
        for wrong in ["", "x", "7..3", "3..3", "3..=2", "1..2..3", "18446744073709551615", "-1"] {
            assert!(wrong.parse::<LayerRange>().is_err(), "{wrong:?}");
        }
    }
}
