//! The rows of `larql bench`, and how they are drawn.

use std::io;
use std::time::Duration;

use larql_inference::{Measured, Operation, Profile};
use larql_vindex::{HeadPath, Residency};
use serde::Serialize;

use crate::render::{Column, Page, Report, Table, units};

/// Derived files: caches that are mapped.
const DERIVED: [&str; 3] = ["down_features", "down_meta", "lm_head_planes"];

/// What was run, and what it took on every backend.
#[derive(Serialize)]
pub(super) struct Benched {
    pub(super) vindex: String,
    pub(super) family: String,
    pub(super) kernels: &'static str,
    pub(super) threads: usize,
    /// How keys and values were stored.
    pub(super) kv: String,
    /// The FFN mode.
    pub(super) ffn: String,
    /// Tokens timed.
    pub(super) tokens: usize,
    /// Tokens generated before, untimed.
    pub(super) warmup: usize,
    pub(super) backends: Vec<BackendRow>,
}

/// One backend.
#[derive(Serialize)]
pub(super) struct BackendRow {
    backend: &'static str,
    /// What the model said.
    text: String,
    prefill: Prefill,
    /// From the end of the prompt to the first token.
    first_token_ms: f64,
    decode: Decode,
    lm_head: LmHead,
    /// Bytes of weights read for a token, LM head included; keys and values are not.
    weight_bytes_per_token: f64,
    /// These bytes over the mean time of a token.
    gb_s: f64,
    /// What the machine reads at most, measured in the same run with the same threads.
    pub(super) bandwidth_gb_s: f64,
    /// `gb_s / bandwidth_gb_s`; above 1 only where the caches hold the weights.
    bandwidth_share: f64,
    /// The most physical memory that the process had, mapped weights included; `null` where the
    /// system does not say.
    pub(super) peak_memory_bytes: Option<u64>,
    #[serde(flatten)]
    pub(super) detail: Option<Detail>,
}

#[derive(Serialize)]
struct Prefill {
    tokens: usize,
    /// How often it was run; the median counts.
    runs: usize,
    ms: f64,
    tokens_per_second: f64,
}

/// Milliseconds a token.
#[derive(Serialize)]
struct Decode {
    tokens: usize,
    mean_ms: f64,
    p50_ms: f64,
    p99_ms: f64,
    tokens_per_second: f64,
    /// The parts of `mean_ms`: all blocks and norms, the LM head, sampling, and the rest (turning
    /// tokens to text).
    forward_ms: f64,
    lm_head_ms: f64,
    sampling_ms: f64,
    other_ms: f64,
}

/// How the LM head found the tokens; either way exactly those of a brute force.
#[derive(Serialize)]
struct LmHead {
    /// Tokens found through the planes.
    by_planes: u64,
    /// Tokens found by reading every row.
    by_scan: u64,
    bytes_per_token: f64,
    exact: bool,
}

/// What `-v` adds.
#[derive(Serialize)]
pub(super) struct Detail {
    /// Of the decoded tokens, a token.
    decode_operations: Vec<OperationRow>,
    /// Of the whole prompt.
    prefill_operations: Vec<OperationRow>,
    caches: Vec<CacheRow>,
    residency: Residency,
}

#[derive(Serialize)]
struct OperationRow {
    operation: &'static str,
    ms: f64,
    /// Of all operations' time.
    share: f64,
    bytes: f64,
    gb_s: f64,
    bandwidth_share: f64,
}

/// Something that is kept to save time.
#[derive(Serialize)]
pub(super) struct CacheRow {
    name: String,
    bytes: u64,
    /// Physical memory that it has now, where it is a mapped file.
    resident: Option<u64>,
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn rate(tokens: usize, time: Duration) -> f64 {
    tokens as f64 / time.as_secs_f64().max(1e-9)
}

impl BackendRow {
    pub(super) fn new(backend: &'static str, prompt: usize, measured: &Measured) -> BackendRow {
        let profile = &measured.decode_profile;
        let tokens = measured.steps.len();
        let each = |time: Duration| ms(time) / tokens.max(1) as f64;
        let head = profile.time(Operation::LmHead);
        let forward = profile.total().saturating_sub(head);
        let (mean_ms, sampling_ms) = (each(measured.decode()), each(measured.sampling));
        let weight_bytes_per_token = profile.weight_bytes() as f64 / tokens.max(1) as f64;
        BackendRow {
            backend,
            text: measured.text.clone(),
            prefill: Prefill {
                tokens: prompt,
                runs: measured.prefills.len(),
                ms: ms(measured.prefill()),
                tokens_per_second: rate(prompt, measured.prefill()),
            },
            first_token_ms: ms(measured.first),
            decode: Decode {
                tokens,
                mean_ms,
                p50_ms: ms(measured.step_percentile(50.0)),
                p99_ms: ms(measured.step_percentile(99.0)),
                tokens_per_second: rate(tokens, measured.decode()),
                forward_ms: each(forward),
                lm_head_ms: each(head),
                sampling_ms,
                other_ms: (mean_ms - each(forward) - each(head) - sampling_ms).max(0.0),
            },
            lm_head: LmHead {
                by_planes: profile.head_answers(HeadPath::Planes),
                by_scan: profile.head_answers(HeadPath::Scan),
                bytes_per_token: profile.bytes(Operation::LmHead) as f64 / tokens.max(1) as f64,
                exact: true,
            },
            weight_bytes_per_token,
            gb_s: weight_bytes_per_token / mean_ms.max(1e-9) / 1e6,
            bandwidth_gb_s: 0.0,
            bandwidth_share: 0.0,
            peak_memory_bytes: None,
            detail: None,
        }
    }

    pub(super) fn set_bandwidth(&mut self, gb_s: f64) {
        self.bandwidth_gb_s = gb_s;
        self.bandwidth_share = self.gb_s / gb_s;
    }
}

impl Detail {
    pub(super) fn new(
        measured: &Measured,
        residency: Residency,
        caches: Vec<CacheRow>,
        bandwidth: f64,
    ) -> Detail {
        let tokens = measured.steps.len();
        Detail {
            decode_operations: operations(&measured.decode_profile, tokens, bandwidth),
            prefill_operations: operations(
                &measured.prefill_profile,
                measured.prefills.len(),
                bandwidth,
            ),
            caches,
            residency,
        }
    }
}

/// The operations that took any time, each divided by `n`.
fn operations(profile: &Profile, n: usize, bandwidth: f64) -> Vec<OperationRow> {
    let n = n.max(1) as f64;
    let total = profile.total().as_secs_f64().max(1e-9);
    let row = |operation: Operation| {
        let (time, bytes) = (profile.time(operation), profile.bytes(operation) as f64);
        let gb_s = bytes / time.as_secs_f64().max(1e-9) / 1e9;
        OperationRow {
            operation: operation.name(),
            ms: ms(time) / n,
            share: time.as_secs_f64() / total,
            bytes: bytes / n,
            gb_s,
            bandwidth_share: gb_s / bandwidth,
        }
    };
    let ran = Operation::ALL.into_iter().filter(|&o| !profile.time(o).is_zero());
    ran.map(row).collect()
}

impl CacheRow {
    /// The mapped derived files, and everything on the heap that a model keeps.
    pub(super) fn of(residency: &Residency) -> Vec<CacheRow> {
        let mapped = residency.roles.iter().filter(|role| DERIVED.contains(&&*role.role));
        let mapped = mapped.map(|role| CacheRow {
            name: role.role.clone(),
            bytes: role.mapped,
            resident: Some(role.resident),
        });
        let heap = residency.heap.iter().map(|heap| CacheRow {
            name: heap.owner.to_owned(),
            bytes: heap.bytes,
            resident: None,
        });
        mapped.chain(heap).collect()
    }
}

impl Report for Benched {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.line(&format!(
            "{} ({}), {} kernels, {} {}; ffn {}, keys and values {}; {} tokens after {} to warm up",
            self.vindex,
            self.family,
            self.kernels,
            self.threads,
            if self.threads == 1 { "thread" } else { "threads" },
            self.ffn,
            self.kv,
            self.tokens,
            self.warmup,
        ))?;
        let mut table = Table::new([
            Column::text("backend"),
            Column::number("prompt"),
            Column::number("prefill ms"),
            Column::number("tok/s"),
            Column::number("ms/token"),
            Column::number("p50"),
            Column::number("p99"),
            Column::number("tok/s"),
            Column::number("forward"),
            Column::number("LM head"),
            Column::number("sampling"),
            Column::number("peak memory"),
        ]);
        for row in &self.backends {
            let decode = &row.decode;
            table.row([
                row.backend.to_owned(),
                row.prefill.tokens.to_string(),
                format!("{:.0}", row.prefill.ms),
                format!("{:.1}", row.prefill.tokens_per_second),
                format!("{:.2}", decode.mean_ms),
                format!("{:.2}", decode.p50_ms),
                format!("{:.2}", decode.p99_ms),
                format!("{:.2}", decode.tokens_per_second),
                format!("{:.2}", decode.forward_ms),
                format!("{:.2}", decode.lm_head_ms),
                format!("{:.3}", decode.sampling_ms),
                row.peak_memory_bytes.map_or("-".to_owned(), units::bytes),
            ]);
        }
        page.table(&table)?;
        self.backends.iter().try_for_each(|row| row.draw(page))
    }
}

impl BackendRow {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.line("")?;
        let head = match (self.lm_head.by_planes, self.lm_head.by_scan) {
            (_, 0) => "through the planes, exact".to_owned(),
            (0, _) => "every row, exact".to_owned(),
            (planes, scans) => {
                format!("through the planes {planes} times, every row {scans} times; exact")
            }
        };
        page.fields(&[
            ("said", format!("{:?}", beginning(&self.text))),
            (
                "weights read",
                format!("{} a token", units::bytes(self.weight_bytes_per_token as u64)),
            ),
            (
                "of them LM head",
                format!("{}, {head}", units::bytes(self.lm_head.bytes_per_token as u64)),
            ),
            (
                "bandwidth",
                format!(
                    "{:.2} GB/s, {} of the {:.2} GB/s that the same threads read in this run",
                    self.gb_s,
                    units::percent(self.bandwidth_share),
                    self.bandwidth_gb_s
                ),
            ),
        ])?;
        self.detail.as_ref().map_or(Ok(()), |detail| detail.draw(page))
    }
}

impl Detail {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.heading("Operations, a token")?;
        page.table(&operations_table(&self.decode_operations))?;
        page.heading("Operations, the prompt")?;
        page.table(&operations_table(&self.prefill_operations))?;
        page.heading("Caches and tables")?;
        let mut table = Table::new([
            Column::text("name"),
            Column::number("bytes"),
            Column::number("resident"),
            Column::text("where"),
        ]);
        for cache in &self.caches {
            table.row([
                cache.name.clone(),
                units::bytes(cache.bytes),
                cache.resident.map_or("-".to_owned(), units::bytes),
                if cache.resident.is_some() { "mapped" } else { "heap" }.to_owned(),
            ]);
        }
        page.table(&table)?;
        self.residency.draw(page)
    }
}

/// The first words of a text.
fn beginning(text: &str) -> &str {
    let end = text.char_indices().nth(80).map_or(text.len(), |(end, _)| end);
    &text[..end]
}

fn operations_table(rows: &[OperationRow]) -> Table {
    let mut table = Table::new([
        Column::text("operation"),
        Column::number("ms"),
        Column::number("share"),
        Column::number("bytes"),
        Column::number("GB/s"),
        Column::number("of bandwidth"),
    ]);
    for row in rows {
        let read = row.bytes > 0.0;
        let of = |text: String| if read { text } else { "-".to_owned() };
        table.row([
            row.operation.to_owned(),
            format!("{:.3}", row.ms),
            units::percent(row.share),
            of(units::bytes(row.bytes as u64)),
            of(format!("{:.2}", row.gb_s)),
            of(units::percent(row.bandwidth_share)),
        ]);
    }
    table
}
