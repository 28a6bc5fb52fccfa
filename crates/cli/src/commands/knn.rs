//! `larql knn VINDEX --layer L`: the gate rows that answer most strongly to a vector.

use std::io;

use larql_compute::Order;
use serde::Serialize;

use crate::args::{Knn, OrderArg};
use crate::context::Context;
use crate::error::{Diagnostic, Failure};
use crate::render::{Page, Report};
use crate::session::{HitRow, Session, TokenRow, hits_table, tokens_text};
use crate::vector_file;

#[derive(Serialize)]
struct Found {
    layer: usize,
    /// What was asked, in words.
    query: String,
    /// The experts searched, where not all were.
    #[serde(skip_serializing_if = "Option::is_none")]
    experts: Option<Vec<usize>>,
    hits: Vec<HitRow>,
}

pub(crate) fn run(args: &Knn, context: &Context) -> Result<(), Failure> {
    let session = Session::open(&args.vindex, context)?;
    session.vindex.check_layer(args.layer)?;
    let (vector, query) = query(args, &session)?;
    let search = session.search();
    let order = match args.order {
        OrderArg::Abs => Order::Abs,
        OrderArg::Signed => Order::Signed,
    };
    let (hits, experts) = if args.routed {
        let routed = search.route(args.layer, &vector)?;
        let experts: Vec<usize> = routed.iter().map(|routing| routing.expert).collect();
        let hits = search.gate_knn_routed(args.layer, &vector, args.top, order, &experts)?;
        (hits, Some(experts))
    } else {
        let hits = search.gate_knn(args.layer, &vector, args.top, order, args.expert)?;
        (hits, args.expert.map(|expert| vec![expert]))
    };
    let hits = session.label(hits)?;
    context.emit(&Found { layer: args.layer, query, experts, hits })
}

/// The query vector, `[hidden_size]`, and what it is in words.
fn query(args: &Knn, session: &Session<'_>) -> Result<(Vec<f32>, String), Failure> {
    let search = session.search();
    if let Some(word) = &args.query.token {
        let tokens = session.word(word)?;
        let last = last(&tokens)?;
        let embedding = search.embedding(last.id)?;
        let vector = search.ffn_input(args.layer, &embedding)?;
        let of = if tokens.len() > 1 { ", the last of the word's tokens" } else { "" };
        let token = tokens_text(std::slice::from_ref(last));
        return Ok((vector, format!("the embedding of {token}{of}, through the layer's norm")));
    }
    if let Some(file) = &args.query.vector {
        let vector = vector_file::read(file)?;
        let hidden = session.vindex.config().hidden_size;
        if vector.len() != hidden {
            let what = format!("the vector has {} elements, the model {hidden}", vector.len());
            return Err(Diagnostic::new(what).at_path(file).into());
        }
        return Ok((vector, format!("the vector in {}", file.display())));
    }
    let Some(row) = args.query.row else {
        return Err(Diagnostic::new("a query is needed: --token, --vector or --row").into());
    };
    let vector = session.search().gate_row(row.layer, row.feature)?;
    Ok((vector, format!("the gate row of feature {row}")))
}

fn last(tokens: &[TokenRow]) -> Result<&TokenRow, Failure> {
    tokens.last().ok_or_else(|| Diagnostic::new("the word has no tokens").into())
}

impl Report for Found {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.line(&format!("layer {}, asked by {}", self.layer, self.query))?;
        if let Some(experts) = &self.experts {
            let experts = experts.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
            page.line(&format!("experts searched: {experts}"))?;
        }
        page.table(&hits_table(&self.hits, "gate · x"))
    }
}
