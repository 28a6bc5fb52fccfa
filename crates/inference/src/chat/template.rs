//! `ChatTemplate`: a Jinja template in the environment that Hugging Face gives chat templates.

use jiff::Zoned;
use larql_checkpoint::tokenizer::{EncodeOptions, TokenKind, Tokenizer};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value, context};
use serde::Serialize;

use super::python;
use crate::InferenceError;

const NAME: &str = "chat_template";
/// Instructions that a rendering may take, where 64 bytes of new text count as one: a template from
/// a file can neither run for ever nor fill the memory.
const FUEL: u64 = 4_000_000;

/// What one side said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message of that role.
    pub fn new(role: &str, content: impl Into<String>) -> Message {
        Message { role: role.to_owned(), content: content.into() }
    }

    fn value(&self) -> Value {
        Value::from_pairs([("role", self.role.as_str()), ("content", self.content.as_str())])
    }
}

/// A chat template, ready to render.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    tokens: TokenNames,
}

/// The names of tokens that templates may write.
#[derive(Debug, Default)]
pub(super) struct TokenNames {
    pub(super) bos: String,
    pub(super) eos: String,
    /// Undefined in the template, where the model has none.
    pub(super) unknown: Option<String>,
    pub(super) pad: Option<String>,
}

impl ChatTemplate {
    /// The model's own template.
    ///
    /// # Errors
    /// [`InferenceError::NoChatTemplate`] where it has none; a template that is no Jinja.
    pub fn of(tokenizer: &Tokenizer) -> Result<ChatTemplate, InferenceError> {
        let source = tokenizer.chat_template().ok_or(InferenceError::NoChatTemplate)?;
        Self::new(source, tokenizer)
    }

    /// A template from elsewhere.
    ///
    /// # Errors
    /// A template that is no Jinja.
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate, InferenceError> {
        let name = |id: Option<u32>| id.map(|id| tokenizer.piece(id).to_owned());
        let tokens = TokenNames {
            bos: name(tokenizer.bos()).unwrap_or_default(),
            eos: name(tokenizer.eos()).unwrap_or_default(),
            unknown: name(tokenizer.unknown()),
            pad: name(tokenizer.pad()),
        };
        Self::with_tokens(source, tokens)
    }

    /// A template with the names of a model's tokens.
    pub(super) fn with_tokens(
        source: &str,
        tokens: TokenNames,
    ) -> Result<ChatTemplate, InferenceError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| fault("cannot be read", &error))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", |value: Value, options| python::to_json(&value, options));
        environment.add_test("iterable", |value: Value| python::is_iterable(&value));
        environment.add_test("sequence", |value: Value| python::is_sequence(&value));
        environment.add_test("number", |value: Value| python::is_number(&value));
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |format: String| strftime(&format, &Zoned::now()));
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|error| fault("is no Jinja that larql reads", &error))?;
        Ok(ChatTemplate { environment, tokens })
    }

    /// The clock that `strftime_now` asks.
    #[cfg(test)]
    pub(super) fn set_now(&mut self, now: Zoned) {
        let at = move |format: String| strftime(&format, &now);
        self.environment.add_function("strftime_now", at);
    }

    /// The text of a conversation; with `answer`, up to where the assistant's answer begins.
    ///
    /// # Errors
    /// What the template refuses, in its own words.
    pub fn render(&self, messages: &[Message], answer: bool) -> Result<String, InferenceError> {
        let context = context! {
            messages => messages.iter().map(Message::value).collect::<Value>(),
            // Hugging Face always names these two; templates ask whether they are none.
            tools => Value::from(()),
            documents => Value::from(()),
            add_generation_prompt => answer,
            bos_token => &self.tokens.bos,
            eos_token => &self.tokens.eos,
            unk_token => self.tokens.unknown.as_deref(),
            pad_token => self.tokens.pad.as_deref(),
        };
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render(context))
            .map_err(|error| fault("refuses this conversation", &error))
    }

    /// The tokens of a conversation, up to where the answer begins. Control tokens of the template
    /// are read as such; the same names inside a message stay text, so that a message cannot close
    /// its own turn.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`], and those of the tokenizer.
    pub fn encode(
        &self,
        messages: &[Message],
        tokenizer: &Tokenizer,
    ) -> Result<Vec<u32>, InferenceError> {
        // Before every name of a control token in a message goes a mark, by which it is found
        // again in the rendered text.
        let mark = unused(messages);
        let marked: Vec<Message> =
            messages.iter().map(|message| marked(message, mark, tokenizer)).collect();
        let rendered = self.render(&marked, true)?;
        let mut text = String::with_capacity(rendered.len());
        let mut quoted = Vec::new();
        for c in rendered.chars() {
            if c == mark { quoted.push(text.len()) } else { text.push(c) }
        }
        Ok(tokenizer.encode_quoting(&text, &quoted, EncodeOptions::TEMPLATE)?)
    }

    /// What ends an answer in this template: the names of the control tokens that follow one, at
    /// the end of a conversation and before the next turn. Where none follows, the text that does
    /// so in both places; where that is none too, the line that begins the next turn. Empty where
    /// nothing tells, or the template cannot be asked.
    pub fn ends_of_answer(&self, tokenizer: &Tokenizer) -> Vec<String> {
        const ANSWER: &str = "\u{fdd1}answer\u{fdd1}";
        const NEXT: &str = "\u{fdd2}question\u{fdd2}";
        let mut messages =
            vec![Message::new("user", "question"), Message::new("assistant", ANSWER)];
        let after = |messages: &[Message]| {
            let text = self.render(messages, false).ok()?;
            Some(text.rsplit_once(ANSWER)?.1.to_owned())
        };
        let Some(last) = after(&messages) else { return Vec::new() };
        messages.push(Message::new("user", NEXT));
        let next = after(&messages).unwrap_or_else(|| last.clone());
        let next = next.split_once(NEXT).map_or(next.as_str(), |(before, _)| before);
        let mut ends: Vec<String> = Vec::new();
        for text in [last.as_str(), next] {
            let options = EncodeOptions { add_special: false, parse_special: true };
            let tokens = tokenizer.encode(text.trim_start(), options).unwrap_or_default();
            if let Some(&first) = tokens.first()
                && tokenizer.kind(first) == TokenKind::Control
            {
                ends.push(tokenizer.piece(first).to_owned());
            }
        }
        ends.dedup();
        if !ends.is_empty() {
            return ends;
        }
        let line = last.trim_start().lines().next().unwrap_or_default().trim_end();
        if !line.is_empty() && next.trim_start().starts_with(line) {
            return vec![line.to_owned()];
        }
        // Only a line of its own can be told from the same words within an answer.
        let line = next.trim();
        let begins = !line.is_empty() && next.starts_with('\n');
        begins.then(|| format!("\n{line}")).into_iter().collect()
    }
}

/// A character that no message holds: one of the 32 that Unicode keeps free for such use, or of the
/// private ones beyond.
fn unused(messages: &[Message]) -> char {
    let free = |c: &char| messages.iter().all(|message| !message.content.contains(*c));
    let mut candidates = ('\u{fdd0}'..='\u{fdef}').chain('\u{f0000}'..='\u{ffffd}');
    candidates.find(free).unwrap_or('\u{fdd0}')
}

/// The message with `mark` before every name of a control token.
fn marked(message: &Message, mark: char, tokenizer: &Tokenizer) -> Message {
    let mut content = String::with_capacity(message.content.len());
    let mut done = 0;
    for start in tokenizer.control_tokens_in(&message.content) {
        content.push_str(&message.content[done..start]);
        content.push(mark);
        done = start;
    }
    content.push_str(&message.content[done..]);
    Message { role: message.role.clone(), content }
}

/// `{% generation %}` marks what a model is trained on and prints nothing; it becomes a condition
/// that always holds.
fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag)) = rest.split_once("{%") {
        text.push_str(before);
        text.push_str("{%");
        let Some((inside, after)) = tag.split_once("%}") else {
            rest = tag;
            continue;
        };
        let name = inside.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        match name {
            "generation" => text.push_str(&inside.replace(name, "if true")),
            "endgeneration" => text.push_str(&inside.replace(name, "endif")),
            _ => text.push_str(inside),
        }
        text.push_str("%}");
        rest = after;
    }
    text.push_str(rest);
    text
}

fn strftime(format: &str, now: &Zoned) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, now)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

fn fault(what: &'static str, error: &Error) -> InferenceError {
    let why = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let line = error.line().map_or(String::new(), |line| format!(" (line {line} of it)"));
    InferenceError::ChatTemplate { what, why: why + &line }
}
