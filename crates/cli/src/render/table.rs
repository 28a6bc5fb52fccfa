//! Tables. Cells are text already; a table only aligns them.

use comfy_table::{CellAlignment, ContentArrangement, TableComponent, presets};

use super::Style;

/// A column: its heading and which side its cells lean to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    name: &'static str,
    right: bool,
}

impl Column {
    /// A column of words.
    pub(crate) const fn text(name: &'static str) -> Column {
        Column { name, right: false }
    }

    /// A column of numbers.
    pub(crate) const fn number(name: &'static str) -> Column {
        Column { name, right: true }
    }
}

/// Rows of text under named columns.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(columns: impl Into<Vec<Column>>) -> Table {
        Table { columns: columns.into(), rows: Vec::new() }
    }

    /// Adds a row, one cell a column.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        debug_assert_eq!(cells.len(), self.columns.len(), "one cell a column");
        self.rows.push(cells);
    }

    /// The table as lines without trailing blanks.
    pub(crate) fn lines(&self, style: Style) -> Vec<String> {
        let mut table = comfy_table::Table::new();
        if style.terminal {
            let width = table.width();
            table.load_preset(presets::NOTHING);
            table.set_style(TableComponent::HeaderLines, '─');
            table.set_style(TableComponent::MiddleHeaderIntersections, '─');
            table.set_content_arrangement(ContentArrangement::Dynamic);
            if let Some(width) = width {
                table.set_width(width);
            }
        } else {
            table.load_preset(presets::NOTHING);
            table.set_content_arrangement(ContentArrangement::Disabled);
        }
        table.set_header(self.columns.iter().map(|column| column.name));
        table.add_rows(&self.rows);
        for (index, column) in self.columns.iter().enumerate() {
            if let Some(drawn) = table.column_mut(index) {
                drawn.set_padding((1, 1));
                if column.right {
                    drawn.set_cell_alignment(CellAlignment::Right);
                }
            }
        }
        table.trim_fmt().lines().map(|line| format!(" {line}")).collect()
    }
}
