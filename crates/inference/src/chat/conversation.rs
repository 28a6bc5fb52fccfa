//! `Conversation`: messages, and the state that has run them.

use std::ops::ControlFlow;

use larql_checkpoint::tokenizer::Tokenizer;

use super::{ChatTemplate, Message};
use crate::generate::Run;
use crate::hooks::NoHooks;
use crate::sample::Sampler;
use crate::{Finish, GenerateOptions, Generated, InferenceError, Model, Overflow, State};

/// A conversation with a model.
#[derive(Debug)]
pub struct Conversation {
    template: ChatTemplate,
    /// All that was said; the system's message, where there is one, is the first.
    messages: Vec<Message>,
    /// How many of the messages after the system's are forgotten.
    forgotten: usize,
}

/// An answer, and what of the conversation had been run before.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The answer. Its `prompt_tokens` are those that were run.
    pub generated: Generated,
    /// Tokens of the conversation that were still in the state and not run again.
    pub cached: usize,
    /// Turns (a question with its answer) that were forgotten to make room for this answer.
    pub forgotten_turns: usize,
}

impl Conversation {
    /// An empty one.
    pub fn new(template: ChatTemplate) -> Conversation {
        Conversation { template, messages: Vec::new(), forgotten: 0 }
    }

    /// What was said so far, what is forgotten included.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Forgets what was said, except the system's message.
    pub fn reset(&mut self) {
        self.messages.truncate(self.system());
        self.forgotten = 0;
    }

    /// Puts a system message first, in place of one that is there; an empty text takes it away.
    pub fn set_system(&mut self, text: &str) {
        self.messages.drain(..self.system());
        if !text.is_empty() {
            self.messages.insert(0, Message::new("system", text));
        }
    }

    /// Says `text` and generates the answer; `piece` is called as by [`Model::generate`]. Of the
    /// conversation only what `state` does not hold yet is run. A generation that was ended keeps
    /// what it has of the answer; where that is nothing, the question is taken back.
    ///
    /// A conversation beyond the context is an error, or, where the state was made with
    /// [`Overflow::Shift`], its oldest turns are forgotten until it takes no more than half of the
    /// context. The system's message and the question stay.
    ///
    /// # Errors
    /// What the template refuses, [`InferenceError::ContextFull`], and those of
    /// [`Model::generate`]. The question is then taken back.
    pub fn ask(
        &mut self,
        text: &str,
        (model, state): (&Model<'_>, &mut State),
        sampler: &mut Sampler,
        options: &GenerateOptions,
        piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, InferenceError> {
        self.messages.push(Message::new("user", text));
        let answer = self.answer((model, state), sampler, options, piece);
        match answer.as_ref().map(|answer| &answer.generated) {
            Ok(said) if said.finish != Finish::Cancelled || !said.text.is_empty() => {
                self.messages.push(Message::new("assistant", said.text.as_str()));
            }
            _ => drop(self.messages.pop()),
        }
        answer
    }

    fn answer(
        &mut self,
        (model, state): (&Model<'_>, &mut State),
        sampler: &mut Sampler,
        options: &GenerateOptions,
        piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, InferenceError> {
        let tokenizer = model.vindex().tokenizer()?;
        let ends = self.template.ends_of_answer(tokenizer);
        let mut options = GenerateOptions { continues: false, ..options.clone() };
        options.stops.extend(ends.iter().cloned());
        let shifts = state.options.overflow == Overflow::Shift;
        let mut run = Run::new(model, &options, piece)?;
        run.hands_back = true;
        let mut forgotten_turns = 0;
        let mut cached = None;
        let finish = loop {
            let made = run.tokens().len();
            // The last token chosen is run by the generation itself.
            let mut tokens = self.template.encode(&self.remembered(), tokenizer)?;
            let full = state.context() - made.min(state.context());
            if tokens.len() >= full {
                let held = state.context().min(tokens.len() + made);
                let asked = tokens.len() + made + 1 - held;
                forgotten_turns += match shifts {
                    true => self.forget(made, state.context(), tokenizer)?,
                    false => 0,
                };
                tokens = self.template.encode(&self.remembered(), tokenizer)?;
                match tokens.len() >= full {
                    true if made > 0 => break Finish::Context,
                    true => {
                        let context = state.context();
                        return Err(InferenceError::ContextFull { context, held, asked });
                    }
                    false => {}
                }
            }
            tokens.extend(run.tokens().iter().take(made.saturating_sub(1)));
            // At least one token is run, for the hidden state that the answer begins from.
            let common = state.tokens().iter().zip(&tokens).take_while(|(a, b)| a == b).count();
            let kept = state.truncate(common.min(tokens.len().saturating_sub(1)));
            if kept == 0 {
                state.reset();
            }
            cached.get_or_insert(kept);
            if run.prefill(state, &tokens[kept..], &mut NoHooks)?.is_break() {
                break Finish::Cancelled;
            }
            match run.decode(state, sampler, &mut NoHooks)? {
                Finish::Context if shifts => {}
                Finish::Stop(name) if ends.contains(&name) => {
                    break match tokenizer.id_of(&name) {
                        Some(id) => Finish::End(id),
                        None => Finish::Stop(name),
                    };
                }
                finish => break finish,
            }
        };
        let generated = run.finish(finish);
        Ok(Answer { generated, cached: cached.unwrap_or(0), forgotten_turns })
    }

    /// 1 where there is a system message, which is then the first.
    fn system(&self) -> usize {
        usize::from(self.messages.first().is_some_and(|message| message.role == "system"))
    }

    /// The messages that the model is shown.
    fn remembered(&self) -> Vec<Message> {
        let (system, rest) = self.messages.split_at(self.system());
        system.iter().chain(&rest[self.forgotten..]).cloned().collect()
    }

    /// Forgets the oldest turns until the conversation and `made` more tokens take no more than
    /// half of the context, or only the question is left. Returns how many turns it were.
    fn forget(
        &mut self,
        made: usize,
        context: usize,
        tokenizer: &Tokenizer,
    ) -> Result<usize, InferenceError> {
        let mut turns = 0;
        loop {
            let rest = &self.messages[self.system() + self.forgotten..];
            let next = rest.iter().skip(1).position(|message| message.role == "user");
            let Some(next) = next else { break };
            self.forgotten += next + 1;
            turns += 1;
            let tokens = self.template.encode(&self.remembered(), tokenizer)?;
            if tokens.len() + made <= context / 2 {
                break;
            }
        }
        Ok(turns)
    }
}
