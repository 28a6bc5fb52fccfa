//! The generation loop on tiny random models: what is handed out, where it ends, what is left in
//! the state.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::ops::ControlFlow;

use larql_checkpoint::tokenizer::EncodeOptions;
use larql_compute::Cpu;
use larql_inference::sample::{Sampler, SamplerOptions};
use larql_inference::{
    CacheOptions, Finish, GenerateOptions, Generated, InferenceError, KvDtype, Model, NoHooks,
    Overflow, State,
};
use larql_vindex::Vindex;
use support::{cpu, models, options, vindex};

/// A tiny model, extracted.
struct Tiny {
    vindex: Vindex,
    cpu: Cpu,
    _dir: tempfile::TempDir,
}

impl Tiny {
    fn new(family: &str) -> Tiny {
        let dir = tempfile::tempdir().unwrap();
        let vindex = vindex(&models().join(family).join("hf"), dir.path());
        Tiny { vindex, cpu: cpu(2), _dir: dir }
    }

    fn model(&self) -> Model<'_> {
        Model::load(&self.vindex, &self.cpu).unwrap()
    }

    fn tokens(&self, text: &str) -> Vec<u32> {
        self.vindex.tokenizer().unwrap().encode(text, EncodeOptions::PROMPT).unwrap()
    }
}

fn greedy() -> Sampler {
    Sampler::new(SamplerOptions::default()).unwrap()
}

/// Draws widely, so that random models write all kinds of tokens.
fn drawing(seed: u64) -> Sampler {
    let options = SamplerOptions {
        temperature: 1.5,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed,
        ..SamplerOptions::default()
    };
    Sampler::new(options).unwrap()
}

fn tokens(n: usize) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(n), ends: false, ..GenerateOptions::default() }
}

/// What was generated, and the pieces in which its text came.
fn run(
    model: &Model<'_>,
    state: &mut State,
    mut sampler: Sampler,
    prompt: &[u32],
    options: &GenerateOptions,
) -> Result<(Generated, Vec<String>), InferenceError> {
    let mut pieces = Vec::new();
    let generated =
        model.generate(state, &mut sampler, prompt, options, &mut NoHooks, &mut |piece| {
            pieces.push(piece.to_owned());
            ControlFlow::Continue(())
        })?;
    assert_eq!(pieces.concat(), generated.text, "pieces are the text");
    Ok((generated, pieces))
}

#[test]
fn equal_seeds_draw_equal_tokens() {
    let tiny = Tiny::new("llama");
    let model = tiny.model();
    let prompt = tiny.tokens("the cat sat");
    let draw = |seed| {
        let mut state = model.state(options(96, KvDtype::F32)).unwrap();
        run(&model, &mut state, drawing(seed), &prompt, &tokens(40)).unwrap().0.tokens
    };
    let first = draw(7);
    assert_eq!(first.len(), 40);
    assert_eq!(draw(7), first);
    assert_ne!(draw(8), first);
}

#[test]
fn text_comes_in_whole_characters() {
    let tiny = Tiny::new("qwen3");
    let (model, tokenizer) = (tiny.model(), tiny.vindex.tokenizer().unwrap());
    let prompt = tiny.tokens("a");
    let mut held = 0;
    for seed in 0..20 {
        let mut state = model.state(options(96, KvDtype::F32)).unwrap();
        let (generated, pieces) =
            run(&model, &mut state, drawing(seed), &prompt, &tokens(60)).unwrap();
        let both: Vec<u32> = prompt.iter().chain(&generated.tokens).copied().collect();
        let whole = tokenizer.decode(&both);
        assert_eq!(format!("{}{}", tokenizer.decode(&prompt), generated.text), whole);
        // A piece for the prompt, one for each token, one for what was left.
        let of_tokens = &pieces[1..=generated.tokens.len()];
        for (&token, piece) in generated.tokens.iter().zip(of_tokens) {
            held += usize::from(piece.is_empty() && !tokenizer.token_bytes(token).is_empty());
        }
    }
    assert!(held > 20, "random bytes are seldom whole characters: {held}");
}

#[test]
fn stop_strings_never_leak() {
    let tiny = Tiny::new("llama");
    let model = tiny.model();
    let prompt = tiny.tokens("the cat sat");
    let free = {
        let mut state = model.state(options(128, KvDtype::F32)).unwrap();
        run(&model, &mut state, drawing(3), &prompt, &tokens(60)).unwrap().0
    };
    // Any three characters of the text in turn as the stop string.
    let chars: Vec<char> = free.text.chars().collect();
    for stop in chars.windows(3).step_by(5) {
        let stop: String = stop.iter().collect();
        let options = GenerateOptions { stops: vec![stop.clone()], ..tokens(60) };
        let mut state = model.state(support::options(128, KvDtype::F32)).unwrap();
        let (generated, _) = run(&model, &mut state, drawing(3), &prompt, &options).unwrap();
        assert_eq!(generated.finish, Finish::Stop(stop.clone()));
        assert_eq!(generated.text, free.text[..free.text.find(&stop).unwrap()], "{stop:?}");
        assert!(free.tokens.starts_with(&generated.tokens));
    }
    // What is only the beginning of a stop string is handed out at the end.
    let stop = format!("{}☃", chars.last().unwrap());
    let options = GenerateOptions { stops: vec![stop], ..tokens(60) };
    let mut state = model.state(support::options(128, KvDtype::F32)).unwrap();
    let (generated, _) = run(&model, &mut state, drawing(3), &prompt, &options).unwrap();
    assert_eq!((generated.text, generated.finish), (free.text, Finish::Length));
    let empty = GenerateOptions { stops: vec![String::new()], ..tokens(1) };
    let error = run(&model, &mut state, greedy(), &prompt, &empty).unwrap_err();
    assert!(error.to_string().contains("stop string"), "{error}");
}

#[test]
fn a_token_that_ends_generation_ends_it_and_is_not_text() {
    let tiny = Tiny::new("llama");
    let (model, tokenizer) = (tiny.model(), tiny.vindex.tokenizer().unwrap());
    let prompt = tiny.tokens("the cat sat");
    let ends = GenerateOptions { max_tokens: Some(400), ..GenerateOptions::default() };
    let mut seen = 0;
    for seed in 0..20 {
        let mut state = model.state(options(512, KvDtype::F32)).unwrap();
        let (generated, _) = run(&model, &mut state, drawing(seed), &prompt, &ends).unwrap();
        assert!(!generated.tokens.iter().any(|&token| tokenizer.ends_generation(token)));
        assert!(!generated.text.contains("</s>"), "{}", generated.text);
        let Finish::End(token) = generated.finish else { continue };
        assert!(tokenizer.ends_generation(token));
        assert!(generated.tokens.len() < 400);
        seen += 1;
    }
    assert!(seen > 5, "one token in 293 ends it: {seen}");
}

#[test]
fn a_full_context_ends_the_text_or_forgets() {
    let tiny = Tiny::new("gemma3");
    let model = tiny.model();
    let prompt = tiny.tokens("the cat sat on");
    let cache = |context, overflow| CacheOptions { context, kv: KvDtype::F32, overflow };
    let room = prompt.len() + 10;
    let mut state = model.state(cache(room, Overflow::Error)).unwrap();
    let (full, _) = run(&model, &mut state, greedy(), &prompt, &tokens(40)).unwrap();
    // The context holds the prompt and ten tokens; an eleventh was chosen and not run.
    assert_eq!((full.finish, full.tokens.len(), state.len()), (Finish::Context, 11, room));
    // A prompt that does not fit is refused before anything is run.
    let long = prompt.repeat(10);
    let mut state = model.state(cache(room, Overflow::Error)).unwrap();
    let error = run(&model, &mut state, greedy(), &long, &tokens(1)).unwrap_err();
    let (context, held, asked) = (room, 0, long.len());
    assert!(
        matches!(error, InferenceError::ContextFull { context: c, held: h, asked: a }
            if (c, h, a) == (context, held, asked)),
        "{error}"
    );
    assert!(state.is_empty());

    let mut state = model.state(cache(room, Overflow::Shift)).unwrap();
    let (shifted, _) = run(&model, &mut state, greedy(), &prompt, &tokens(40)).unwrap();
    assert_eq!((shifted.finish, shifted.tokens.len()), (Finish::Length, 40));
    assert_eq!(shifted.tokens[..11], full.tokens[..], "until it is full nothing differs");
    assert!(state.forgotten() > 0 && state.len() <= room);
    // What is left is as if the forgotten part had never been there.
    let kept = state.tokens().to_vec();
    assert_eq!(kept[0], prompt[0]);
    let mut again = model.state(cache(room, Overflow::Error)).unwrap();
    model.feed(&mut again, &kept).unwrap();
    assert_logits_agree(&model, &mut state, &mut again);
}

#[test]
fn a_truncated_text_goes_on_as_one_that_was_never_longer() {
    for family in ["llama", "gemma3", "deepseek2", "gpt2"] {
        let tiny = Tiny::new(family);
        let model = tiny.model();
        let prompt = tiny.tokens("the cat sat on the mat and the dog ran");
        // GPT-2's positions are learned, and here only 48.
        let options = options(model.config().context_length.min(64), KvDtype::F32);
        let mut state = model.state(options).unwrap();
        run(&model, &mut state, greedy(), &prompt, &tokens(10)).unwrap();
        for len in [prompt.len() + 5, prompt.len(), 3, 1] {
            assert_eq!(state.truncate(len), len, "{family}");
            let rest = tiny.tokens("then it slept");
            model.feed(&mut state, &rest).unwrap();
            let mut again = model.state(options).unwrap();
            let all: Vec<u32> = state.tokens().to_vec();
            assert_eq!(all.len(), len + rest.len());
            model.feed(&mut again, &all).unwrap();
            assert_logits_agree(&model, &mut state, &mut again);
        }
    }
}

#[test]
fn a_window_that_went_round_can_be_truncated_a_little() {
    // The windowed layers of this model hold 576 positions.
    let tiny = Tiny::new("gemma3");
    let model = tiny.model();
    let text: Vec<u32> = (0..1700).map(|i| 2 + (i * i * 7 + i) % 280).collect();
    let mut state = model.state(options(2000, KvDtype::F32)).unwrap();
    model.feed(&mut state, &text[..1400]).unwrap();
    assert_eq!(state.truncate(1200), 1200);
    model.feed(&mut state, &text[1300..1600]).unwrap();
    let mut again = model.state(options(2000, KvDtype::F32)).unwrap();
    let all = [&text[..1200], &text[1300..1600]].concat();
    assert_eq!(state.tokens(), all);
    model.feed(&mut again, &all).unwrap();
    assert_logits_agree(&model, &mut state, &mut again);
    // Further back the window has lost what it would see: the text has to be run again.
    assert_eq!(state.truncate(700), 0);
    assert!(state.is_empty());
    state.reset();
    model.feed(&mut state, &all[..700]).unwrap();
    let mut again = model.state(options(2000, KvDtype::F32)).unwrap();
    model.feed(&mut again, &all[..700]).unwrap();
    assert_logits_agree(&model, &mut state, &mut again);
}

#[test]
fn the_callback_ends_it() {
    let tiny = Tiny::new("llama");
    let model = tiny.model();
    let prompt = tiny.tokens("the cat sat");
    for after in [0, 1, 5] {
        let mut state = model.state(options(96, KvDtype::F32)).unwrap();
        let mut calls = 0;
        let generated = model
            .generate(&mut state, &mut greedy(), &prompt, &tokens(40), &mut NoHooks, &mut |_| {
                calls += 1;
                if calls > after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        assert_eq!((generated.finish, generated.tokens.len()), (Finish::Cancelled, after));
    }
}

/// Logits of two states of the same text, which may have been run in other batches.
fn assert_logits_agree(model: &Model<'_>, a: &mut State, b: &mut State) {
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    model.logits(a, &mut found).unwrap();
    model.logits(b, &mut expected).unwrap();
    let worst = support::difference(&found, &expected);
    assert!(worst < 1e-4, "{worst:e}");
}
