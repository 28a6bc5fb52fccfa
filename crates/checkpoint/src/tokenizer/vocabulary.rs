//! The tokens of a model: their text, kind and ids.
//!
//! All texts stand in one buffer, so that 262,144 tokens cost two allocations and a label
//! (`id -> text`) costs none of the hash table that encoding needs; that table is built on first
//! use.

use std::borrow::Cow;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

use super::{TokenizerFault, byte_level};

/// What a token is for. GGUF stores it as a number (`tokenizer.ggml.token_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Ordinary text, made by merging.
    Normal,
    /// Stands for text that the vocabulary cannot spell.
    Unknown,
    /// Steers the model (`<bos>`, `<|im_end|>`): never made from plain text.
    Control,
    /// Always matched whole, before anything is merged (runs of spaces, HTML tags).
    UserDefined,
    /// A place kept free.
    Unused,
    /// One byte, spelled `<0xE2>`.
    Byte,
}

impl TokenKind {
    /// The kind with GGUF's number; None where the number is not one of GGUF's.
    pub(super) fn from_gguf(number: i64) -> Option<TokenKind> {
        Some(match number {
            // 0 is "undefined": llama.cpp neither merges specially nor prints such a token.
            0 | 5 => TokenKind::Unused,
            1 => TokenKind::Normal,
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            6 => TokenKind::Byte,
            _ => return None,
        })
    }

    /// GGUF's number of this kind.
    pub(super) fn to_gguf(self) -> i32 {
        match self {
            TokenKind::Normal => 1,
            TokenKind::Unknown => 2,
            TokenKind::Control => 3,
            TokenKind::UserDefined => 4,
            TokenKind::Unused => 5,
            TokenKind::Byte => 6,
        }
    }
}

/// How ordinary tokens write the text that they stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// SentencePiece: UTF-8 with `▁` for a space.
    Metaspace,
    /// GPT-2: one character for every byte.
    ByteLevel,
}

/// SentencePiece's visible space, U+2581.
pub(super) const METASPACE: char = '▁';

/// Texts, kinds and ids of all tokens.
pub(super) struct Vocabulary {
    text: String,
    /// Token `id` is `text[ends[id - 1]..ends[id]]`.
    ends: Vec<u32>,
    kinds: Vec<TokenKind>,
    spelling: Spelling,
    longest: usize,
    index: OnceLock<PieceIndex>,
}

impl Vocabulary {
    /// A vocabulary without tokens, with room for `capacity` of them.
    pub(super) fn new(spelling: Spelling, capacity: usize) -> Vocabulary {
        Vocabulary {
            text: String::new(),
            ends: Vec::with_capacity(capacity),
            kinds: Vec::with_capacity(capacity),
            spelling,
            longest: 0,
            index: OnceLock::new(),
        }
    }

    /// Adds the token with the next id.
    pub(super) fn push(&mut self, piece: &str, kind: TokenKind) -> Result<(), TokenizerFault> {
        self.text.push_str(piece);
        let end = u32::try_from(self.text.len()).map_err(|_| TokenizerFault::VocabularyTooLarge)?;
        self.ends.push(end);
        self.kinds.push(kind);
        self.longest = self.longest.max(piece.len());
        self.index = OnceLock::new();
        Ok(())
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// How ordinary tokens are spelled.
    pub(super) fn spelling(&self) -> Spelling {
        self.spelling
    }

    /// The token as the vocabulary writes it (`▁the`, `Ġthe`, `<0xE2>`); empty where `id` is not
    /// a token.
    pub(super) fn piece(&self, id: u32) -> &str {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return "" };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.text[start as usize..end as usize]
    }

    /// The kind of token `id`; an id outside the vocabulary is `Unused`.
    pub(super) fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Unused)
    }

    /// Gives token `id` another kind.
    pub(super) fn set_kind(&mut self, id: u32, kind: TokenKind) {
        if let Some(slot) = self.kinds.get_mut(id as usize) {
            *slot = kind;
        }
    }

    /// All ids of one of `kinds`, ascending.
    pub(super) fn ids_of_kind(&self, kinds: &[TokenKind]) -> Vec<u32> {
        (0..self.len() as u32).filter(|&id| kinds.contains(&self.kind(id))).collect()
    }

    /// The id of the token written exactly `piece`; the lowest where several are.
    pub(super) fn id_of(&self, piece: &str) -> Option<u32> {
        if piece.is_empty() || piece.len() > self.longest {
            return None;
        }
        let index = self.index.get_or_init(|| PieceIndex::build(self));
        index.get(self, piece)
    }

    /// The bytes of text that token `id` stands for. A control token's are its name.
    pub(super) fn bytes(&self, id: u32) -> Cow<'_, [u8]> {
        let piece = self.piece(id);
        match (self.kind(id), self.spelling) {
            (TokenKind::Byte, _) => match byte_token(piece) {
                Some(byte) => Cow::Owned(vec![byte]),
                None => Cow::Borrowed(piece.as_bytes()),
            },
            (TokenKind::Normal, Spelling::Metaspace) if piece.contains(METASPACE) => {
                Cow::Owned(piece.replace(METASPACE, " ").into_bytes())
            }
            (TokenKind::Normal, Spelling::ByteLevel) => match byte_level::unspell(piece) {
                Some(bytes) => Cow::Owned(bytes),
                None => Cow::Borrowed(piece.as_bytes()),
            },
            _ => Cow::Borrowed(piece.as_bytes()),
        }
    }
}

/// The byte that a token spelled `<0xE2>` stands for.
pub(super) fn byte_token(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hex = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if is_hex { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// Open-addressed hash table from a token's text to its id. It stores ids only; the texts are
/// compared where they stand in the vocabulary.
struct PieceIndex {
    /// Ids, `FREE` where empty; the length is a power of two, at least twice the tokens.
    slots: Vec<u32>,
    seed: u64,
}

const FREE: u32 = u32::MAX;

impl PieceIndex {
    fn build(vocabulary: &Vocabulary) -> PieceIndex {
        // A random seed, so that no file can be made to collide.
        let seed = RandomState::new().build_hasher().finish();
        let len = (vocabulary.len() * 2).next_power_of_two();
        let mut index = PieceIndex { slots: vec![FREE; len], seed };
        for id in 0..vocabulary.len() as u32 {
            let piece = vocabulary.piece(id);
            if piece.is_empty() {
                continue;
            }
            let slot = index.find(vocabulary, piece);
            if index.slots[slot] == FREE {
                index.slots[slot] = id;
            }
        }
        index
    }

    fn get(&self, vocabulary: &Vocabulary, piece: &str) -> Option<u32> {
        let id = self.slots[self.find(vocabulary, piece)];
        (id != FREE).then_some(id)
    }

    /// The slot that holds `piece`, or the free one where it would go.
    fn find(&self, vocabulary: &Vocabulary, piece: &str) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = hash(self.seed, piece.as_bytes()) as usize & mask;
        loop {
            let id = self.slots[slot];
            if id == FREE || vocabulary.piece(id) == piece {
                return slot;
            }
            slot = (slot + 1) & mask;
        }
    }
}

/// A multiply-and-fold hash of short strings, eight bytes a step.
fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let mut state = seed ^ (bytes.len() as u64).wrapping_mul(FOLD);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        state = fold(state ^ u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    fold(state ^ u64::from_le_bytes(last))
}

const FOLD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Multiplies to 128 bits and folds the halves: every input bit reaches the low output bits.
pub(super) fn fold(x: u64) -> u64 {
    let product = u128::from(x ^ 0xA076_1D64_78BD_642F) * u128::from(FOLD);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(spelling: Spelling, pieces: &[(&str, TokenKind)]) -> Vocabulary {
        let mut v = Vocabulary::new(spelling, pieces.len());
        for &(piece, kind) in pieces {
            v.push(piece, kind).unwrap();
        }
        v
    }

    #[test]
    fn texts_and_ids_agree() {
        let pieces: Vec<String> = (0..5000).map(|i| format!("tok{i}")).collect();
        let mut v = Vocabulary::new(Spelling::Metaspace, 0);
        for p in &pieces {
            v.push(p, TokenKind::Normal).unwrap();
        }
        for (id, p) in pieces.iter().enumerate() {
            assert_eq!(v.piece(id as u32), p);
            assert_eq!(v.id_of(p), Some(id as u32));
        }
        assert_eq!(v.id_of("tok5000"), None);
        assert_eq!(v.id_of(""), None);
        assert_eq!(v.piece(5000), "");
    }

    #[test]
    fn the_lowest_of_equal_tokens_is_found() {
        let v = vocabulary(
            Spelling::Metaspace,
            &[("a", TokenKind::Normal), ("b", TokenKind::Normal), ("a", TokenKind::Normal)],
        );
        assert_eq!(v.id_of("a"), Some(0));
    }

    #[test]
    fn bytes_follow_kind_and_spelling() {
        let v = vocabulary(
            Spelling::Metaspace,
            &[
                ("▁a▁", TokenKind::Normal),
                ("<0xE2>", TokenKind::Byte),
                ("▁", TokenKind::UserDefined),
                ("<0xE2>", TokenKind::Normal),
                ("<0xé>", TokenKind::Byte),
            ],
        );
        assert_eq!(&*v.bytes(0), b" a ");
        assert_eq!(&*v.bytes(1), [0xE2]);
        assert_eq!(&*v.bytes(2), "▁".as_bytes());
        assert_eq!(&*v.bytes(3), b"<0xE2>");
        assert_eq!(&*v.bytes(4), "<0xé>".as_bytes());
        let v = vocabulary(
            Spelling::ByteLevel,
            &[("Ġa", TokenKind::Normal), ("a b", TokenKind::Normal), ("Ġ", TokenKind::Control)],
        );
        assert_eq!(&*v.bytes(0), b" a");
        assert_eq!(&*v.bytes(1), b"a b");
        assert_eq!(&*v.bytes(2), "Ġ".as_bytes());
    }
}
