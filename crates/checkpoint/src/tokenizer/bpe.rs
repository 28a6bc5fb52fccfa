//! Byte-level BPE: text is cut into words, a word into bytes, and the pair of neighbours that
//! stands first in the list of merges is joined first (GGUF's tokenizer model "gpt2": GPT-2,
//! Llama 3, Qwen, SmolLM, DeepSeek).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};

use super::byte_level;
use super::pretokenize::PreTokenizer;
use super::vocabulary::{Vocabulary, fold};

/// Merges and words of a byte-level BPE vocabulary.
pub(super) struct Bpe {
    merges: HashMap<(u32, u32), Merge, PairHash>,
    /// The token of each byte; text of a byte without one is left out, as llama.cpp does.
    byte_tokens: Box<[Option<u32>; 256]>,
    pre: PreTokenizer,
}

/// What joining two tokens gives.
#[derive(Clone, Copy)]
struct Merge {
    /// Position in the list of merges; lower goes first.
    rank: u32,
    joined: u32,
}

/// A stretch of a word that is one token so far.
#[derive(Clone, Copy)]
struct Symbol {
    /// Its token, or `NONE`: a byte without one, which merges with nothing.
    id: u32,
    prev: u32,
    next: u32,
    merged_away: bool,
}

const NONE: u32 = u32::MAX;

/// Buffers that encoding reuses from word to word.
#[derive(Default)]
struct Scratch {
    spelled: String,
    symbols: Vec<Symbol>,
    /// Rank, left symbol, and the tokens that both symbols were when the pair was found.
    heap: BinaryHeap<Reverse<(u32, u32, u32, u32)>>,
}

impl Bpe {
    /// `merges` are `left right` pairs, the most important first. A pair of which a half or the
    /// whole is no token can never apply and is left out.
    pub(super) fn new<'a>(
        vocabulary: &Vocabulary,
        merges: impl Iterator<Item = (&'a str, &'a str)>,
        pre: PreTokenizer,
    ) -> Bpe {
        let mut table = HashMap::with_capacity_and_hasher(merges.size_hint().0, PairHash::new());
        let mut joined = String::new();
        let mut lost = 0usize;
        for (rank, (left, right)) in merges.enumerate() {
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            let ids = (vocabulary.id_of(left), vocabulary.id_of(right), vocabulary.id_of(&joined));
            match ids {
                (Some(left), Some(right), Some(joined)) => {
                    let merge = Merge { rank: rank as u32, joined };
                    table.entry((left, right)).or_insert(merge);
                }
                _ => lost += 1,
            }
        }
        if lost > 0 {
            tracing::warn!(lost, "merges name tokens that the vocabulary does not have");
        }
        let mut byte_tokens = Box::new([None; 256]);
        for (byte, slot) in byte_tokens.iter_mut().enumerate() {
            let c = byte_level::char_of(byte as u8);
            *slot = vocabulary.id_of(c.encode_utf8(&mut [0; 4]));
        }
        Bpe { merges: table, byte_tokens, pre }
    }

    /// Appends the tokens of `text`, which holds no special tokens.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) {
        let mut scratch = Scratch::default();
        for word in self.pre.split(text) {
            self.encode_word(vocabulary, &text[word], &mut scratch, out);
        }
    }

    fn encode_word(
        &self,
        vocabulary: &Vocabulary,
        word: &str,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) {
        if self.pre.words_are_tokens() {
            scratch.spelled.clear();
            byte_level::spell(word.as_bytes(), &mut scratch.spelled);
            if let Some(id) = vocabulary.id_of(&scratch.spelled) {
                out.push(id);
                return;
            }
        }
        let Scratch { symbols, heap, .. } = scratch;
        symbols.clear();
        symbols.extend(word.bytes().zip(0u32..).map(|(byte, i)| Symbol {
            id: self.byte_tokens[usize::from(byte)].unwrap_or(NONE),
            prev: i.wrapping_sub(1),
            next: i + 1,
            merged_away: false,
        }));
        let Some(last) = symbols.last_mut() else { return };
        last.next = NONE;
        for right in 1..symbols.len() as u32 {
            heap.extend(self.pair(symbols, right - 1, right));
        }
        while let Some(Reverse((_, left, left_id, right_id))) = heap.pop() {
            let symbol = symbols[left as usize];
            if symbol.merged_away || symbol.id != left_id || symbol.next == NONE {
                continue;
            }
            let right = symbol.next;
            let Symbol { id, next, .. } = symbols[right as usize];
            let Some(merge) = self.merges.get(&(left_id, right_id)).filter(|_| id == right_id)
            else {
                continue;
            };
            symbols[right as usize].merged_away = true;
            symbols[left as usize].id = merge.joined;
            symbols[left as usize].next = next;
            if next != NONE {
                symbols[next as usize].prev = left;
                heap.extend(self.pair(symbols, left, next));
            }
            if symbol.prev != NONE {
                heap.extend(self.pair(symbols, symbol.prev, left));
            }
        }
        let mut at = 0;
        while at != NONE {
            let symbol = symbols[at as usize];
            out.extend(Some(symbol.id).filter(|&id| id != NONE));
            at = symbol.next;
        }
    }

    /// The heap's entry for the neighbours `left` and `right`, where they merge.
    fn pair(
        &self,
        symbols: &[Symbol],
        left: u32,
        right: u32,
    ) -> Option<Reverse<(u32, u32, u32, u32)>> {
        let (a, b) = (symbols[left as usize].id, symbols[right as usize].id);
        let merge = self.merges.get(&(a, b))?;
        Some(Reverse((merge.rank, left, a, b)))
    }
}

/// Hashes pairs of ids by multiplying; the seed is random, so that no file can make them collide.
#[derive(Clone)]
struct PairHash {
    seed: u64,
}

impl PairHash {
    fn new() -> PairHash {
        PairHash { seed: RandomState::new().build_hasher().finish() }
    }
}

impl BuildHasher for PairHash {
    type Hasher = PairHasher;

    fn build_hasher(&self) -> PairHasher {
        PairHasher { state: self.seed }
    }
}

struct PairHasher {
    state: u64,
}

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.state
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.state = fold(self.state ^ u64::from(byte));
        }
    }

    fn write_u32(&mut self, id: u32) {
        self.state = fold(self.state ^ u64::from(id));
    }
}

#[cfg(test)]
mod tests {
    use super::super::vocabulary::{Spelling, TokenKind};
    use super::*;

    fn model(pieces: &[&str], merges: &[(&str, &str)], pre: &str) -> (Vocabulary, Bpe) {
        let mut v = Vocabulary::new(Spelling::ByteLevel, pieces.len());
        for piece in pieces {
            v.push(piece, TokenKind::Normal).unwrap();
        }
        let pre = PreTokenizer::named(pre).unwrap();
        let bpe = Bpe::new(&v, merges.iter().copied(), pre);
        (v, bpe)
    }

    fn pieces(m: &(Vocabulary, Bpe), text: &str) -> Vec<String> {
        let mut ids = Vec::new();
        m.1.encode(&m.0, text, &mut ids);
        ids.into_iter().map(|id| m.0.piece(id).to_owned()).collect()
    }

    #[test]
    fn the_first_merge_in_the_list_goes_first_and_ties_go_left() {
        let all = ["a", "b", "c", "ab", "bc", "aa", "abc"];
        let m = model(&all, &[("b", "c"), ("a", "b"), ("a", "a"), ("a", "bc")], "gpt-2");
        assert_eq!(pieces(&m, "abc"), ["abc"]);
        assert_eq!(pieces(&m, "ab"), ["ab"]);
        assert_eq!(pieces(&m, "aaa"), ["aa", "a"]);
        assert_eq!(pieces(&m, "aab"), ["a", "ab"]);
    }

    #[test]
    fn a_whole_word_is_taken_without_merges_where_the_model_says_so() {
        let all = ["a", "b", "c", "ab", "cab"];
        let merges = [("a", "b")];
        assert_eq!(pieces(&model(&all, &merges, "gpt-2"), "cab"), ["c", "ab"]);
        assert_eq!(pieces(&model(&all, &merges, "llama-bpe"), "cab"), ["cab"]);
    }

    #[test]
    fn a_byte_without_a_token_is_left_out_and_separates() {
        let m = model(&["a", "b", "ab"], &[("a", "b")], "gpt-2");
        assert_eq!(pieces(&m, "ab"), ["ab"]);
        assert_eq!(pieces(&m, "axb"), ["a", "b"]);
    }
}
