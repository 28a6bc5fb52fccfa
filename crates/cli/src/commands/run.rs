//! `larql run VINDEX PROMPT`: what the model writes after a text.

use std::collections::HashMap;
use std::io::{self, Read};

use larql_checkpoint::tokenizer::EncodeOptions;
use larql_inference::{GenerateOptions, Hooks, NoHooks, Recorder};

use super::generate::{self, GeneratedRow, Stream};
use crate::args::Run;
use crate::context::Context;
use crate::error::{Diagnostic, Failure};
use crate::interrupt;
use crate::session::Session;

/// Bytes of a prompt from stdin: far above every context, and an endless input ends here.
const MAX_PROMPT: u64 = 64 << 20;

pub(crate) fn run(args: &Run, context: &Context) -> Result<(), Failure> {
    let (mut sampler, seed) = generate::sampler(&args.sampling)?;
    let session = Session::open(&args.vindex, context)?;
    let prompt = if args.prompt == "-" { stdin()? } else { args.prompt.clone() };
    let encoding = match args.raw {
        true => EncodeOptions { add_special: false, parse_special: true },
        false => EncodeOptions::PROMPT,
    };
    let prompt = session.tokenizer()?.encode(&prompt, encoding)?;
    if prompt.is_empty() {
        return Err(
            Diagnostic::new("the prompt has no tokens: there is nothing to continue").into()
        );
    }
    let (model, mut state) = generate::load(&session, &args.running, context)?;
    let options = GenerateOptions {
        max_tokens: Some(args.tokens),
        stops: args.sampling.stop.clone(),
        ..GenerateOptions::default()
    };
    let recorder = args.trace.as_ref().map(|path| Recorder::create(path, model.config()));
    let mut recorder = recorder.transpose()?;
    let hooks: &mut dyn Hooks = match &mut recorder {
        Some(recorder) => recorder,
        None => &mut NoHooks,
    };
    let mut stream = Stream::new(context);
    interrupt::watch();
    let generated = model
        .generate(&mut state, &mut sampler, &prompt, &options, hooks, &mut |text| {
            stream.piece(text)
        })
        .map_err(generate::context_full)?;
    stream.finish()?;
    if context.json() {
        context.emit(&GeneratedRow::new(&generated, &session, seed)?)?;
    }
    if let (Some(path), Some(recorder)) = (&args.trace, &recorder) {
        write_trace(recorder, &prompt, &generated.tokens, &session)?;
        context.remark(&format!("residuals: {}", path.display()));
    }
    generate::figures(&generated, seed, context);
    generate::failure(&generated.finish, &state).map_or(Ok(()), Err)
}

/// The residuals, with the tokens that they belong to: the prompt's and all generated ones but the
/// last, which was chosen and never run.
fn write_trace(
    recorder: &Recorder<'_>,
    prompt: &[u32],
    generated: &[u32],
    session: &Session<'_>,
) -> Result<(), Failure> {
    let rows = recorder.positions();
    let ids: Vec<u32> = prompt.iter().chain(generated).copied().take(rows).collect();
    let tokenizer = session.tokenizer()?;
    let texts: Vec<String> = ids.iter().map(|&id| tokenizer.token_text(id)).collect();
    let mut metadata = HashMap::new();
    metadata.insert("tokens".to_owned(), serde_json::json!(ids).to_string());
    metadata.insert("texts".to_owned(), serde_json::json!(texts).to_string());
    Ok(recorder.write(metadata)?)
}

/// All of stdin, without one line break at its end.
fn stdin() -> Result<String, Failure> {
    let told = |what: String| Diagnostic::new(what).at("stdin");
    let mut text = Vec::new();
    let read = io::stdin().lock().take(MAX_PROMPT + 1).read_to_end(&mut text);
    read.map_err(|error| told(format!("the prompt cannot be read: {error}")))?;
    if text.len() as u64 > MAX_PROMPT {
        return Err(told(format!("more than {MAX_PROMPT} bytes are too many for a prompt")).into());
    }
    let mut text = String::from_utf8(text)
        .map_err(|error| told(format!("the prompt is not UTF-8: {}", error.utf8_error())))?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}
