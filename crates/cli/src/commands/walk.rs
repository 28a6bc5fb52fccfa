//! `larql walk VINDEX TEXT`: a text's embedding through the gates of every layer.

use std::io;

use larql_compute::Order;
use larql_vindex::search::{Query, WalkOptions};
use serde::Serialize;

use crate::args::{Walk, WalkQuery};
use crate::context::Context;
use crate::error::{Diagnostic, Failure};
use crate::render::{Page, Report, units};
use crate::session::{HitRow, Session, TokenRow, hits_table};

/// What the embedding query is worth; said with every walk of that kind.
const EMBEDDING_WORTH: &str = "\
query: embedding. The last token's embedding asked every layer; no forward pass was run, so attention
and all earlier layers are left out. Beyond the first layers it resembles what the model computes
poorly: a cheap look, not what the model does with the text.";

#[derive(Serialize)]
struct Walked {
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
    let tokens = session.text(&args.text)?;
    let Some(asked_by) = tokens.last().cloned() else {
        return Err(Diagnostic::new("the text has no tokens").into());
    };
    let options = WalkOptions {
        query: match args.query {
            WalkQuery::Embedding => Query::Embedding,
        },
        layers: args.layers.map(|range| range.resolve(session.vindex.config().n_layers)),
        top: args.top,
        order: Order::Abs,
    };
    let walk = session.search().walk(asked_by.id, &options)?;
    let hits = walk.layers.into_iter().flat_map(|layer| layer.hits).collect();
    let hits = session.label(hits)?;
    context.emit(&Walked { tokens, asked_by, query: "embedding", caveat: EMBEDDING_WORTH, hits })
}

impl Report for Walked {
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
