//! `larql describe VINDEX WORD`: the features that write a word.

use std::io;

use larql_compute::{Order, TopK};
use larql_vindex::search::{DescribeOptions, DescribedPart, Hit, Query, WalkOptions};
use serde::Serialize;

use crate::args::{Describe, DescribeQuery};
use crate::context::Context;
use crate::error::{Diagnostic, Failure};
use crate::render::{Column, Page, Report, Table, units};
use crate::session::{HitRow, Session, TokenRow, hits_table, tokens_of, tokens_text};

#[derive(Serialize)]
struct Described {
    word: String,
    /// Features compared with the word.
    searched: usize,
    /// One entry for each distinct token of the word, then, where there are several, one for all together.
    parts: Vec<Part>,
}

/// What the embedding query is worth; said with every answer of that kind.
const EMBEDDING_WORTH: &str = "\
query: embedding, for comparison only. Gate rows that answer to the embedding of the word's last token:
the customary way, which mostly finds rows of large norm that answer to other words as well.";

/// The customary way, for comparison.
#[derive(Serialize)]
struct DescribedByEmbedding {
    word: String,
    /// The token whose embedding asked.
    asked_by: TokenRow,
    query: &'static str,
    /// What the query is worth.
    caveat: &'static str,
    /// By layer, then by size of the score.
    hits: Vec<HitRow>,
}

impl Report for DescribedByEmbedding {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.heading(&tokens_text(std::slice::from_ref(&self.asked_by)))?;
        page.table(&hits_table(&self.hits, "gate · x"))?;
        page.note(self.caveat)
    }
}

#[derive(Serialize)]
struct Part {
    tokens: Vec<TokenRow>,
    /// |cosine| that the strongest of as many random directions would reach.
    chance: f32,
    /// Mean and standard deviation of the cosine over all features searched.
    mean: f32,
    deviation: f32,
    features: Vec<WriterRow>,
}

/// A feature that writes the word, or writes against it.
#[derive(Serialize)]
struct WriterRow {
    /// Its `score` is the cosine of its output direction with the word's unembedding.
    #[serde(flatten)]
    hit: HitRow,
    /// Share of the output that points along the word: cosine squared.
    share: f32,
    /// Standard deviations above the mean of all features.
    sigma: f32,
    /// |cosine| in units of what chance reaches.
    above_chance: f32,
}

pub(crate) fn run(args: &Describe, context: &Context) -> Result<(), Failure> {
    if !(0.0..=1.0).contains(&args.min) {
        let what = format!("{} is no cosine's size: it lies between 0 and 1", args.min);
        return Err(Diagnostic::new(what).at("--min").into());
    }
    let session = Session::open(&args.vindex, context)?;
    let tokens = session.word(&args.word)?;
    if args.query == DescribeQuery::Embedding {
        return by_embedding(args, &session, tokens, context);
    }
    let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
    let options = DescribeOptions {
        layers: args.layers.map(|range| range.resolve(session.vindex.config().n_layers)),
        top: args.top,
        min: args.min,
    };
    let found = session.search().describe(&ids, &options)?;
    let parts = found.parts.into_iter().map(|part| labelled(part, &tokens, &session));
    let parts = parts.collect::<Result<_, Failure>>()?;
    context.emit(&Described { word: args.word.clone(), searched: found.n_features, parts })
}

/// The strongest features of all layers by gate · embedding of the word's last token.
fn by_embedding(
    args: &Describe,
    session: &Session<'_>,
    tokens: Vec<TokenRow>,
    context: &Context,
) -> Result<(), Failure> {
    if args.min != 0.0 {
        let what = "--min is a cosine, and --query embedding ranks by products";
        return Err(Diagnostic::new(what).at("--min").help("leave one of them out").into());
    }
    let Some(asked_by) = tokens.last().cloned() else {
        return Err(Diagnostic::new("the word has no tokens").into());
    };
    let options = WalkOptions {
        query: Query::Embedding,
        layers: args.layers.map(|range| range.resolve(session.vindex.config().n_layers)),
        top: args.top,
        order: Order::Abs,
    };
    let walk = session.search().walk(asked_by.id, &options)?;
    let hits: Vec<Hit> = walk.layers.into_iter().flat_map(|layer| layer.hits).collect();
    let mut top = TopK::new(args.top, Order::Abs);
    for (row, hit) in hits.iter().enumerate() {
        top.push(row, hit.score)?;
    }
    let mut hits: Vec<Hit> = top.into_sorted().into_iter().map(|s| hits[s.row]).collect();
    // Stable: within a layer the order by size stays.
    hits.sort_by_key(|hit| hit.layer);
    let (query, caveat) = ("embedding", EMBEDDING_WORTH);
    let (word, hits) = (args.word.clone(), session.label(hits)?);
    context.emit(&DescribedByEmbedding { word, asked_by, query, caveat, hits })
}

fn labelled(
    part: DescribedPart,
    tokens: &[TokenRow],
    session: &Session<'_>,
) -> Result<Part, Failure> {
    let hits = session.label(part.features.iter().map(|writer| writer.hit).collect())?;
    let row = |(hit, writer): (HitRow, &larql_vindex::search::WrittenBy)| WriterRow {
        share: writer.share,
        sigma: writer.sigma,
        above_chance: hit.score.abs() / part.chance.max(f32::MIN_POSITIVE),
        hit,
    };
    let features = hits.into_iter().zip(&part.features).map(row).collect();
    let row = |id: &u32| tokens.iter().find(|token| token.id == *id).cloned();
    let tokens = part.tokens.iter().filter_map(row).collect();
    let (chance, mean, deviation) = (part.chance, part.mean, part.deviation);
    Ok(Part { tokens, chance, mean, deviation, features })
}

impl Report for Described {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        for part in &self.parts {
            page.heading(&tokens_text(&part.tokens))?;
            if part.features.is_empty() {
                page.line("  no feature is that close; a smaller --min shows more")?;
                continue;
            }
            page.table(&writers(&part.features))?;
            page.note(&format!(
                "Of {} features, by cosine of output direction and unembedding; chance reaches {:.3}.",
                units::count(self.searched as u64),
                part.chance
            ))?;
        }
        page.note(
            "+ writes the word when it fires positively, - when it fires negatively; the label is of\n\
             that side. Whether and when it fires, this does not say.",
        )
    }
}

/// Grouped by layer: the rows come in that order, and a layer's number stands in its first row.
fn writers(rows: &[WriterRow]) -> Table {
    let mut table = Table::new([
        Column::number("layer"),
        Column::number("feature"),
        Column::number("cosine"),
        Column::number("share"),
        Column::number("x chance"),
        Column::text("label"),
    ]);
    let mut previous = None;
    for row in rows {
        let layer = row.hit.layer;
        let shown = if previous == Some(layer) { String::new() } else { format!("L{layer}") };
        previous = Some(layer);
        table.row([
            shown,
            row.hit.feature.to_string(),
            format!("{:+.3}", row.hit.score),
            units::percent(f64::from(row.share)),
            format!("{:.1}", row.above_chance),
            tokens_of(row.hit.label.as_ref(), row.hit.score < 0.0, 5),
        ]);
    }
    table
}
