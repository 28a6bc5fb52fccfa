//! `larql chat VINDEX`: a conversation with the model.

mod input;
mod line;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use larql_checkpoint::tokenizer::Tokenizer;
use larql_inference::chat::{Answer, ChatTemplate, Conversation};
use larql_inference::sample::Sampler;
use larql_inference::{Finish, GenerateOptions, InferenceError, Model, State};
use serde::Serialize;

use self::input::{Input, Next};
use self::line::{HELP, Line};
use super::generate::{self, GeneratedRow, Stream};
use crate::args::{Chat, ContextArg};
use crate::context::Context;
use crate::error::{Diagnostic, Failure};
use crate::interrupt;
use crate::session::Session;

/// Bytes of a template: the longest published ones have some ten thousand.
const MAX_TEMPLATE: u64 = 1 << 20;

pub(crate) fn run(args: &Chat, context: &Context) -> Result<(), Failure> {
    let (sampler, seed) = generate::sampler(&args.sampling)?;
    let session = Session::open(&args.vindex, context)?;
    let template = template(args.template.as_deref(), session.tokenizer()?)?;
    let (model, state) = generate::load(&session, &args.running, context)?;
    let mut conversation = Conversation::new(template);
    conversation.set_system(args.system.as_deref().unwrap_or_default());
    let options = GenerateOptions {
        max_tokens: args.tokens,
        stops: args.sampling.stop.clone(),
        ..GenerateOptions::default()
    };
    let mut input = Input::new(context)?;
    if input.is_person() {
        context.remark("Ctrl-C ends a reply, Ctrl-D the chat; /help lists commands");
    }
    let mut chat = Chatting {
        context,
        session: &session,
        model,
        state,
        sampler,
        seed,
        options,
        conversation,
        flag: args.running.context,
        saved: None,
    };
    loop {
        let line = match input.next()? {
            Next::End => return Ok(()),
            Next::Interrupt => {
                context.remark("Ctrl-D or /exit ends the chat");
                continue;
            }
            Next::Line(line) => line,
        };
        let done = Line::read(&line).and_then(|line| chat.obey(line));
        interrupt::unwatch();
        match done {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            // A person is told and goes on; a script has to know at once.
            Err(failure) if input.is_person() && !matches!(failure, Failure::BrokenPipe) => {
                failure.report(context.style_of_stderr());
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// The model's template, or that of a file.
fn template(file: Option<&Path>, tokenizer: &Tokenizer) -> Result<ChatTemplate, Failure> {
    let Some(path) = file else { return Ok(ChatTemplate::of(tokenizer)?) };
    let told = |what: String| Diagnostic::new(what).at_path(path);
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|f| f.take(MAX_TEMPLATE + 1).read_to_end(&mut bytes));
    read.map_err(|error| told(format!("the template cannot be read: {error}")))?;
    if bytes.len() as u64 > MAX_TEMPLATE {
        return Err(told(format!("more than {MAX_TEMPLATE} bytes are too many")).into());
    }
    let text = String::from_utf8(bytes)
        .map_err(|error| told(format!("the template is not UTF-8: {}", error.utf8_error())))?;
    ChatTemplate::new(&text, tokenizer).map_err(|error| told(error.to_string()).into())
}

/// A chat under way.
struct Chatting<'a> {
    context: &'a Context,
    session: &'a Session<'a>,
    model: Model<'a>,
    state: State,
    sampler: Sampler,
    seed: Option<u64>,
    options: GenerateOptions,
    conversation: Conversation,
    flag: ContextArg,
    /// The file that this chat wrote, which it may write again.
    saved: Option<PathBuf>,
}

/// An answer, for programs.
#[derive(Serialize)]
struct AnswerRow {
    #[serde(flatten)]
    generated: GeneratedRow,
    /// Tokens of the conversation that were not run again.
    cached_tokens: usize,
    /// Turns that were forgotten to make room.
    forgotten_turns: usize,
}

impl Chatting<'_> {
    /// Does what a line asks for; false where it ends the chat.
    fn obey(&mut self, line: Line) -> Result<bool, Failure> {
        match line {
            Line::Nothing => {}
            Line::Say(text) => self.say(&text)?,
            Line::System(text) => self.conversation.set_system(&text),
            Line::Reset => self.conversation.reset(),
            Line::Save(path) => self.save(path)?,
            // Not a remark, for it was asked for; nor a reply.
            Line::Help => writeln!(std::io::stderr().lock(), "{HELP}")?,
            Line::Exit => return Ok(false),
        }
        Ok(true)
    }

    fn say(&mut self, text: &str) -> Result<(), Failure> {
        let mut stream = Stream::new(self.context);
        interrupt::watch();
        let answer = self
            .conversation
            .ask(
                text,
                (&self.model, &mut self.state),
                &mut self.sampler,
                &self.options,
                &mut |piece| stream.piece(piece),
            )
            .map_err(|error| context_full(error, self.flag))?;
        stream.finish()?;
        let Answer { generated, cached, forgotten_turns } = answer;
        if self.context.json() {
            let row = AnswerRow {
                generated: GeneratedRow::new(&generated, self.session, self.seed)?,
                cached_tokens: cached,
                forgotten_turns,
            };
            self.context.emit_line(&row)?;
        }
        match forgotten_turns {
            0 => {}
            1 => self.context.remark("the context is full: the oldest turn was forgotten"),
            n => self
                .context
                .remark(&format!("the context is full: the {n} oldest turns were forgotten")),
        }
        generate::figures(&generated, self.seed, self.context);
        match generated.finish {
            Finish::Cancelled => Err(Failure::Cancelled("the reply is unfinished".to_owned())),
            Finish::Context => {
                let (context, held) = (self.state.context(), self.state.len());
                let full = InferenceError::ContextFull { context, held, asked: 1 };
                Err(context_full(full, self.flag))
            }
            Finish::End(_) | Finish::Stop(_) | Finish::Length => Ok(()),
        }
    }

    /// Writes the messages, as the APIs of chat services have them.
    fn save(&mut self, path: PathBuf) -> Result<(), Failure> {
        let told = |error: std::io::Error| {
            let told = Diagnostic::new(format!("the conversation cannot be saved: {error}"));
            let exists = error.kind() == std::io::ErrorKind::AlreadyExists;
            let told = told.at_path(&path);
            if exists { told.help("name another file; this one is left as it is") } else { told }
        };
        let mut text = serde_json::to_string_pretty(self.conversation.messages())
            .map_err(|e| told(e.into()))?;
        text.push('\n');
        let again = self.saved.as_ref() == Some(&path);
        let written = match again {
            true => fs::write(&path, &text),
            false => OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&path)
                .and_then(|mut file| file.write_all(text.as_bytes())),
        };
        written.map_err(told)?;
        self.context.remark(&format!(
            "{} messages: {}",
            self.conversation.messages().len(),
            path.display()
        ));
        self.saved = Some(path);
        Ok(())
    }
}

/// A conversation beyond its context, with the flag that helps.
fn context_full(error: InferenceError, flag: ContextArg) -> Failure {
    let InferenceError::ContextFull { context, held, asked } = error else { return error.into() };
    let needed = held + asked;
    let longer = needed.next_power_of_two().max(context.saturating_mul(2));
    let shift = match flag.positions {
        _ if flag.shift => String::new(),
        Some(positions) => {
            format!(", --context {positions},shift to forget the oldest turns, or /reset")
        }
        None => ", --context shift to forget the oldest turns, or /reset".to_owned(),
    };
    let what =
        format!("the conversation needs {needed} tokens or more, and the context has {context}");
    let help = format!("--context {longer} for a longer one{shift}");
    Diagnostic::new(what).at("--context").help(help).into()
}
