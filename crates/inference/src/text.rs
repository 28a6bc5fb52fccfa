//! `TextStream`: generated tokens to text as they come, up to a stop string.

use larql_checkpoint::tokenizer::{Decoder, TokenKind, Tokenizer};

use crate::InferenceError;

/// Turns generated tokens to text. Text is handed out as soon as it is certain: whole characters,
/// and nothing that could still turn out to be the beginning of a stop string. However the text is
/// cut into tokens, the text handed out is the same, and a stop string is never part of it.
#[derive(Clone, Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    decoder: Decoder<'a>,
    stops: Vec<String>,
    /// Text that cannot be handed out yet.
    held: String,
    /// Which of `stops` was met.
    stopped: Option<usize>,
}

impl<'a> TextStream<'a> {
    /// The text of an answer by itself, as a chat shows it. `stops` end it and are not shown: each
    /// is text, or the name of a control token.
    ///
    /// # Errors
    /// [`InferenceError::Option`] for an empty stop string.
    pub fn new(
        tokenizer: &'a Tokenizer,
        stops: Vec<String>,
    ) -> Result<TextStream<'a>, InferenceError> {
        if stops.iter().any(String::is_empty) {
            let expected = "at least one character";
            return Err(InferenceError::Option {
                what: "a stop string",
                found: "\"\"".to_owned(),
                expected,
            });
        }
        let (decoder, held) = (tokenizer.decoder(), String::new());
        Ok(TextStream { tokenizer, decoder, stops, held, stopped: None })
    }

    /// The text that goes on where `prompt` ends: together they are the text of all tokens. (Where
    /// the two are one document, the space between them belongs to the continuation.)
    pub fn after(mut self, prompt: &[u32]) -> TextStream<'a> {
        let mut text = String::new();
        for &id in prompt {
            self.decoder.push(id, &mut text);
            text.clear();
        }
        self
    }

    /// Takes the next token and returns the text that is certain now. Nothing after a stop string.
    pub fn push(&mut self, id: u32) -> String {
        if self.stopped.is_some() {
            return String::new();
        }
        if self.tokenizer.kind(id) == TokenKind::Control {
            let name = self.tokenizer.piece(id);
            let Some(stop) = self.stops.iter().position(|stop| stop == name) else {
                return String::new();
            };
            let text = self.rest();
            self.stopped.get_or_insert(stop);
            return text;
        }
        self.decoder.push(id, &mut self.held);
        self.release()
    }

    /// The stop string that was met.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.map(|stop| self.stops[stop].as_str())
    }

    /// What is left once no token follows. Nothing after a stop string.
    pub fn finish(mut self) -> String {
        self.rest_of_text()
    }

    /// As [`TextStream::finish`], for a stream inside something that goes on.
    pub(crate) fn rest_of_text(&mut self) -> String {
        if self.stopped.is_some() { String::new() } else { self.rest() }
    }

    /// All held text up to a stop string, an unfinished character as U+FFFD.
    fn rest(&mut self) -> String {
        let decoder = std::mem::replace(&mut self.decoder, self.tokenizer.decoder());
        decoder.finish(&mut self.held);
        let mut text = self.release();
        if self.stopped.is_none() {
            text += &std::mem::take(&mut self.held);
        }
        text
    }

    /// Takes what is certain out of the held text.
    fn release(&mut self) -> String {
        // Of several the one that is complete first counts, whether or not another began before it:
        // that depends on the text alone and not on how much of it came at once.
        let complete = |(place, stop): (usize, &String)| {
            let start = self.held.find(stop)?;
            Some((start + stop.len(), start, place))
        };
        if let Some((_, start, place)) = self.stops.iter().enumerate().filter_map(complete).min() {
            self.stopped = Some(place);
            self.held.truncate(start);
            return std::mem::take(&mut self.held);
        }
        let longest = self.stops.iter().map(|stop| beginning_at_end(&self.held, stop)).max();
        let certain = self.held.len() - longest.unwrap_or(0);
        let kept = self.held.split_off(certain);
        std::mem::replace(&mut self.held, kept)
    }
}

/// How many bytes at the end of `text` are the beginning of `stop`, but not all of it.
fn beginning_at_end(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    let begins = |&n: &usize| text.as_bytes().ends_with(&stop.as_bytes()[..n]);
    (1..=longest).rev().filter(|&n| stop.is_char_boundary(n)).find(begins).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use larql_checkpoint::gguf::Gguf;
    use larql_checkpoint::tokenizer::EncodeOptions;
    use proptest::prelude::*;

    use super::*;

    fn tokenizer(name: &str) -> Tokenizer {
        let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tokenizers"));
        let gguf = Gguf::open(dir.join(name)).unwrap();
        Tokenizer::from_gguf(gguf.metadata()).unwrap()
    }

    /// The pieces handed out for `ids`, the last one by `finish`, and the stop string met.
    fn pieces(mut stream: TextStream<'_>, ids: &[u32]) -> (Vec<String>, Option<String>) {
        let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id)).collect();
        let stopped = stream.stopped().map(str::to_owned);
        pieces.push(stream.finish());
        (pieces, stopped)
    }

    /// One token a byte, with single-byte tokens.
    fn bytes(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
        text.bytes().map(|b| tokenizer.id_of(&format!("<0x{b:02X}>")).unwrap()).collect()
    }

    #[test]
    fn characters_are_held_back_until_they_are_whole() {
        let t = tokenizer("spm-plain.gguf");
        let stream = || TextStream::new(&t, vec![]).unwrap();
        let (handed_out, _) = pieces(stream(), &bytes(&t, "aé☃"));
        assert_eq!(handed_out, ["a", "", "é", "", "", "☃", ""]);
        let (handed_out, _) = pieces(stream(), &bytes(&t, "a☃")[..3]);
        assert_eq!(handed_out, ["a", "", "", "\u{FFFD}"]);
    }

    #[test]
    fn a_stop_string_never_leaks() {
        let t = tokenizer("spm-plain.gguf");
        let run = |stops: &[&str], text: &str| {
            let stops = stops.iter().map(|&stop| stop.to_owned()).collect();
            let (pieces, stopped) = pieces(TextStream::new(&t, stops).unwrap(), &bytes(&t, text));
            (pieces.join("|"), stopped.unwrap_or_default())
        };
        let text = |text: &str, stop: &str| (text.to_owned(), stop.to_owned());
        assert_eq!(run(&["bc"], "abcd"), text("a||||", "bc"));
        assert_eq!(run(&["bc"], "abd"), text("a||bd|", ""));
        assert_eq!(run(&["bc"], "ab"), text("a||b", ""), "held to the end, then shown");
        assert_eq!(run(&["aab"], "aaab"), text("||a||", "aab"));
        assert_eq!(run(&["abcd", "bc"], "abcd"), text("||a||", "bc"), "complete first");
        assert_eq!(run(&["bc", "abc"], "abc"), text("|||", "abc"), "of two ends the longer");
        assert_eq!(run(&["é"], "aéb"), text("a||||", "é"));
        assert_eq!(run(&["\u{FFFD}"], "a"), text("a|", ""));
        assert!(matches!(
            TextStream::new(&t, vec![String::new()]),
            Err(InferenceError::Option { .. })
        ));
    }

    #[test]
    fn a_control_token_stops_by_its_name() {
        let t = tokenizer("qwen2.gguf");
        let id = |piece: &str| t.id_of(piece).unwrap();
        let stops = vec!["<|im_end|>".to_owned(), "ab".to_owned()];
        let stream = || TextStream::new(&t, stops.clone()).unwrap();
        let (handed_out, stopped) =
            pieces(stream(), &[id("b"), id("a"), id("<|im_end|>"), id("b")]);
        assert_eq!(handed_out, ["b", "", "a", "", ""]);
        assert_eq!(stopped.unwrap(), "<|im_end|>");
        let (handed_out, stopped) = pieces(stream(), &[id("b"), id("<|im_start|>"), id("c")]);
        assert_eq!((handed_out.concat().as_str(), stopped), ("bc", None));
    }

    #[test]
    fn a_continuation_keeps_its_space_and_an_answer_does_not() {
        let t = tokenizer("spm-prefix.gguf");
        let ids = t.encode("the the", EncodeOptions::FRAGMENT).unwrap();
        let of = |stream, ids: &[u32]| pieces(stream, ids).0.concat();
        let stream = || TextStream::new(&t, vec![]).unwrap();
        assert_eq!(of(stream(), &ids), "the the");
        assert_eq!(of(stream().after(&ids), &ids), " the the");
        let bos = [t.bos().unwrap()];
        assert_eq!(of(stream().after(&bos), &ids), "the the", "nothing went before");
    }

    proptest! {
        #[test]
        fn any_tokens_of_a_text_give_the_same_text(
            text in "([ab ☃é]|<[/a]>){0,12}",
            stops in prop::collection::vec("[ab☃é/<]{1,3}", 0..4),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            // Up to the end of the stop string that is complete first.
            let first = stops.iter().filter_map(|stop| {
                let start = text.find(stop)?;
                Some((start + stop.len(), start))
            }).min();
            let expected = &text[..first.map_or(text.len(), |(_, start)| start)];
            for name in ["spm-plain.gguf", "qwen2.gguf", "deepseek-v3.gguf"] {
                let t = tokenizer(name);
                // Encoded in pieces: other tokens, same text. In bytes, where there are such.
                let mut at: Vec<usize> = cuts.iter().map(|i| i.index(text.len() + 1)).collect();
                at.retain(|&i| text.is_char_boundary(i));
                at.extend([0, text.len()]);
                at.sort_unstable();
                let mut ids = Vec::new();
                for ends in at.windows(2) {
                    ids.extend(t.encode(&text[ends[0]..ends[1]], EncodeOptions::FRAGMENT).unwrap());
                }
                let mut ways = vec![ids];
                if name.starts_with("spm") {
                    ways.push(bytes(&t, &text));
                }
                for ids in ways {
                    let stream = TextStream::new(&t, stops.clone()).unwrap();
                    let (pieces, stopped) = pieces(stream, &ids);
                    prop_assert_eq!(pieces.concat(), expected);
                    prop_assert_eq!(stopped.is_some(), first.is_some());
                }
            }
        }
    }
}
