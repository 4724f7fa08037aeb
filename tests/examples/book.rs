//! What the book says of the examples.

use std::process::Command;

/// The page of the examples.
pub const BOOK: Page = Page(include_str!("../../docs/book/src/moving-from-burn.md"));

pub struct Page(&'static str);

/// `cargo run --release --example NAME -- FLAGS`.
#[derive(Debug, Clone)]
pub struct ExampleCommand {
    pub name: String,
    pub flags: String,
}

/// A row of the table: a program for plain Burn, and how the one for Brigade differs.
#[derive(Debug, PartialEq)]
struct Row {
    name: String,
    lines: usize,
    removed: usize,
    added: usize,
}

impl Page {
    /// The command that runs an example.
    pub fn command(&self, name: &str) -> ExampleCommand {
        let commands = self.0.lines().filter_map(|line| line.strip_prefix("cargo run --release --example "));
        let mut flags = commands.filter_map(|command| command.strip_prefix(name)?.strip_prefix(" -- "));
        let flags = flags.next().unwrap_or_else(|| panic!("the page has no command for {name}"));
        ExampleCommand { name: name.into(), flags: flags.into() }
    }

    fn table(&self) -> Vec<Row> {
        let rows = self.0.lines().filter(|line| line.starts_with("| `examples/"));
        let row = |line: &str| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let number = |cell: &str| cell.parse().unwrap_or_else(|_| panic!("{line}"));
            let name = cells[1].trim_matches('`').trim_start_matches("examples/").to_owned();
            let count = cells.len();
            Row {
                name,
                lines: number(cells[count - 4]),
                removed: number(cells[count - 3]),
                added: number(cells[count - 2]),
            }
        };
        rows.map(row).collect()
    }
}

impl ExampleCommand {
    /// The same program with other flags.
    pub fn with(&self, flags: String) -> Self {
        Self { name: self.name.clone(), flags }
    }
}

/// What `git diff --no-index` counts between the two programs of an example.
fn counted(name: &str) -> Row {
    let folder = format!("{}/examples/{name}", env!("CARGO_MANIFEST_DIR"));
    let [plain, moved] = ["burn.rs", "brigade.rs"].map(|file| format!("{folder}/{file}"));
    let output = Command::new("git")
        .args(["diff", "--no-index", "--numstat", &plain, &moved])
        .output()
        .expect("git counts the changed lines");
    let text = String::from_utf8(output.stdout).unwrap();
    let numbers: Vec<usize> = text.split_whitespace().take(2).map(|number| number.parse().unwrap()).collect();
    let lines = std::fs::read_to_string(plain).unwrap().lines().count();
    Row { name: name.into(), lines, added: numbers[0], removed: numbers[1] }
}

/// The folders of examples with a program for plain Burn and one for Brigade.
fn pairs() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let pairs = entries.filter(|entry| entry.path().join("brigade.rs").exists());
    let mut names: Vec<String> = pairs.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_table_of_changed_lines_is_right() {
    let mut table = BOOK.table();
    table.sort_by(|a, b| a.name.cmp(&b.name));
    let counted: Vec<Row> = pairs().iter().map(|name| counted(name)).collect();
    assert_eq!(table, counted);
    for Row { name, added, .. } in counted {
        assert!(added <= 20, "{name}: {added} lines are not in the plain Burn program");
    }
}
