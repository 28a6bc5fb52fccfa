//! What a `tokenizer.json` says, read where it lies in the mapped file.
//!
//! Such a file holds half a million strings. The `tokenizers` crate makes a heap object of each,
//! several times over, so it is asked only to encode. Everything else (labels, GGUF metadata)
//! comes from here: texts are borrowed from the file, and merges, which are read only where they
//! are wanted, share one buffer.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tokenizers::{DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper};

/// Everything but the merges.
#[derive(Deserialize)]
pub(super) struct Parts<'a> {
    #[serde(borrow, default)]
    pub(super) added_tokens: Vec<Added<'a>>,
    pub(super) normalizer: Option<NormalizerWrapper>,
    pub(super) pre_tokenizer: Option<PreTokenizerWrapper>,
    pub(super) post_processor: Option<PostProcessorWrapper>,
    pub(super) decoder: Option<DecoderWrapper>,
    #[serde(borrow)]
    pub(super) model: Model<'a>,
}

/// A token that is matched whole. Its id is the model's where that has the text; the file's own
/// word on it does not count.
#[derive(Deserialize)]
pub(super) struct Added<'a> {
    #[serde(borrow)]
    pub(super) content: Cow<'a, str>,
    pub(super) special: bool,
}

/// The part that makes tokens of words.
#[derive(Deserialize)]
pub(super) struct Model<'a> {
    #[serde(rename = "type")]
    kind: Option<String>,
    pub(super) unk_token: Option<String>,
    pub(super) ignore_merges: Option<bool>,
    #[serde(borrow)]
    pub(super) vocab: Vocab<'a>,
    merges: Option<IgnoredAny>,
}

impl Model<'_> {
    /// Whether it merges pairs. Old files do not say so, but only such a model has merges.
    pub(super) fn is_bpe(&self) -> bool {
        self.kind.as_ref().map_or(self.merges.is_some(), |kind| kind == "BPE")
    }
}

/// The model's tokens, in the order of the file.
pub(super) struct Vocab<'a>(pub(super) Vec<Token<'a>>);

/// A token of the vocabulary.
pub(super) struct Token<'a> {
    pub(super) text: Cow<'a, str>,
    pub(super) id: u32,
    /// Whether it is special, where it is an added token.
    pub(super) added: Option<bool>,
}

/// A string, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Vocab<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tokens;

        impl<'de> Visitor<'de> for Tokens {
            type Value = Vocab<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of ids by token, or an array of tokens with scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut tokens = Vec::new();
                while let Some((Text(text), id)) = map.next_entry()? {
                    tokens.push(Token { text, id, added: None });
                }
                Ok(Vocab(tokens))
            }

            /// A unigram model's: the place is the id.
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut tokens = Vec::new();
                while let Some((Text(text), _score)) = seq.next_element::<(_, f64)>()? {
                    tokens.push(Token { text, id: tokens.len() as u32, added: None });
                }
                Ok(Vocab(tokens))
            }
        }

        deserializer.deserialize_any(Tokens)
    }
}

/// The merges of a BPE model, the most important first.
#[derive(Default)]
pub(super) struct Merges {
    text: String,
    /// Where in `text` the halves of each merge end; the left one begins where the merge before
    /// ends.
    ends: Vec<(usize, usize)>,
}

impl Merges {
    /// Those of the file `json`.
    pub(super) fn read(json: &[u8]) -> Result<Merges, serde_json::Error> {
        #[derive(Deserialize)]
        struct File {
            model: Model,
        }
        #[derive(Deserialize)]
        struct Model {
            #[serde(default)]
            merges: Merges,
        }
        Ok(serde_json::from_slice::<File>(json)?.model.merges)
    }

    /// Number of merges.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// What merge `place` joins.
    pub(super) fn halves(&self, place: usize) -> (&str, &str) {
        let start = self.start(place);
        let (middle, end) = self.ends[place];
        (&self.text[start..middle], &self.text[middle..end])
    }

    /// What merge `place` makes.
    pub(super) fn joined(&self, place: usize) -> &str {
        &self.text[self.start(place)..self.ends[place].1]
    }

    fn start(&self, place: usize) -> usize {
        if place == 0 { 0 } else { self.ends[place - 1].1 }
    }

    fn push(&mut self, left: &str, right: &str) {
        self.text.push_str(left);
        let middle = self.text.len();
        self.text.push_str(right);
        self.ends.push((middle, self.text.len()));
    }
}

impl<'de> Deserialize<'de> for Merges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> Visitor<'de> for List {
            type Value = Merges;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of merges")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merges, A::Error> {
                let mut merges = Merges::default();
                while seq.next_element_seed(Next(&mut merges))?.is_some() {}
                Ok(merges)
            }
        }

        deserializer.deserialize_seq(List)
    }
}

/// Reads one merge: a pair, or the older form of one string with a space.
struct Next<'m>(&'m mut Merges);

impl<'de> DeserializeSeed<'de> for Next<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Next<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a merge: a pair of tokens")
    }

    fn visit_str<E: Error>(self, joined: &str) -> Result<(), E> {
        let unexpected = || E::invalid_value(serde::de::Unexpected::Str(joined), &"two tokens");
        let (left, right) = joined.split_once(' ').ok_or_else(unexpected)?;
        self.0.push(left, right);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let half = |place, half: Option<Text<'de>>| {
            half.ok_or_else(|| A::Error::invalid_length(place, &"two tokens"))
        };
        let left = half(0, seq.next_element()?)?;
        let right = half(1, seq.next_element()?)?;
        self.0.push(&left.0, &right.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_are_pairs_or_strings() {
        let json = r#"{"model": {"merges": ["a b", ["c d", "\u2581"], ["", "e"]], "vocab": {}}}"#;
        let merges = Merges::read(json.as_bytes()).unwrap();
        assert_eq!(merges.len(), 3);
        assert_eq!(merges.halves(0), ("a", "b"));
        assert_eq!(merges.halves(1), ("c d", "▁"));
        assert_eq!(merges.joined(1), "c d▁");
        assert_eq!(merges.halves(2), ("", "e"));
        for wrong in [r#"["ab"]"#, r#"[["a"]]"#, r#"[["a", "b", "c"]]"#, "[1]", "{}"] {
            let json = format!(r#"{{"model": {{"merges": {wrong}}}}}"#);
            assert!(Merges::read(json.as_bytes()).is_err(), "{wrong}");
        }
        assert_eq!(Merges::read(br#"{"model": {}}"#).unwrap().len(), 0);
    }

    #[test]
    fn a_vocabulary_is_an_object_or_an_array() {
        for vocab in [r#"{"a\n": 0, "b": 1}"#, r#"[["a\n", -1.5], ["b", 0]]"#] {
            let json = format!(r#"{{"model": {{"vocab": {vocab}}}}}"#);
            let parts: Parts<'_> = serde_json::from_str(&json).unwrap();
            let tokens: Vec<(&str, u32)> =
                parts.model.vocab.0.iter().map(|t| (&*t.text, t.id)).collect();
            assert_eq!(tokens, [("a\n", 0), ("b", 1)]);
            assert!(!parts.model.is_bpe());
        }
    }
}
