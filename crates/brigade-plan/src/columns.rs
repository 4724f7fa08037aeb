//! Columns and sizes as text.

/// Rows of text whose cells begin in the same columns. Own code, as this crate is arithmetic and needs no library for tables.
pub(crate) fn aligned(rows: Vec<Vec<String>>) -> Vec<String> {
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let width = |column: usize| cells(column).map(String::len).max().unwrap_or(0);
    let row = |row: &Vec<String>| {
        let padded = row.iter().enumerate().map(|(column, cell)| format!("{cell:<0$}", width(column)));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(row).collect()
}

/// A number of things by the name of one: "1 rank", "8 ranks".
pub(crate) fn counted(count: usize, name: &str) -> String {
    format!("{count} {name}{}", if count == 1 { "" } else { "s" })
}

/// A size in the largest binary unit that it fills. Own code for the same reason.
pub(crate) fn bytes(size: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let filled = (size.max(1).ilog2() / 10) as usize;
    match filled.checked_sub(1) {
        None => format!("{size} B"),
        Some(unit) => format!("{:.1} {}", size as f64 / (1u64 << (10 * filled)) as f64, units[unit]),
    }
}
