//! `larql walk VINDEX TEXT`: the features of every layer that fire while the model reads a text,
//! or, for comparison, those whose gates a token's embedding resembles.

use std::io;
use std::ops::Range;

use larql_compute::Order;
use larql_inference::analysis::{Firing, WalkOptions, walk};
use larql_vindex::search;
use serde::Serialize;

use super::look;
use crate::args::{Positions, Walk, WalkQuery};
use crate::context::Context;
use crate::error::{Diagnostic, Failure};
use crate::render::{Column, Page, Report, Table, svg, units};
use crate::session::{HitRow, LabelRow, Session, TokenRow, hits_table, tokens_of};

/// What the numbers mean; said with every walk of a forward pass.
const MEANING: &str = "\
query: residual, by a forward pass. Writes: the length of what the feature adds to the residual,
|activation| x length of its down row. Share: of the sum over all features of the layer; where it is
small, many features write together, and no few of them are what the layer does.";

/// What the embedding query is worth; said with every walk of that kind.
const EMBEDDING_WORTH: &str = "\
query: embedding, for comparison only. The last token's embedding asked every layer; no forward pass
was run, so attention and all earlier layers are left out. Beyond the first layers it resembles what
the model computes poorly: not what the model does with the text.";

/// A walk with the real residual.
#[derive(Serialize)]
struct Walked {
    /// The tokens of the text up to the last position shown.
    tokens: Vec<TokenRow>,
    query: &'static str,
    /// By position, then layer, then rank.
    firings: Vec<FiringRow>,
}

#[derive(Serialize)]
struct FiringRow {
    position: usize,
    layer: usize,
    feature: usize,
    activation: f32,
    /// `|activation| * ‖down‖`.
    contribution: f32,
    /// Of the contributions of all features of the layer, 0 to 1.
    share: f32,
    /// `null` where the vindex has no labels.
    label: Option<LabelRow>,
}

/// A walk with the embedding.
#[derive(Serialize)]
struct WalkedEmbedding {
    /// The tokens of the text.
    tokens: Vec<TokenRow>,
    /// The token that asked.
    asked_by: TokenRow,
    query: &'static str,
    /// What the query is worth.
    caveat: &'static str,
    /// In the order of layers, then of rank.
    hits: Vec<HitRow>,
}

pub(crate) fn run(args: &Walk, context: &Context) -> Result<(), Failure> {
    let session = Session::open(&args.vindex, context)?;
    match args.query {
        WalkQuery::Residual => by_residual(args, &session, context),
        WalkQuery::Embedding => by_embedding(args, &session, context),
    }
}

fn by_residual(args: &Walk, session: &Session<'_>, context: &Context) -> Result<(), Failure> {
    let mut tokens = look::prompt(session, &args.text)?;
    let shown = match args.position {
        Positions::All => 0..tokens.len(),
        Positions::Last => tokens.len() - 1..tokens.len(),
        Positions::One(p) => look::position(&tokens, Some(p)).map(|p| p..p + 1)?,
    };
    tokens.truncate(shown.end);
    let model = look::load(session)?;
    let layers = args
        .layers
        .map_or(0..model.config().n_layers, |layers| layers.resolve(model.config().n_layers));
    let drawn = tokens.len().saturating_sub(svg::MOST_COLUMNS);
    let from = if args.svg.is_some() { shown.start.min(drawn) } else { shown.start };
    let options = WalkOptions { layers: layers.clone(), from, top: args.top };
    let mut found = walk(&model, &look::ids(&tokens), &options)?;
    if let Some(path) = &args.svg {
        look::write_svg(path, &draw(session, &tokens, &found, layers, drawn)?, context)?;
    }
    found.retain(|firing| shown.contains(&firing.position));
    context.emit(&Walked { query: "residual", firings: rows(session, &found)?, tokens })
}

/// The firings with the labels of their features.
fn rows(session: &Session<'_>, found: &[Firing]) -> Result<Vec<FiringRow>, Failure> {
    let ids: Vec<_> = found.iter().map(|firing| (firing.layer, firing.feature)).collect();
    let row = |(firing, label): (&Firing, Option<LabelRow>)| FiringRow {
        position: firing.position,
        layer: firing.layer,
        feature: firing.feature,
        activation: firing.activation,
        contribution: firing.contribution,
        share: firing.share,
        label,
    };
    Ok(found.iter().zip(session.labels_of(&ids)?).map(row).collect())
}

/// The strongest feature of every layer at the positions from `from` on.
fn draw(
    session: &Session<'_>,
    tokens: &[TokenRow],
    found: &[Firing],
    layers: Range<usize>,
    from: usize,
) -> Result<String, Failure> {
    let mut cells = vec![vec![svg::Cell::default(); tokens.len() - from]; layers.len()];
    let mut strongest: Vec<Firing> =
        found.iter().filter(|firing| firing.position >= from).copied().collect();
    strongest.dedup_by_key(|firing| (firing.position, firing.layer));
    let largest = strongest.iter().fold(f32::MIN_POSITIVE, |m, firing| m.max(firing.share));
    for row in rows(session, &strongest)? {
        let cell = &mut cells[row.layer - layers.start][row.position - from];
        let written = tokens_of(row.label.as_ref(), row.activation < 0.0, 1);
        *cell = svg::Cell {
            text: written,
            detail: format!("{} · {:.0} %", row.feature, row.share * 100.0),
            shade: f64::from(row.share / largest),
            framed: false,
        };
    }
    Ok(svg::Grid {
        title: "The feature that writes most".to_owned(),
        subtitle: svg::note_of_columns(
            from,
            "first token that it promotes; its number and its share of all that the layer's features write",
        ),
        columns: tokens[from..].iter().map(|token| units::token(&token.text)).collect(),
        rows: layers.map(|layer| format!("L{layer}")).collect(),
        cells,
        bars: None,
    }
    .render())
}

fn by_embedding(args: &Walk, session: &Session<'_>, context: &Context) -> Result<(), Failure> {
    let needs = |flag: &str| {
        Diagnostic::new(format!("{flag} needs the forward pass that --query embedding leaves out"))
            .at(flag)
            .help("leave out --query embedding")
    };
    if args.svg.is_some() {
        return Err(needs("--svg").into());
    }
    if args.position != Positions::Last {
        return Err(needs("--position").into());
    }
    let tokens = session.text(&args.text)?;
    let Some(asked_by) = tokens.last().cloned() else {
        return Err(Diagnostic::new("the text has no tokens").into());
    };
    let options = search::WalkOptions {
        query: search::Query::Embedding,
        layers: args.layers.map(|range| range.resolve(session.vindex.config().n_layers)),
        top: args.top,
        order: Order::Abs,
    };
    let walk = session.search().walk(asked_by.id, &options)?;
    let hits = walk.layers.into_iter().flat_map(|layer| layer.hits).collect();
    let hits = session.label(hits)?;
    let (query, caveat) = ("embedding", EMBEDDING_WORTH);
    context.emit(&WalkedEmbedding { tokens, asked_by, query, caveat, hits })
}

impl Report for Walked {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.line(&format!("tokens: {}", look::numbered(&self.tokens)))?;
        for firings in self.firings.chunk_by(|a, b| a.position == b.position) {
            let position = firings.first().map_or(0, |firing| firing.position);
            let token = self.tokens.get(position).map_or("", |token| token.text.as_str());
            page.heading(&format!("At position {position}, {}", units::token(token)))?;
            page.table(&firings_table(firings))?;
        }
        page.note(MEANING)
    }
}

/// Grouped by layer: a layer's number stands in its first row.
fn firings_table(rows: &[FiringRow]) -> Table {
    let mut table = Table::new([
        Column::number("layer"),
        Column::number("feature"),
        Column::number("activation"),
        Column::number("writes"),
        Column::number("share"),
        Column::text("promotes"),
        Column::text("suppresses"),
    ]);
    let mut previous = None;
    for row in rows {
        let layer = format!("L{}", row.layer);
        let layer = if previous == Some(row.layer) { String::new() } else { layer };
        previous = Some(row.layer);
        let negative = row.activation < 0.0;
        table.row([
            layer,
            row.feature.to_string(),
            format!("{:+.3}", row.activation),
            format!("{:.2}", row.contribution),
            units::percent(f64::from(row.share)),
            tokens_of(row.label.as_ref(), negative, 3),
            tokens_of(row.label.as_ref(), !negative, 3),
        ]);
    }
    table
}

impl Report for WalkedEmbedding {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        let tokens = self.tokens.iter().map(|token| units::token(&token.text));
        page.line(&format!(
            "tokens: {}; the last one asks",
            tokens.collect::<Vec<_>>().join(" | ")
        ))?;
        page.table(&hits_table(&self.hits, "gate · x"))?;
        page.note(self.caveat)
    }
}
