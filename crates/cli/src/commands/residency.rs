//! `larql residency VINDEX`: what is mapped, what of it is in memory, what the heap holds.

use std::io;

use larql_vindex::{Residency, Vindex};

use crate::args;
use crate::context::Context;
use crate::error::Failure;
use crate::render::{Column, Page, Report, Table, units};

pub(crate) fn run(args: &args::Residency, context: &Context) -> Result<(), Failure> {
    context.emit(&Vindex::open(&args.vindex)?.residency()?)
}

impl Report for Residency {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.heading("Mapped")?;
        let mut table = Table::new([
            Column::text("role"),
            Column::number("tensors"),
            Column::number("mapped"),
            Column::number("resident"),
            Column::number("share"),
            Column::text("advice"),
        ]);
        let mut row = |role: &str, tensors: usize, mapped: u64, resident: u64, advice: &str| {
            let share = resident as f64 / mapped.max(1) as f64;
            table.row([
                role.to_owned(),
                tensors.to_string(),
                units::bytes(mapped),
                units::bytes(resident),
                units::percent(share),
                advice.to_owned(),
            ]);
        };
        for role in &self.roles {
            row(&role.role, role.tensors, role.mapped, role.resident, role.advice);
        }
        row(
            "all",
            self.roles.iter().map(|role| role.tensors).sum(),
            self.roles.iter().map(|role| role.mapped).sum(),
            self.roles.iter().map(|role| role.resident).sum(),
            "",
        );
        page.table(&table)?;
        page.heading("Heap")?;
        let mut table = Table::new([Column::text("owner"), Column::number("bytes")]);
        for heap in &self.heap {
            table.row([heap.owner.to_owned(), units::bytes(heap.bytes)]);
        }
        page.table(&table)
    }
}
