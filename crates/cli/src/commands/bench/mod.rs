//! `larql bench VINDEX`: where every millisecond and every megabyte goes; and how good the answers
//! are (`--perplexity`, `--ffn-sweep`).

mod evaluate;
mod report;

use std::fs;
use std::path::Path;

use larql_checkpoint::tokenizer::EncodeOptions;
use larql_compute::bandwidth;
use larql_inference::{CacheOptions, Model, Overflow, Workload};

use self::report::{BackendRow, Benched, CacheRow, Detail};
use crate::args::{Backend, Bench, ffn_name};
use crate::context::Context;
use crate::error::{Diagnostic, Failure};
use crate::memory;
use crate::session::Session;

/// What stands before the prompt to make it long: the text that planes are calibrated with.
const FILLER: &str = include_str!("../../../assets/calibration.txt");
/// Tokens of the prompt unless `--prompt-tokens` says otherwise.
const PROMPT_TOKENS: usize = 512;
/// Tokens at the prompt's end that are run to warm up.
const WARM_PROMPT: usize = 32;
/// Bytes of a text to evaluate: more than a day's work.
const MAX_TEXT: u64 = 64 << 20;

pub(crate) fn run(args: &Bench, context: &Context) -> Result<(), Failure> {
    let session = Session::open(&args.vindex, context)?;
    if args.quality.ffn_sweep {
        return evaluate::sweep(args, &session, context);
    }
    if let Some(text) = &args.quality.perplexity {
        return evaluate::perplexity(args, text, &session, context);
    }
    context.emit(&speed(args, &session, context)?)
}

/// The model's speed on every backend.
fn speed(args: &Bench, session: &Session<'_>, context: &Context) -> Result<Benched, Failure> {
    let mut model = Model::load(&session.vindex, &session.cpu)?;
    model.set_ffn_mode(args.ffn)?;
    let tokens = args.tokens.get();
    let prompt = prompt(args, session, context)?;
    let workload = Workload {
        prompt: &prompt,
        warm_prompt: WARM_PROMPT.min(prompt.len()),
        warmup: args.warmup,
        tokens,
    };
    let mut rows = Vec::new();
    for backend in &args.backends {
        let Backend::Cpu = backend;
        let mut state = model.state(CacheOptions {
            context: workload.context(),
            kv: args.kv,
            overflow: Overflow::Error,
        })?;
        let measured = model.measure(&mut state, workload)?;
        let mut row = BackendRow::new(backend.name(), prompt.len(), &measured);
        // Before the buffer that measures the bandwidth, which is none of the model's.
        row.peak_memory_bytes = memory::peak_resident_bytes();
        row.set_bandwidth(bandwidth::measure(&session.cpu, bandwidth::buffer_bytes()));
        if args.verbose {
            let mut residency = session.vindex.residency()?;
            residency.heap.extend(model.heap());
            residency.heap.extend(state.heap());
            let caches = CacheRow::of(&residency);
            row.detail = Some(Detail::new(&measured, residency, caches, row.bandwidth_gb_s));
        }
        rows.push(row);
    }
    Ok(Benched {
        vindex: args.vindex.display().to_string(),
        family: model.config().family.to_string(),
        kernels: session.cpu.isa().name(),
        threads: session.cpu.threads(),
        kv: args.kv.to_string(),
        ffn: ffn_name(args.ffn),
        tokens,
        warmup: args.warmup,
        backends: rows,
    })
}

/// The tokens of the prompt, with as much of another text before it as was asked for.
fn prompt(args: &Bench, session: &Session<'_>, context: &Context) -> Result<Vec<u32>, Failure> {
    let tokenizer = session.tokenizer()?;
    let trained = session.vindex.config().context_length;
    let own = tokenizer.encode(&args.prompt, EncodeOptions::PROMPT)?;
    let fits = trained.saturating_sub(args.tokens.get() + 1);
    let asked = args.prompt_tokens.unwrap_or(PROMPT_TOKENS.min(fits).max(own.len()));
    if asked + args.tokens.get() >= trained {
        context.remark(&format!(
            "the model was trained on contexts of {trained} tokens; beyond, it says less sensible things"
        ));
    }
    let Some(missing) = asked.checked_sub(own.len()).filter(|_| !own.is_empty()) else {
        return Err(Diagnostic::new(format!(
            "a prompt of {asked} tokens was asked for, but the text of --prompt has {}",
            own.len()
        ))
        .at("--prompt-tokens")
        .help("a shorter --prompt, or more --prompt-tokens")
        .into());
    };
    // After a BOS, where the model wants one, and ending where the filler ends, so that the prompt
    // begins a paragraph of its own.
    let filler =
        tokenizer.encode(&format!("{}\n\n", FILLER.trim_end()), EncodeOptions::FRAGMENT)?;
    let bos = usize::from(tokenizer.add_bos() && own.first().copied() == tokenizer.bos());
    let skipped = (filler.len() - missing % filler.len()) % filler.len();
    let filler = filler.iter().cycle().skip(skipped).take(missing);
    Ok(own[..bos].iter().chain(filler).chain(&own[bos..]).copied().collect())
}

/// The text of a file.
fn read_text(path: &Path) -> Result<String, Failure> {
    let told = |what: String| Diagnostic::new(what).at_path(path);
    let size = fs::metadata(path).map(|file| file.len());
    let size = size.map_err(|error| told(format!("the text cannot be read: {error}")))?;
    if size > MAX_TEXT {
        return Err(told(format!("the text has {size} bytes; {MAX_TEXT} are the most")).into());
    }
    let bytes =
        fs::read(path).map_err(|error| told(format!("the text cannot be read: {error}")))?;
    String::from_utf8(bytes)
        .map_err(|error| told(format!("the text is not UTF-8: {}", error.utf8_error())).into())
}
