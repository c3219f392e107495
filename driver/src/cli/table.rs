//! Tables for people, plain enough for a log file.

use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, TableStyle, presets};

/// A rule below the headings, and nothing else.
const STYLE: TableStyle = presets::NOTHING.header_separator(LineStyle::new('─', '─', '─', '─'));

/// A table with these headings.
pub fn table(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(headings.iter().map(Cell::new));
    table
}

/// A number, set to the right.
pub fn number(value: impl ToString) -> Cell {
    Cell::new(value).set_alignment(CellAlignment::Right)
}
