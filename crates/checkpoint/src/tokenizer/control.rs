//! Tokens that are control tokens by their text, whatever the file says of their type.
//!
//! llama.cpp does not trust a file's token types: it makes every token with one of these texts a
//! control token, which is then neither matched in plain text nor shown in output, and ends
//! generation at some of them. Gemma's HTML tag `</s>` is among them, so that `</s>` in plain
//! text is encoded as characters, where Hugging Face's tokenizer gives the tag's token.

use super::vocabulary::{TokenKind, Vocabulary};

/// Texts at which generation ends.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Never control tokens: parts of a message's frame that users see.
const SHOWN: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// A special token that is found by its text where no metadata key names it.
struct ByText {
    key: &'static str,
    texts: &'static [&'static str],
    ends: bool,
}

/// Fill-in-the-middle tokens.
const BY_TEXT: [ByText; 6] = [
    ByText {
        key: "tokenizer.ggml.fim_pre_token_id",
        texts: &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
        ends: false,
    },
    ByText {
        key: "tokenizer.ggml.fim_suf_token_id",
        texts: &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
        ends: false,
    },
    ByText {
        key: "tokenizer.ggml.fim_mid_token_id",
        texts: &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
        ends: false,
    },
    ByText {
        key: "tokenizer.ggml.fim_pad_token_id",
        texts: &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
        ends: true,
    },
    ByText {
        key: "tokenizer.ggml.fim_rep_token_id",
        texts: &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
        ends: true,
    },
    ByText { key: "tokenizer.ggml.fim_sep_token_id", texts: &["<|file_sep|>"], ends: true },
];

/// Makes the tokens of these texts control tokens and returns those that end generation,
/// ascending. `id_at` gives the id that a metadata key holds.
pub(super) fn mark(vocabulary: &mut Vocabulary, id_at: impl Fn(&str) -> Option<u32>) -> Vec<u32> {
    let mut ends: Vec<u32> = Vec::new();
    let mut found: [Option<u32>; BY_TEXT.len()] = BY_TEXT.map(|role| id_at(role.key));
    let named = found.map(|id| id.is_some());
    for id in 0..vocabulary.len() as u32 {
        let piece = vocabulary.piece(id);
        // All these texts begin with one of four characters: a quick look spares the rest.
        if !piece.starts_with(['<', '[', '_', '▁']) || piece.len() > 32 {
            continue;
        }
        let is_end = ENDS.contains(&piece);
        let is_shown = SHOWN.contains(&piece);
        let role = (0..BY_TEXT.len())
            .find(|&r| found[r].is_none() && !named[r] && BY_TEXT[r].texts.contains(&piece));
        if is_shown {
            vocabulary.set_kind(id, TokenKind::UserDefined);
        } else if is_end || role.is_some() {
            vocabulary.set_kind(id, TokenKind::Control);
        }
        if let Some(role) = role {
            found[role] = Some(id);
        }
        if is_end {
            ends.push(id);
        }
    }
    ends.extend(found.iter().zip(BY_TEXT).filter(|(_, role)| role.ends).filter_map(|(id, _)| *id));
    let keys = ["eos", "eot", "eom"].map(|name| format!("tokenizer.ggml.{name}_token_id"));
    ends.extend(keys.iter().filter_map(|key| id_at(key)));
    if let Some(end) = end_of_message(vocabulary, &ends) {
        vocabulary.set_kind(end, TokenKind::UserDefined);
        ends.retain(|&id| id != end);
    }
    ends.retain(|&id| (id as usize) < vocabulary.len());
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// The tokens that end generation, ascending, where the kinds of a `tokenizer.json` are to be
/// believed: `eos`, and the control tokens of these texts. A model's `generation_config.json` would
/// name some of them, but it seldom comes along with its tokenizer.
pub(super) fn ends(vocabulary: &Vocabulary, eos: Option<u32>) -> Vec<u32> {
    let named = |&id: &u32| ENDS.contains(&vocabulary.piece(id));
    let controls = vocabulary.ids_of_kind(&[TokenKind::Control]);
    let mut ends: Vec<u32> = controls.into_iter().filter(named).chain(eos).collect();
    if let Some(end) = end_of_message(vocabulary, &ends) {
        ends.retain(|&id| id != end);
    }
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// Harmony's and Solar's "<|end|>", which ends a message, not the answer.
fn end_of_message(vocabulary: &Vocabulary, ends: &[u32]) -> Option<u32> {
    let find = |text: &str| ends.iter().copied().find(|&id| vocabulary.piece(id) == text);
    let has = |text: &str| find(text).is_some();
    let messages = has("<|return|>") && has("<|call|>") || has("<|calls|>") && has("<|flush|>");
    if messages { find("<|end|>") } else { None }
}

#[cfg(test)]
mod tests {
    use super::super::vocabulary::Spelling;
    use super::*;

    #[test]
    fn texts_decide() {
        let mut v = Vocabulary::new(Spelling::Metaspace, 8);
        let pieces = ["</s>", "<b>", "<|channel|>", "<PRE>", "<fim-prefix>", "<PAD>", "a"];
        for piece in pieces {
            v.push(piece, TokenKind::UserDefined).unwrap();
        }
        let ends = mark(&mut v, |key| (key == "tokenizer.ggml.eos_token_id").then_some(6));
        assert_eq!(ends, [0, 5, 6]);
        let kinds: Vec<TokenKind> = (0..7).map(|id| v.kind(id)).collect();
        use TokenKind::{Control, UserDefined};
        let expected =
            [Control, UserDefined, UserDefined, Control, UserDefined, Control, UserDefined];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn control_tokens_end_generation_by_their_text() {
        use TokenKind::{Control, Normal, UserDefined};
        let ends_of = |pieces: &[(&str, TokenKind)], eos| {
            let mut v = Vocabulary::new(Spelling::ByteLevel, 8);
            for &(piece, kind) in pieces {
                v.push(piece, kind).unwrap();
            }
            ends(&v, eos)
        };
        let llama = [("<|end_of_text|>", Control), ("a", Normal), ("<|eot_id|>", Control)];
        assert_eq!(ends_of(&llama, Some(0)), [0, 2]);
        let gemma = [("<eos>", Control), ("</s>", UserDefined), ("<end_of_turn>", Control)];
        assert_eq!(ends_of(&gemma, Some(0)), [0, 2], "an HTML tag is no end");
        let harmony = [("<|end|>", Control), ("<|return|>", Control), ("<|call|>", Control)];
        assert_eq!(ends_of(&harmony, Some(1)), [1, 2]);
        assert!(ends_of(&[("a", Normal)], None).is_empty());
    }

    #[test]
    fn a_metadata_key_goes_before_texts() {
        let mut v = Vocabulary::new(Spelling::Metaspace, 2);
        v.push("<PAD>", TokenKind::Normal).unwrap();
        v.push("x", TokenKind::Normal).unwrap();
        let ends = mark(&mut v, |key| (key == "tokenizer.ggml.fim_pad_token_id").then_some(1));
        assert_eq!(ends, [1]);
        assert_eq!(v.kind(0), TokenKind::Normal);
    }
}
