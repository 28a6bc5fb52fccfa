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
    // Harmony's and Solar's "<|end|>" ends a message, not the answer.
    let has = |text: &str| ends.iter().any(|&id| vocabulary.piece(id) == text);
    let messages = has("<|return|>") && has("<|call|>") || has("<|calls|>") && has("<|flush|>");
    if messages {
        let end_of_message = ends.iter().copied().find(|&id| vocabulary.piece(id) == "<|end|>");
        if let Some(end) = end_of_message {
            vocabulary.set_kind(end, TokenKind::UserDefined);
            ends.retain(|&id| id != end);
        }
    }
    ends.retain(|&id| (id as usize) < vocabulary.len());
    ends.sort_unstable();
    ends.dedup();
    ends
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
    fn a_metadata_key_goes_before_texts() {
        let mut v = Vocabulary::new(Spelling::Metaspace, 2);
        v.push("<PAD>", TokenKind::Normal).unwrap();
        v.push("x", TokenKind::Normal).unwrap();
        let ends = mark(&mut v, |key| (key == "tokenizer.ggml.fim_pad_token_id").then_some(1));
        assert_eq!(ends, [1]);
        assert_eq!(v.kind(0), TokenKind::Normal);
    }
}
