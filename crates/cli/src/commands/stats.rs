//! `larql stats VINDEX`: what a vindex holds, in numbers.

use std::io;

use larql_vindex::{Stats, Vindex};

use crate::args;
use crate::context::Context;
use crate::error::Failure;
use crate::render::{Column, Page, Report, Table, units};

pub(crate) fn run(args: &args::Stats, context: &Context) -> Result<(), Failure> {
    context.emit(&Vindex::open(&args.vindex)?.stats()?)
}

impl Report for Stats {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.fields(&[
            ("family", self.family.clone()),
            ("source", format!("{} ({})", self.source, self.weights)),
            ("level", self.level.to_string()),
            ("parameters", units::parameters(self.parameters)),
            ("size", units::bytes(self.bytes)),
            ("layers", units::count(self.n_layers as u64)),
            ("features", units::count(self.n_features)),
            ("hidden size", units::count(self.hidden_size as u64)),
            ("vocabulary", units::count(self.vocab_size as u64)),
        ])?;
        if let Some(bytes) = self.head_planes {
            page.fields(&[("LM head planes", units::bytes(bytes))])?;
        }
        if let Some(bytes) = self.feature_means {
            page.fields(&[("feature means", units::bytes(bytes))])?;
        }
        page.heading("Weights by group")?;
        let mut table = Table::new([
            Column::text("group"),
            Column::number("tensors"),
            Column::number("elements"),
            Column::number("size"),
            Column::text("dtypes"),
        ]);
        for group in &self.groups {
            let dtypes = group.dtypes.iter().map(|(dtype, n)| format!("{dtype} x {n}"));
            table.row([
                group.group.to_string(),
                group.tensors.to_string(),
                units::count(group.elements),
                units::bytes(group.bytes),
                dtypes.collect::<Vec<_>>().join(", "),
            ]);
        }
        page.table(&table)?;
        page.heading("Layers")?;
        page.table(&layers(self))?;
        for (files, remark) in [
            (&self.extra_files, "in the directory, but not of this vindex; never read"),
            (&self.missing_files, "a derived file that is gone; it can be made again"),
        ] {
            for file in files {
                page.note(&format!("{file}: {remark}"))?;
            }
        }
        Ok(())
    }
}

fn layers(stats: &Stats) -> Table {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let mut table = Table::new([
        Column::number("layer"),
        Column::number("features"),
        Column::number("experts"),
        Column::text("gate"),
        Column::text("up"),
        Column::text("down"),
        Column::number("window"),
        Column::number("size"),
    ]);
    for layer in &stats.layers {
        table.row([
            layer.layer.to_string(),
            units::count(layer.features as u64),
            or_dash(&layer.experts.map(|n| n.to_string())),
            or_dash(&layer.gate),
            or_dash(&layer.up),
            or_dash(&layer.down),
            or_dash(&layer.window.map(|n| n.to_string())),
            units::bytes(layer.bytes),
        ]);
    }
    table
}
