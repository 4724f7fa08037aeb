//! Rows of text in columns.

use comfy_table::{Row, Table, presets::NOTHING};

/// Rows whose cells start in the same columns, two blanks apart, each line with a newline.
pub fn columns(rows: impl IntoIterator<Item = Row>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt() + "\n"
}
