//! `larql feature VINDEX LAYER:FEATURE`: one feature, closely.

use std::io;

use serde::Serialize;

use crate::args::Feature;
use crate::context::Context;
use crate::error::Failure;
use crate::render::{Column, Page, Report, Table, units};
use crate::session::{LabelRow, Session};

#[derive(Serialize)]
struct Shown {
    layer: usize,
    feature: usize,
    /// Expert and position within it, in a mixture of experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    expert: Option<(usize, usize)>,
    gate_norm: f32,
    up_norm: Option<f32>,
    down_norm: Option<f32>,
    /// Length of the down column after the norms that follow it.
    direction_norm: Option<f32>,
    /// Cosine between what it reads and what it writes.
    gate_down_cosine: Option<f32>,
    label: Option<LabelRow>,
}

pub(crate) fn run(args: &Feature, context: &Context) -> Result<(), Failure> {
    let session = Session::open(&args.vindex, context)?;
    let facts = session.search().feature(args.feature.layer, args.feature.feature)?;
    context.emit(&Shown {
        layer: facts.layer,
        feature: facts.feature,
        expert: facts.expert,
        gate_norm: facts.gate_norm,
        up_norm: facts.up_norm,
        down_norm: facts.down_norm,
        direction_norm: facts.direction_norm,
        gate_down_cosine: facts.gate_down_cosine,
        label: session.label_of(facts.layer, facts.feature)?,
    })
}

impl Report for Shown {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.heading(&format!("Feature {}:{}", self.layer, self.feature))?;
        let number = |value: f32| format!("{value:.4}");
        let mut fields = Vec::new();
        if let Some((expert, position)) = self.expert {
            fields.push(("expert", format!("{expert}, feature {position} of it")));
        }
        fields.push(("gate norm", number(self.gate_norm)));
        fields.extend(self.up_norm.map(|value| ("up norm", number(value))));
        fields.extend(self.down_norm.map(|value| ("down norm", number(value))));
        fields.extend(self.direction_norm.map(|value| ("output norm", number(value))));
        fields.extend(self.gate_down_cosine.map(|value| ("cos(gate, down)", number(value))));
        page.fields(&fields)?;
        let Some(label) = &self.label else {
            return page.note("This vindex has no labels (it was made with --labels none).");
        };
        page.heading("Tokens that it writes when it fires positively (+) and negatively (-)")?;
        let mut table = Table::new([
            Column::text("+ writes"),
            Column::number("score"),
            Column::text("- writes"),
            Column::number("score"),
        ]);
        let cells = |token: Option<&crate::session::LabelToken>| match token {
            Some(token) => [units::token(&token.text), format!("{:+.4}", token.score)],
            None => [String::new(), String::new()],
        };
        for rank in 0..label.promotes.len().max(label.suppresses.len()) {
            let promoted = cells(label.promotes.get(rank));
            table.row(promoted.into_iter().chain(cells(label.suppresses.get(rank))));
        }
        page.table(&table)
    }
}
