//! Text from tokens, one after the other.

use std::mem;

use super::{TokenKind, Tokenizer};

/// Turns tokens to text as they come. A token may be half a character: text is handed out as soon
/// as it is whole, and however the tokens are dealt out, all text together is the same.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    tokenizer: &'a Tokenizer,
    /// The first bytes of a character.
    pending: Vec<u8>,
    /// No text has come yet, so that a space at the front is the one that encoding put there.
    at_start: bool,
}

impl<'a> Decoder<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Decoder<'a> {
        Decoder { tokenizer, pending: Vec::new(), at_start: tokenizer.space_prefix }
    }

    /// Appends the text that token `id` completes. Control tokens have none; bytes that are no
    /// UTF-8 become U+FFFD, one for each stretch that could have begun a character.
    pub fn push(&mut self, id: u32, out: &mut String) {
        match self.tokenizer.kind(id) {
            TokenKind::Control | TokenKind::Unknown | TokenKind::Unused => return,
            _ => self.pending.extend_from_slice(&self.tokenizer.token_bytes(id)),
        }
        let bytes = mem::take(&mut self.pending);
        let mut rest = bytes.as_slice();
        loop {
            match str::from_utf8(rest) {
                Ok(text) => {
                    self.emit(text, out);
                    return;
                }
                Err(error) => {
                    let (valid, invalid) = rest.split_at(error.valid_up_to());
                    self.emit(str::from_utf8(valid).unwrap_or_default(), out);
                    let Some(len) = error.error_len() else {
                        self.pending.extend_from_slice(invalid);
                        return;
                    };
                    self.emit("\u{FFFD}", out);
                    rest = &invalid[len..];
                }
            }
        }
    }

    /// Appends what is left at the end of the tokens: U+FFFD for a character that was never
    /// completed.
    pub fn finish(mut self, out: &mut String) {
        if !self.pending.is_empty() {
            self.emit("\u{FFFD}", out);
        }
    }

    fn emit(&mut self, text: &str, out: &mut String) {
        if self.at_start && !text.is_empty() {
            self.at_start = false;
            out.push_str(text.strip_prefix(' ').unwrap_or(text));
        } else {
            out.push_str(text);
        }
    }
}

impl Tokenizer {
    /// A decoder at the beginning of a text.
    pub fn decoder(&self) -> Decoder<'_> {
        Decoder::new(self)
    }

    /// The text of `ids`. Control tokens are left out, and so is the space that encoding puts
    /// first; bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut text = String::new();
        let mut decoder = self.decoder();
        for &id in ids {
            decoder.push(id, &mut text);
        }
        decoder.finish(&mut text);
        text
    }
}
