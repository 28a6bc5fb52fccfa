//! What the commands that look at a forward pass share: the text, a model, one token, a drawing.

use std::path::Path;

use larql_checkpoint::tokenizer::EncodeOptions;
use larql_compute::{Order, TopK};
use larql_inference::Model;
use larql_vindex::VindexError;

use crate::context::Context;
use crate::error::{Diagnostic, Failure};
use crate::render::units;
use crate::session::{Session, TokenRow};

/// The tokens of a text as the model reads it, with the BOS that it wants.
pub(super) fn prompt(session: &Session<'_>, text: &str) -> Result<Vec<TokenRow>, Failure> {
    if text.is_empty() {
        return Err(Diagnostic::new("a text is needed, and this one is empty").into());
    }
    let tokenizer = session.tokenizer()?;
    let ids = tokenizer.encode(text, EncodeOptions::PROMPT)?;
    if ids.is_empty() {
        return Err(Diagnostic::new("the text has no tokens: there is nothing to read").into());
    }
    Ok(ids.into_iter().map(|id| TokenRow { id, text: tokenizer.token_text(id) }).collect())
}

pub(super) fn ids(tokens: &[TokenRow]) -> Vec<u32> {
    tokens.iter().map(|token| token.id).collect()
}

/// The model of a session.
pub(super) fn load<'a>(session: &'a Session<'_>) -> Result<Model<'a>, Failure> {
    Ok(Model::load(&session.vindex, &session.cpu)?)
}

/// A position of the text.
pub(super) fn position(tokens: &[TokenRow], asked: Option<usize>) -> Result<usize, Failure> {
    let last = tokens.len().saturating_sub(1);
    match asked {
        Some(position) if position > last => {
            let what = format!("position {position} does not exist: the text has 0 to {last}");
            Err(Diagnostic::new(what).at("--position").note(numbered(tokens)).into())
        }
        asked => Ok(asked.unwrap_or(last)),
    }
}

/// The tokens with their positions.
pub(super) fn numbered(tokens: &[TokenRow]) -> String {
    let each = tokens.iter().enumerate();
    let each = each.map(|(i, token)| format!("{i} {}", units::token(&token.text)));
    each.collect::<Vec<_>>().join(" | ")
}

/// The one token of a word as it stands inside a sentence.
pub(super) fn one_token(
    session: &Session<'_>,
    word: &str,
    flag: &str,
) -> Result<TokenRow, Failure> {
    let tokens = session.word(word)?;
    match <[TokenRow; 1]>::try_from(tokens) {
        Ok([token]) => Ok(token),
        Err(tokens) => {
            let pieces: Vec<_> = tokens.iter().map(|token| units::token(&token.text)).collect();
            let what = format!(
                "{word:?} is {} tokens of this model ({}), and a logit belongs to one",
                tokens.len(),
                pieces.join(" | ")
            );
            let first = tokens.first().map_or("", |token| token.text.trim());
            Err(Diagnostic::new(what)
                .at(flag)
                .help(format!("give the first of them, {flag} {first:?}, or another word"))
                .into())
        }
    }
}

/// Writes a drawing, in place of one that is there.
pub(super) fn write_svg(path: &Path, svg: &str, context: &Context) -> Result<(), Failure> {
    larql_vindex::replace_file(path, svg.as_bytes()).map_err(|error| match error {
        VindexError::Option { .. } => Failure::from(
            Diagnostic::new("a file name is needed").at(format!("--svg {}", path.display())),
        ),
        error => error.into(),
    })?;
    context.remark(&format!("drawn: {}", path.display()));
    Ok(())
}

/// The token with the highest logit.
pub(super) fn best(logits: &[f32]) -> Result<u32, Failure> {
    let mut top = TopK::new(1, Order::Signed);
    for (token, &logit) in logits.iter().enumerate() {
        top.push(token, logit)?;
    }
    Ok(top.into_sorted().first().map_or(0, |best| best.row as u32))
}
