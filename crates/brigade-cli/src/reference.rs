//! The book's reference of settings: names, values and defaults from the types, words from their documentation.
//!
//! `cargo xtask book --reference` writes the page. The test fails where it is not up to date, so that no setting is without a
//! line.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use brigade::Settings;
use toml::{Table, Value};

use crate::config::Config;

/// Asks for the page to be written.
const WRITE: &str = "BRIGADE_WRITE_REFERENCE";

/// The structure that all others hang from.
const ROOT: &str = "Config";

const HEAD: &str = "\
# Settings

Every setting of a TOML file for `--config`, of `--set section.name=value`, and of the text that `brigade::launch` takes. The
defaults are the same in `brigade train` and in a program of your own, which has neither `[model]` nor `[data]`. Without
`--config`, `brigade train` reads `configs/gpt-tiny.toml`, which has its own values for settings that depend on its model (the
batch, the learning rate, the length of the run).

<!-- Written by `cargo xtask book --reference` from the types of the settings. -->
";

/// A field of a structure in the sources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Field {
    name: String,
    /// The last name of its type.
    kind: String,
    docs: String,
    /// Whether its own fields stand in its place.
    flattened: bool,
}

/// The public fields of all structures in a file that `cargo fmt` has formatted.
fn read(source: &str, structures: &mut BTreeMap<String, Vec<Field>>) {
    let mut current: Option<String> = None;
    let mut next = Field::default();
    for line in source.lines() {
        let text = line.trim();
        if let Some(name) = text.strip_prefix("pub struct ").and_then(|rest| rest.strip_suffix(" {")) {
            current = Some(name.to_owned());
            structures.entry(name.to_owned()).or_default();
            next = Field::default();
        } else if line == "}" {
            current = None;
        } else if let Some(name) = &current {
            if let Some(docs) = text.strip_prefix("///") {
                next.docs = format!("{} {}", next.docs, docs.trim()).trim().to_owned();
            } else if text == "#[serde(flatten)]" {
                next.flattened = true;
            } else if let Some((field, kind)) =
                text.strip_prefix("pub ").and_then(|rest| rest.split_once(": "))
            {
                field.clone_into(&mut next.name);
                let kind = kind.trim_end_matches(',');
                kind.rsplit("::").next().unwrap_or(kind).clone_into(&mut next.kind);
                structures.entry(name.clone()).or_default().push(std::mem::take(&mut next));
            }
        }
    }
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// The fields of a structure, with those of flattened fields in their place.
fn fields<'a>(of: &str, structures: &'a BTreeMap<String, Vec<Field>>) -> Vec<&'a Field> {
    let own = structures.get(of).into_iter().flatten();
    own.flat_map(|field| if field.flattened { fields(&field.kind, structures) } else { vec![field] })
        .collect()
}

/// What a value may be.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "text",
        Value::Integer(_) => "whole number",
        Value::Float(_) => "number",
        Value::Boolean(_) => "`true` or `false`",
        Value::Array(_) => "list",
        Value::Datetime(_) | Value::Table(_) => "table",
    }
}

/// All sections and settings, as Markdown.
///
/// # Panics
/// If a setting has no documentation in the sources.
fn page(defaults: &Table, own: &Table, structures: &BTreeMap<String, Vec<Field>>) -> String {
    let mut page = HEAD.to_owned();
    for section in fields(ROOT, structures) {
        let Some(Value::Table(values)) = defaults.get(&section.name) else { continue };
        let documented = fields(&section.kind, structures);
        let _ = write!(page, "\n## `[{}]`\n\n", section.name);
        if !section.docs.is_empty() && !section.docs.starts_with('`') {
            let _ = write!(page, "{}\n\n", section.docs);
        }
        page += "| setting | value | default | in `gpt-tiny.toml` | |\n|---|---|---|---|---|\n";
        // In the order of the structure, which puts together what belongs together.
        let order = |name: &String| documented.iter().position(|field| field.name == *name);
        let mut names: Vec<_> = values.keys().collect();
        names.sort_by_key(|name| order(name));
        for name in names {
            let docs = documented.iter().find(|field| field.name == *name).map_or("", |field| &field.docs);
            assert!(!docs.is_empty(), "{}.{name} has no documentation that this finds", section.name);
            let value = &values[name];
            let default = own.get(&section.name).and_then(|section| section.get(name)).unwrap_or(value);
            let other = if value == default { String::new() } else { format!("`{value}`") };
            let _ = writeln!(
                page,
                "| `{name}` | {} | `{default}` | {other} | {} |",
                kind(value),
                docs.replace('|', "\\|")
            );
        }
    }
    page
}

#[test]
fn reference_of_the_book_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for folder in ["src", "crates/brigade-models/src", "crates/brigade-cli/src"] {
        sources(&root.join(folder), &mut files);
    }
    let mut structures = BTreeMap::new();
    for file in files {
        read(&fs::read_to_string(file).unwrap(), &mut structures);
    }
    let defaults = Table::try_from(Config::read(&[], &[]).unwrap()).unwrap();
    let own = Table::try_from(Settings::default()).unwrap();
    let page = page(&defaults, &own, &structures);
    assert_eq!(
        page.matches("\n## ").count(),
        defaults.len(),
        "a section is not found in the sources: {:?}",
        defaults.keys().collect::<Vec<_>>()
    );
    let path = root.join("docs/book/src/reference.md");
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "{} is not up to date: run cargo xtask book --reference", path.display());
}

#[test]
fn documentation_is_read_from_sources() {
    let source = "/// Not a field.\npub struct A {\n    /// One\n    /// thing.\n    #[serde(skip)]\n    pub one: u8,\n    #[serde(flatten)]\n    \
                  pub rest: x::B,\n    hidden: u8,\n}\n\npub struct B {\n    /// Two.\n    pub two: Vec<u8>,\n}\n";
    let mut structures = BTreeMap::new();
    read(source, &mut structures);
    let found: Vec<_> =
        fields("A", &structures).iter().map(|field| (field.name.as_str(), field.docs.as_str())).collect();
    assert_eq!(found, [("one", "One thing."), ("two", "Two.")]);
}
