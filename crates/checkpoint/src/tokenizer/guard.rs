//! Text in which some control tokens are meant and others are only quoted.
//!
//! A chat template writes control tokens, and so may the person whose message stands inside it.
//! The first are the frame of the conversation; the second must stay text, or a message could
//! close its own turn and speak as somebody else.

use super::special::{Fragment, SpecialMatcher};
use super::{EncodeOptions, Engine, TokenKind, Tokenizer};
use crate::CheckpointError;

impl Tokenizer {
    /// Every byte of `text` at which the name of a control token begins, ascending.
    pub fn control_tokens_in(&self, text: &str) -> Vec<usize> {
        self.controls().starts_in(text)
    }

    /// The token ids of `text`, as [`encode`](Tokenizer::encode), except that no control token is
    /// read at the bytes `quoted` (ascending): there its name is plain text.
    ///
    /// # Errors
    /// As [`encode`](Tokenizer::encode).
    pub fn encode_quoting(
        &self,
        text: &str,
        quoted: &[usize],
        options: EncodeOptions,
    ) -> Result<Vec<u32>, CheckpointError> {
        if quoted.is_empty() || !options.parse_special {
            return self.encode(text, options);
        }
        self.encode_by(text, options, |out| {
            for fragment in self.controls().split_except(text, quoted) {
                match fragment {
                    Fragment::Token(id) => out.push(id),
                    Fragment::Text(range) => self.encode_plain(&text[range], false, out)?,
                }
            }
            Ok(())
        })
    }

    /// Finds control tokens only.
    fn controls(&self) -> &SpecialMatcher {
        self.controls.get_or_init(|| {
            let ids = self.vocabulary.ids_of_kind(&[TokenKind::Control, TokenKind::Unknown]);
            match &self.engine {
                Engine::Gguf(engine) => engine.matcher_of(&self.vocabulary, &ids),
                Engine::Json(_) => SpecialMatcher::new(&self.vocabulary, &ids, |_| false),
            }
        })
    }
}
