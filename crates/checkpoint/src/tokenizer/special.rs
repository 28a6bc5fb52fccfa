//! Tokens that are matched whole on the raw text, before anything is escaped, split or merged.
//!
//! The longest token wins, wherever it stands; among occurrences of one length the leftmost. So
//! with `ab` and `bcd` the text `abcd` is `a`, `bcd`: llama.cpp's rule (it looks for one token
//! after the other, longest first), which differs from "leftmost, then longest" (the
//! `tokenizers` crate's) only where such tokens overlap.

use std::collections::BinaryHeap;
use std::ops::Range;

use super::vocabulary::Vocabulary;

/// A piece of the text: a matched token, or text between matched tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fragment {
    /// A special token that stands here.
    Token(u32),
    /// Bytes of the text that hold none.
    Text(Range<usize>),
}

/// Finds special tokens in text.
pub(super) struct SpecialMatcher {
    /// Ascending by text, no two alike.
    tokens: Vec<Special>,
    /// `tokens` of first byte `b` are at `starts[b]..starts[b + 1]`.
    starts: Box<[u32; 257]>,
}

/// A token to look for.
struct Special {
    text: Box<[u8]>,
    id: u32,
    /// White space after it is dropped.
    strips_right: bool,
}

/// An occurrence that may still be beaten by a longer one.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    len: usize,
    start: std::cmp::Reverse<usize>,
    /// Its place in `tokens`.
    token: usize,
}

impl SpecialMatcher {
    /// A matcher of the tokens `ids`. The white space after those that `strips_right` names is
    /// dropped.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        ids: &[u32],
        strips_right: impl Fn(&str) -> bool,
    ) -> SpecialMatcher {
        let named = ids.iter().map(|&id| (vocabulary.piece(id), id));
        let mut tokens: Vec<Special> = named
            .filter(|(text, _)| !text.is_empty())
            .map(|(text, id)| Special {
                text: text.as_bytes().into(),
                id,
                strips_right: strips_right(text),
            })
            .collect();
        tokens.sort_unstable_by(|a, b| (&a.text, a.id).cmp(&(&b.text, b.id)));
        tokens.dedup_by(|b, a| a.text == b.text);
        let mut starts = Box::new([0u32; 257]);
        for (byte, slot) in starts.iter_mut().enumerate() {
            *slot = tokens.partition_point(|t| usize::from(t.text[0]) < byte) as u32;
        }
        SpecialMatcher { tokens, starts }
    }

    /// Cuts `text` into special tokens and the text between them, in order.
    pub(super) fn split(&self, text: &str) -> Vec<Fragment> {
        self.split_except(text, &[])
    }

    /// The same, where no token begins at the bytes `except` (ascending).
    pub(super) fn split_except(&self, text: &str, except: &[usize]) -> Vec<Fragment> {
        let bytes = text.as_bytes();
        let mut heap: BinaryHeap<Candidate> = (0..bytes.len())
            .filter(|start| except.binary_search(start).is_err())
            .filter_map(|start| self.longest(bytes, start, usize::MAX))
            .collect();
        let mut found = Vec::new();
        // Which bytes are taken. Accepted tokens come longest first, so a later one that
        // overlaps any has its first or last byte taken.
        let mut taken = if heap.is_empty() { Vec::new() } else { vec![false; bytes.len()] };
        while let Some(candidate) = heap.pop() {
            let Candidate { len, start: std::cmp::Reverse(start), token } = candidate;
            if taken[start] {
                continue;
            }
            if taken[start + len - 1] {
                heap.extend(self.longest(bytes, start, len - 1));
                continue;
            }
            let mut end = start + len;
            taken[start..end].fill(true);
            let &Special { id, strips_right, .. } = &self.tokens[token];
            while strips_right && end < bytes.len() && !taken[end] && is_c_space(bytes[end]) {
                taken[end] = true;
                end += 1;
            }
            found.push((start..end, id));
        }
        found.sort_unstable_by_key(|(range, _)| range.start);
        let mut fragments = Vec::with_capacity(found.len() * 2 + 1);
        let mut at = 0;
        for (range, id) in found {
            if at < range.start {
                fragments.push(Fragment::Text(at..range.start));
            }
            fragments.push(Fragment::Token(id));
            at = range.end;
        }
        if at < bytes.len() {
            fragments.push(Fragment::Text(at..bytes.len()));
        }
        fragments
    }

    /// Every byte of `text` at which a token stands, overlapping ones too.
    pub(super) fn starts_in(&self, text: &str) -> Vec<usize> {
        let bytes = text.as_bytes();
        (0..bytes.len()).filter(|&i| self.longest(bytes, i, usize::MAX).is_some()).collect()
    }

    /// The longest token of at most `limit` bytes that stands at `start`.
    fn longest(&self, text: &[u8], start: usize, limit: usize) -> Option<Candidate> {
        let first = usize::from(text[start]);
        let mut range = self.starts[first] as usize..self.starts[first + 1] as usize;
        let mut best = None;
        let mut len = 1;
        // `range` holds the tokens that begin with the `len` bytes at `start`, and of these the
        // one that is exactly as long comes first.
        while !range.is_empty() {
            if self.tokens[range.start].text.len() == len {
                let start = std::cmp::Reverse(start);
                best = Some(Candidate { len, start, token: range.start });
                range.start += 1;
            }
            let Some(&next) = text.get(start + len) else { break };
            if len == limit {
                break;
            }
            let tokens = &self.tokens[range.clone()];
            let low = tokens.partition_point(|t| t.text[len] < next);
            let high = low + tokens[low..].partition_point(|t| t.text[len] == next);
            range = range.start + low..range.start + high;
            len += 1;
        }
        best
    }
}

/// C's `isspace` in the C locale.
fn is_c_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

#[cfg(test)]
mod tests {
    use super::super::vocabulary::{Spelling, TokenKind};
    use super::*;

    fn matcher(tokens: &[&str], strip_right: bool) -> SpecialMatcher {
        let mut v = Vocabulary::new(Spelling::Metaspace, tokens.len());
        for t in tokens {
            v.push(t, TokenKind::UserDefined).unwrap();
        }
        let ids: Vec<u32> = (0..tokens.len() as u32).collect();
        SpecialMatcher::new(&v, &ids, |_| strip_right)
    }

    /// llama.cpp's rule as it says it: one token after the other, longest first, over all text
    /// that is left.
    fn naive(tokens: &[&str], text: &str) -> Vec<Fragment> {
        let mut order: Vec<usize> = (0..tokens.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(tokens[i].len()));
        let mut fragments = vec![Fragment::Text(0..text.len())];
        for i in order {
            let mut next = Vec::new();
            for fragment in fragments {
                let Fragment::Text(range) = fragment else {
                    next.push(fragment);
                    continue;
                };
                let mut at = range.start;
                while let Some(found) = text[at..range.end].find(tokens[i]) {
                    if found > 0 {
                        next.push(Fragment::Text(at..at + found));
                    }
                    next.push(Fragment::Token(i as u32));
                    at += found + tokens[i].len();
                }
                if at < range.end {
                    next.push(Fragment::Text(at..range.end));
                }
            }
            fragments = next;
        }
        fragments
    }

    #[test]
    fn longest_first_wherever_it_stands() {
        let m = matcher(&["ab", "bcd"], false);
        assert_eq!(m.split("abcd"), [Fragment::Text(0..1), Fragment::Token(1)]);
        assert_eq!(m.split(""), []);
        assert_eq!(m.split("xyz"), [Fragment::Text(0..3)]);
    }

    #[test]
    fn agrees_with_one_token_after_the_other() {
        // Tokens of one length that overlap each other are left out: which of them llama.cpp
        // takes depends on an unstable sort.
        let tokens = ["  ", "   ", "     ", "aab", "ba", "b", "<b>", "</b>", "<"];
        let m = matcher(&tokens, false);
        let mut state = 1u64;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..24 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                text.push(['a', 'b', ' ', ' ', '<', '>', '/', 'c'][(state >> 60) as usize & 7]);
            }
            assert_eq!(m.split(&text), naive(&tokens, &text), "{text:?}");
        }
    }

    #[test]
    fn no_token_begins_at_an_exception() {
        let m = matcher(&["<e>", "<e>x", "e>"], false);
        let text = "<e>x<e>";
        assert_eq!(m.starts_in(text), [0, 1, 4, 5]);
        assert_eq!(m.split(text), [Fragment::Token(1), Fragment::Token(0)]);
        assert_eq!(m.split_except(text, &[0, 1]), [Fragment::Text(0..4), Fragment::Token(0)]);
        assert_eq!(m.split_except(text, &[0, 1, 4, 5]), [Fragment::Text(0..7)]);
    }

    #[test]
    fn runs_of_any_length_are_quick() {
        let tokens: Vec<String> = (2..=31).map(|n| " ".repeat(n)).collect();
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        let m = matcher(&tokens, false);
        let text = " ".repeat(200_000);
        let fragments = m.split(&text);
        assert_eq!(fragments.len(), 200_000usize.div_ceil(31));
        assert_eq!(fragments.last(), Some(&Fragment::Token((200_000 % 31 - 2) as u32)));
    }

    #[test]
    fn white_space_after_a_token_is_dropped_where_asked() {
        let m = matcher(&["<|end|>"], true);
        assert_eq!(
            m.split("a <|end|> \n b"),
            [Fragment::Text(0..2), Fragment::Token(0), Fragment::Text(12..13)]
        );
    }
}
