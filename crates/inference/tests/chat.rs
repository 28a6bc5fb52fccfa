//! Conversations with tiny random models: what is run again, what is forgotten, what is taken back.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::ops::ControlFlow;

use larql_compute::Cpu;
use larql_inference::chat::{Answer, ChatTemplate, Conversation, Message};
use larql_inference::sample::{Sampler, SamplerOptions};
use larql_inference::{
    CacheOptions, Finish, GenerateOptions, InferenceError, KvDtype, Model, Overflow, State,
};
use larql_vindex::Vindex;
use support::{cpu, difference, models, vindex};

const TEMPLATE: &str = "\
{% for message in messages %}
<{{ message.role }}> {{ message.content | trim }}
{% endfor %}
{% if add_generation_prompt %}
<assistant>{% endif %}";

struct Tiny {
    vindex: Vindex,
    cpu: Cpu,
    _dir: tempfile::TempDir,
}

fn tiny(family: &str) -> Tiny {
    let dir = tempfile::tempdir().unwrap();
    let vindex = vindex(&models().join(family).join("hf"), dir.path());
    Tiny { vindex, cpu: cpu(2), _dir: dir }
}

impl Tiny {
    fn model(&self) -> Model<'_> {
        Model::load(&self.vindex, &self.cpu).unwrap()
    }

    fn template(&self) -> ChatTemplate {
        ChatTemplate::new(TEMPLATE, self.vindex.tokenizer().unwrap()).unwrap()
    }
}

fn state(model: &Model<'_>, context: usize, overflow: Overflow) -> State {
    model.state(CacheOptions { context, kv: KvDtype::F32, overflow }).unwrap()
}

/// Asks, and generates at most so many tokens.
fn ask(
    conversation: &mut Conversation,
    text: &str,
    model: &Model<'_>,
    state: &mut State,
    max_tokens: usize,
) -> Result<Answer, InferenceError> {
    let options = GenerateOptions { max_tokens: Some(max_tokens), ..GenerateOptions::default() };
    ask_for(conversation, text, (model, state), &options)
}

fn ask_for(
    conversation: &mut Conversation,
    text: &str,
    (model, state): (&Model<'_>, &mut State),
    options: &GenerateOptions,
) -> Result<Answer, InferenceError> {
    let draws = SamplerOptions { temperature: 1.0, seed: 5, ..SamplerOptions::default() };
    let mut sampler = Sampler::new(draws).unwrap();
    let all = &mut |_: &str| ControlFlow::Continue(());
    conversation.ask(text, (model, state), &mut sampler, options, all)
}

#[test]
fn a_cached_conversation_equals_one_that_is_run_anew() {
    for family in ["llama", "gemma3", "deepseek2", "qwen3moe"] {
        let tiny = tiny(family);
        let model = tiny.model();
        let mut cached = state(&model, 600, Overflow::Error);
        let mut conversation = Conversation::new(tiny.template());
        conversation.set_system("be kind");
        for (turn, question) in ["the cat", "and then?", "why", "why not?"].iter().enumerate() {
            let before = cached.len();
            let answer = ask(&mut conversation, question, &model, &mut cached, 12).unwrap();
            // The whole prompt, run at once in an empty state.
            let asked = conversation.messages().len() - 1;
            let prompt = tiny.template();
            let prompt = prompt
                .encode(&conversation.messages()[..asked], tiny.vindex.tokenizer().unwrap())
                .unwrap();
            assert_eq!(answer.cached + answer.generated.prompt_tokens, prompt.len(), "{family}");
            if turn > 0 {
                // All but what the end of an answer may be spelled by.
                assert!(answer.cached * 2 > before, "{family}: {} of {before}", answer.cached);
            }
            let mut anew = state(&model, 600, Overflow::Error);
            model.feed(&mut anew, &prompt).unwrap();
            cached.truncate(prompt.len());
            // The last position again: truncating forgets its hidden state.
            let last = [prompt[prompt.len() - 1]];
            cached.truncate(prompt.len() - 1);
            model.feed(&mut cached, &last).unwrap();
            assert_eq!(cached.tokens(), prompt);
            let (mut found, mut expected) = (Vec::new(), Vec::new());
            model.logits(&mut cached, &mut found).unwrap();
            model.logits(&mut anew, &mut expected).unwrap();
            let worst = difference(&found, &expected);
            assert!(worst < 1e-4, "{family}, turn {turn}: {worst:e}");
            // And the answer of a conversation without a cache is the same.
            let mut other = Conversation::new(tiny.template());
            other.set_system("be kind");
            replay(&mut other, &conversation, &model);
            let mut anew = state(&model, 600, Overflow::Error);
            let again = ask(&mut other, question, &model, &mut anew, 12).unwrap();
            assert_eq!(again.generated.tokens, answer.generated.tokens, "{family}");
            model.feed(&mut cached, &answer.generated.tokens).unwrap();
        }
    }
}

/// Says again what `from` holds before its last question, each turn in a state of its own.
fn replay(into: &mut Conversation, from: &Conversation, model: &Model<'_>) {
    let messages = from.messages();
    for turn in messages[1..messages.len() - 2].chunks(2) {
        let mut fresh = state(model, 600, Overflow::Error);
        ask(into, &turn[0].content, model, &mut fresh, 12).unwrap();
        assert_eq!(into.messages().last(), Some(&turn[1]));
    }
}

#[test]
fn a_full_context_is_an_error_or_the_oldest_turns_are_forgotten() {
    let tiny = tiny("llama");
    let model = tiny.model();
    let mut full = state(&model, 100, Overflow::Error);
    let mut conversation = Conversation::new(tiny.template());
    conversation.set_system("be kind");
    let mut error = None;
    for _ in 0..20 {
        match ask(&mut conversation, "the cat sat", &model, &mut full, 6) {
            Ok(answer) => assert_ne!(answer.generated.finish, Finish::Context),
            Err(found) => {
                error = Some(found);
                break;
            }
        }
    }
    let said = conversation.messages().len();
    assert!(matches!(error, Some(InferenceError::ContextFull { context: 100, .. })), "{error:?}");
    assert_eq!(said % 2, 1, "the question was taken back");

    let mut shifting = state(&model, 100, Overflow::Shift);
    let mut conversation = Conversation::new(tiny.template());
    conversation.set_system("be kind");
    let mut forgotten = 0;
    for turn in 0..20 {
        let answer = ask(&mut conversation, "the cat sat", &model, &mut shifting, 6).unwrap();
        assert_ne!(answer.generated.finish, Finish::Context);
        forgotten += answer.forgotten_turns;
        assert!(forgotten <= turn && shifting.len() <= 100);
    }
    assert!(forgotten > 10, "{forgotten}");
    assert_eq!(conversation.messages().len(), 41, "they are still known");
    let system = tiny.template().render(&conversation.messages()[..1], false).unwrap();
    let held = tiny.vindex.tokenizer().unwrap().decode(shifting.tokens());
    assert!(held.trim_start().starts_with(system.trim()), "{held:?}");

    // An answer that outgrows the context goes on after the oldest turns are gone; one that is
    // alone cannot.
    let mut conversation = Conversation::new(tiny.template());
    let mut shifting = state(&model, 100, Overflow::Shift);
    ask(&mut conversation, "the cat sat", &model, &mut shifting, 30).unwrap();
    let on = |n| GenerateOptions { max_tokens: n, ends: false, ..GenerateOptions::default() };
    let long = ask_for(&mut conversation, "and", (&model, &mut shifting), &on(Some(70))).unwrap();
    assert_eq!((long.forgotten_turns, &long.generated.finish), (1, &Finish::Length));
    assert_eq!(long.generated.tokens.len(), 70);
    let question = [Message::new("user", "and")];
    let mut left = tiny.template().encode(&question, tiny.vindex.tokenizer().unwrap()).unwrap();
    left.extend(&long.generated.tokens[..69]);
    assert_eq!(shifting.tokens(), left, "as if there had been this question alone");
    let mut alone = Conversation::new(tiny.template());
    let alone = ask_for(&mut alone, "and", (&model, &mut shifting), &on(None)).unwrap();
    assert_eq!((alone.generated.finish, shifting.len()), (Finish::Context, 100));
    let question = "the cat sat on the mat ".repeat(20);
    let mut conversation = Conversation::new(tiny.template());
    let error = ask(&mut conversation, &question, &model, &mut shifting, 6).unwrap_err();
    assert!(matches!(error, InferenceError::ContextFull { .. }), "{error}");
    assert!(conversation.messages().is_empty());
}

#[test]
fn an_answer_that_is_ended_is_kept_as_far_as_it_went() {
    let tiny = tiny("llama");
    let model = tiny.model();
    let mut text = state(&model, 100, Overflow::Error);
    let mut conversation = Conversation::new(tiny.template());
    let mut sampler = Sampler::new(SamplerOptions::default()).unwrap();
    let options = GenerateOptions { ends: false, ..GenerateOptions::default() };
    for after in [0, 8] {
        let mut calls = 0;
        let answer =
            conversation.ask("the cat", (&model, &mut text), &mut sampler, &options, &mut |_| {
                calls += 1;
                if calls > after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        let answer = answer.unwrap().generated;
        assert_eq!((answer.finish, answer.tokens.len()), (Finish::Cancelled, after));
        let kept = if after == 0 {
            vec![]
        } else {
            vec![Message::new("user", "the cat"), Message::new("assistant", answer.text)]
        };
        assert_eq!(conversation.messages(), kept);
    }
    conversation.set_system("be kind");
    conversation.set_system("be brief");
    assert_eq!(conversation.messages().len(), 3);
    conversation.reset();
    assert_eq!(conversation.messages(), [Message::new("system", "be brief")]);
    conversation.set_system("");
    assert!(conversation.messages().is_empty());
}
