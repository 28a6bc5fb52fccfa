//! GGUF metadata from a tokenizer, so that llama.cpp reads a model that larql wrote.

use super::from_gguf::{
    ADD_BOS, ADD_EOS, BOS, EOS, MERGES, MODEL, PAD, PRE, SCORES, SPACE_PREFIX, TEMPLATE, TOKENS,
    TYPES, UNKNOWN,
};
use super::from_json::JsonEngine;
use super::json_file::Merges;
use super::vocabulary::{Spelling, TokenKind};
use super::{Engine, Tokenizer, TokenizerFault, detect};
use crate::CheckpointError;
use crate::gguf::Metadata;

impl Tokenizer {
    /// The `tokenizer.*` keys of a GGUF file with this tokenizer, for a model whose embedding has
    /// `rows` rows (rows beyond the vocabulary become `[PAD<id>]` tokens: llama.cpp wants one
    /// token a row). A tokenizer that came from a GGUF gives back its own keys.
    ///
    /// Of a `tokenizer.json` with SentencePiece-like merges, a token's score is minus the place
    /// of the first merge that makes it. That is the order in which SentencePiece's own scores
    /// stand, and it makes llama.cpp's ids equal to Hugging Face's on all text whose ids do not
    /// hang on which of two ways makes the same token.
    ///
    /// # Errors
    /// [`TokenizerFault::NotExpressible`] where llama.cpp has no such tokenizer: an unknown
    /// pre-tokeniser, a normaliser other than NFC, another model than BPE, or more tokens than
    /// rows.
    pub fn to_gguf_metadata(&self, rows: usize) -> Result<Metadata, CheckpointError> {
        let mut out = Metadata::new();
        match &self.engine {
            Engine::Gguf(engine) => {
                let own = engine.metadata.iter().filter(|(key, _)| key.starts_with("tokenizer."));
                own.for_each(|(key, value)| out.set(key, value));
            }
            Engine::Json(engine) => {
                let merges = engine.merges()?;
                self.write_json(engine, &merges, rows, &mut out)
                    .map_err(|fault| self.fault(fault))?;
            }
        }
        Ok(out)
    }

    fn write_json(
        &self,
        engine: &JsonEngine,
        merges: &Merges,
        rows: usize,
        out: &mut Metadata,
    ) -> Result<(), TokenizerFault> {
        let tokens = self.vocab_size();
        if rows < tokens {
            let reason = format!("it has {tokens} tokens, but the embedding only {rows} rows");
            return Err(TokenizerFault::NotExpressible { reason });
        }
        let refuse = |reason: &str| TokenizerFault::NotExpressible { reason: reason.to_owned() };
        if !engine.is_bpe {
            return Err(refuse("its model is not BPE"));
        }
        if merges.len() == 0 {
            return Err(refuse("its model has no merges"));
        }
        let ids = 0..rows as u32;
        let kinds: Vec<i32> = ids.clone().map(|id| self.kind(id).to_gguf()).collect();
        let pieces = ids.map(|id| match self.vocabulary.piece(id) {
            "" => format!("[PAD{id}]"),
            piece => piece.to_owned(),
        });
        match self.vocabulary.spelling() {
            Spelling::ByteLevel => {
                let pre = detect::byte_level(engine)?;
                out.set(MODEL, "gpt2");
                out.set(PRE, pre);
                out.set_strings(TOKENS, pieces);
                out.set_array(TYPES, &kinds);
                // A merge is written with a space between its halves: one inside a half is
                // spelled as bytes are.
                let joined = (0..merges.len()).map(|place| {
                    let (left, right) = merges.halves(place);
                    format!("{} {}", left.replace(' ', "Ġ"), right.replace(' ', "Ġ"))
                });
                out.set_strings(MERGES, joined);
            }
            Spelling::Metaspace => {
                detect::metaspace(engine)?;
                out.set(MODEL, "llama");
                out.set(PRE, "default");
                out.set_strings(TOKENS, pieces);
                out.set_array(SCORES, &self.scores(merges, rows));
                out.set_array(TYPES, &kinds);
                out.set(SPACE_PREFIX, self.space_prefix);
            }
        }
        let special = self.special;
        let roles = [(BOS, special.bos), (EOS, special.eos), (PAD, special.pad)];
        // Where the configuration names no unknown token, the vocabulary may.
        let unknown = || self.vocabulary.ids_of_kind(&[TokenKind::Unknown]).first().copied();
        let unknown = (UNKNOWN, special.unknown.or_else(unknown));
        for (key, id) in roles.into_iter().chain([unknown]) {
            if let Some(id) = id {
                out.set(key, id);
            }
        }
        out.set(ADD_BOS, self.add_bos);
        out.set(ADD_EOS, self.add_eos);
        if let Some(template) = &self.chat_template {
            out.set(TEMPLATE, template.as_str());
        }
        Ok(())
    }

    /// The score of every row's token: minus the place of the first merge that makes it. Tokens
    /// that no merge makes come after all others.
    fn scores(&self, merges: &Merges, rows: usize) -> Vec<f32> {
        // Exact in f32 up to 2^24 merges, far above any vocabulary's.
        let mut scores = vec![-(merges.len() as f32); rows];
        // From the last on, so that the first one's word stays.
        for place in (0..merges.len()).rev() {
            if let Some(id) = self.id_of(merges.joined(place)) {
                scores[id as usize] = -(place as f32);
            }
        }
        scores
    }
}
