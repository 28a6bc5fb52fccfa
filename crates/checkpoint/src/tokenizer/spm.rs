//! SentencePiece-style merging: the pair whose joined text is the token with the best score goes
//! first (GGUF's tokenizer model "llama": Gemma, Llama 2, Mistral, Phi-3).

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::vocabulary::{METASPACE, Vocabulary};

/// A SentencePiece vocabulary, ready to encode.
pub(super) struct Spm {
    /// Score of every token; higher merges earlier. No NaN, no negative zero.
    scores: Vec<f32>,
    /// The token of each byte, for text that no token spells.
    byte_tokens: Box<[Option<u32>; 256]>,
    unknown: Option<u32>,
}

/// No neighbour.
const NONE: u32 = u32::MAX;

/// A stretch of the text that is one token so far, in a doubly linked list.
#[derive(Clone, Copy)]
struct Symbol {
    start: u32,
    /// Zero once it was merged into its left neighbour.
    len: u32,
    prev: u32,
    next: u32,
}

/// Two neighbours that together are a token.
#[derive(PartialEq)]
struct Pair {
    score: f32,
    left: u32,
    right: u32,
    /// Bytes of both when they were found; another sum later means that one of them has grown.
    len: u32,
}

impl Eq for Pair {}

impl Ord for Pair {
    fn cmp(&self, other: &Pair) -> Ordering {
        let by_score = self.score.total_cmp(&other.score);
        by_score.then(Reverse(self.left).cmp(&Reverse(other.left)))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Spm {
    /// `scores` has one entry for every token.
    pub(super) fn new(vocabulary: &Vocabulary, scores: &[f32], unknown: Option<u32>) -> Spm {
        let mut byte_tokens = Box::new([None; 256]);
        for (byte, slot) in byte_tokens.iter_mut().enumerate() {
            let named = vocabulary.id_of(&format!("<0x{byte:02X}>"));
            let plain = || vocabulary.id_of(char::from(byte as u8).encode_utf8(&mut [0; 4]));
            *slot = named.or_else(|| if byte < 0x80 { plain() } else { None });
        }
        // Adding zero makes -0.0 equal to 0.0, as it is for llama.cpp's comparison.
        let scores = scores.iter().map(|s| s + 0.0).collect();
        Spm { scores, byte_tokens, unknown }
    }

    fn score(&self, id: u32) -> f32 {
        self.scores.get(id as usize).copied().unwrap_or(0.0)
    }

    /// Appends the tokens of `text`, which holds no special tokens and is at most 1 GiB, in
    /// O(n log n). With `prefix` as if a space stood before it.
    pub(super) fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        prefix: bool,
        out: &mut Vec<u32>,
    ) {
        let escaped = escape(text, prefix);
        let mut symbols: Vec<Symbol> = Vec::with_capacity(escaped.len());
        for (start, c) in escaped.char_indices() {
            let i = symbols.len() as u32;
            let (start, len) = (start as u32, c.len_utf8() as u32);
            symbols.push(Symbol { start, len, prev: i.wrapping_sub(1), next: i + 1 });
        }
        let Some(last) = symbols.last_mut() else { return };
        last.next = NONE;

        // The pairs of neighbours in text order are nearly a heap already; building it at once
        // is linear.
        let pairs: Vec<Pair> = (1..symbols.len() as u32)
            .filter_map(|right| self.pair(vocabulary, &escaped, &symbols, right - 1, right))
            .collect();
        let mut heap = BinaryHeap::from(pairs);
        while let Some(pair) = heap.pop() {
            let (left, right) = (symbols[pair.left as usize], symbols[pair.right as usize]);
            if left.len == 0 || right.len == 0 || left.len + right.len != pair.len {
                continue;
            }
            symbols[pair.right as usize].len = 0;
            let merged = &mut symbols[pair.left as usize];
            merged.len = pair.len;
            merged.next = right.next;
            if right.next != NONE {
                symbols[right.next as usize].prev = pair.left;
                heap.extend(self.pair(vocabulary, &escaped, &symbols, pair.left, right.next));
            }
            if left.prev != NONE {
                heap.extend(self.pair(vocabulary, &escaped, &symbols, left.prev, pair.left));
            }
        }

        let mut at = 0;
        while at != NONE {
            let symbol = symbols[at as usize];
            self.emit(vocabulary, slice(&escaped, symbol.start, symbol.len), out);
            at = symbol.next;
        }
    }

    /// The merge of the neighbours `left` and `right`, where their joined text is a token.
    fn pair(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        symbols: &[Symbol],
        left: u32,
        right: u32,
    ) -> Option<Pair> {
        let Symbol { start, len, .. } = symbols[left as usize];
        let len = len + symbols[right as usize].len;
        let id = vocabulary.id_of(slice(text, start, len))?;
        Some(Pair { score: self.score(id), left, right, len })
    }

    /// Appends the token of `piece`, or those of its bytes where there is none.
    fn emit(&self, vocabulary: &Vocabulary, piece: &str, out: &mut Vec<u32>) {
        match vocabulary.id_of(piece) {
            Some(id) => out.push(id),
            None => {
                let bytes = piece.bytes().map(|b| self.byte_tokens[usize::from(b)]);
                out.extend(bytes.filter_map(|id| id.or(self.unknown)));
            }
        }
    }
}

/// The stretch of `text` at `start`; symbols begin and end between characters.
fn slice(text: &str, start: u32, len: u32) -> &str {
    text.get(start as usize..(start + len) as usize).unwrap_or_default()
}

/// `text` with `▁` for every space, and one before it where `prefix`.
fn escape(text: &str, prefix: bool) -> String {
    let spaces = text.bytes().filter(|&b| b == b' ').count();
    let mut out = String::with_capacity(text.len() + 2 * spaces + 3);
    if prefix {
        out.push(METASPACE);
    }
    for (i, part) in text.split(' ').enumerate() {
        if i > 0 {
            out.push(METASPACE);
        }
        out.push_str(part);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::vocabulary::{Spelling, TokenKind};
    use super::*;

    fn model(pieces: &[(&str, f32)]) -> (Vocabulary, Spm) {
        let mut v = Vocabulary::new(Spelling::Metaspace, pieces.len());
        for (piece, _) in pieces {
            v.push(piece, TokenKind::Normal).unwrap();
        }
        let scores: Vec<f32> = pieces.iter().map(|&(_, s)| s).collect();
        let spm = Spm::new(&v, &scores, Some(0));
        (v, spm)
    }

    fn pieces(m: &(Vocabulary, Spm), text: &str, prefix: bool) -> Vec<String> {
        let mut ids = Vec::new();
        m.1.encode(&m.0, text, prefix, &mut ids);
        ids.into_iter().map(|id| m.0.piece(id).to_owned()).collect()
    }

    #[test]
    fn the_best_score_merges_first_and_ties_go_left() {
        let m = model(&[("?", 0.), ("a", 0.), ("b", 0.), ("ab", -2.), ("ba", -1.), ("aa", -1.)]);
        assert_eq!(pieces(&m, "aba", false), ["a", "ba"]);
        assert_eq!(pieces(&m, "aaa", false), ["aa", "a"]);
        assert_eq!(pieces(&m, "abab", false), ["a", "ba", "b"]);
        assert_eq!(pieces(&m, "", false), [""; 0]);
    }

    #[test]
    fn spaces_are_escaped_and_prefixed() {
        let m = model(&[("?", 0.), ("▁", -9.), ("a", -9.), ("▁a", -1.)]);
        assert_eq!(pieces(&m, "a a", true), ["▁a", "▁a"]);
        assert_eq!(pieces(&m, "a a", false), ["a", "▁a"]);
    }

    #[test]
    fn text_without_a_token_falls_back_to_bytes_then_to_unknown() {
        let m = model(&[("?", 0.), ("<0xC3>", 0.), ("<0xA9>", 0.)]);
        assert_eq!(pieces(&m, "é", false), ["<0xC3>", "<0xA9>"]);
        assert_eq!(pieces(&m, "ê", false), ["<0xC3>", "?"]);
    }
}
