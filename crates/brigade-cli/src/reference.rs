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

Every setting of a TOML file for `--config`, of `--set section.name=value`, and of the text that `brigade::launch` takes. The column
`default` holds for a program of your own, which has neither `[model]` nor `[data]`. `brigade train` begins with `configs/gpt-tiny.toml`,
which is built into it and has its own values for settings that depend on its model (the batch, the learning rate, the length of the run);
`--config` changes those that it names. A trained model (`--model`) is fine-tuned with values of its own.

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

/// The values of all enumerations without fields in a file that `cargo fmt` has formatted, as serde names them.
fn read_values(source: &str, enumerations: &mut BTreeMap<String, Vec<String>>) {
    let (mut case, mut current) = (None, None);
    for line in source.lines() {
        let text = line.trim();
        let renamed = |attribute: &str| {
            let rest = text.strip_prefix("#[serde(")?.strip_prefix(attribute)?.strip_prefix(" = \"")?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        if let Some(name) = text.strip_prefix("pub enum ").and_then(|rest| rest.strip_suffix(" {")) {
            current = case.take().map(|case: String| (name.to_owned(), case, None, Vec::new()));
        } else if line == "}" {
            if let Some((name, _, _, values)) = current.take() {
                enumerations.entry(name).or_insert(values);
            }
            case = None;
        } else if let Some((_, case, own, values)) = &mut current {
            match renamed("rename") {
                Some(name) => *own = Some(name),
                None if text.starts_with(['#', '/']) => {}
                None if text.ends_with(',')
                    && text.trim_end_matches(',').chars().all(char::is_alphanumeric) =>
                {
                    values.push(own.take().unwrap_or_else(|| cased(text.trim_end_matches(','), case)));
                }
                None => current = None,
            }
        } else if let Some(name) = renamed("rename_all") {
            case = Some(name);
        }
    }
}

/// A variant's name in serde's snake_case or kebab-case.
fn cased(variant: &str, case: &str) -> String {
    let between = if case == "kebab-case" { '-' } else { '_' };
    let mut name = String::new();
    for (place, letter) in variant.chars().enumerate() {
        if letter.is_uppercase() && place > 0 && case != "lowercase" {
            name.push(between);
        }
        name.extend(letter.to_lowercase());
    }
    name
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

/// A value as one would write it: one that is held in 32 bits has no more digits than that.
fn shown(value: &Value) -> String {
    match value {
        Value::Float(number) if f64::from(*number as f32) == *number => format!("{:?}", *number as f32),
        _ => value.to_string(),
    }
}

/// What the sources say.
#[derive(Default)]
struct Sources {
    structures: BTreeMap<String, Vec<Field>>,
    enumerations: BTreeMap<String, Vec<String>>,
}

/// All sections and settings, as Markdown: their values in the library, in `gpt-tiny.toml`, and with `--model`.
///
/// # Panics
/// If a setting has no documentation in the sources.
fn page([own, tiny, tuned]: [&Table; 3], Sources { structures, enumerations }: &Sources) -> String {
    let mut page = HEAD.to_owned();
    for section in fields(ROOT, structures) {
        let Some(Value::Table(values)) = tiny.get(&section.name) else { continue };
        let documented = fields(&section.kind, structures);
        let _ = write!(page, "\n## `[{}]`\n\n", section.name);
        if !section.docs.is_empty() && !section.docs.starts_with('`') {
            let _ = write!(page, "{}\n\n", section.docs);
        }
        page += "| setting | value | default | in `gpt-tiny.toml` | with `--model` | meaning |\n|---|---|---|---|---|---|\n";
        // In the order of the structure, which puts together what belongs together.
        let order = |name: &String| documented.iter().position(|field| field.name == *name);
        let mut names: Vec<_> = values.keys().collect();
        names.sort_by_key(|name| order(name));
        for name in names {
            let field = documented.iter().find(|field| field.name == *name);
            let docs = field.map_or("", |field| &field.docs);
            assert!(!docs.is_empty(), "{}.{name} has no documentation that this finds", section.name);
            let value = &values[name];
            let of = |table: &Table| table.get(&section.name).and_then(|section| section.get(name)).cloned();
            let default = of(own).unwrap_or_else(|| value.clone());
            let of_a_model = of(tuned).unwrap_or_else(|| value.clone());
            let other = |value: &Value, usual: &Value| match value == usual {
                true => String::new(),
                false => format!("`{}`", shown(value)),
            };
            let allowed = field.and_then(|field| enumerations.get(&field.kind)).filter(|_| value.is_str());
            let allowed = allowed
                .map(|values| values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", "));
            let _ = writeln!(
                page,
                "| `{name}` | {} | `{}` | {} | {} | {} |",
                allowed.unwrap_or_else(|| kind(value).to_owned()),
                shown(&default),
                other(value, &default),
                other(&of_a_model, value),
                docs.replace('|', "\\|")
            );
        }
    }
    page
}

#[test]
fn reference_of_the_book_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Sources::default();
    let read_all = |folders: &[&str], take: &mut dyn FnMut(&str)| {
        let mut files = Vec::new();
        folders.iter().for_each(|folder| sources(&root.join(folder), &mut files));
        files.sort();
        files.iter().for_each(|file| take(&fs::read_to_string(file).unwrap()));
    };
    let own = ["src", "crates/brigade-models/src", "crates/brigade-cli/src"];
    read_all(&own, &mut |source| read(source, &mut found.structures));
    read_all(&own, &mut |source| read_values(source, &mut found.enumerations));
    let others = ["crates/brigade-core/src", "crates/brigade-compress/src", "crates/brigade-plan/src"];
    read_all(&others, &mut |source| read_values(source, &mut found.enumerations));
    let table = |config: Config| Table::try_from(config).unwrap();
    let defaults = table(Config::read(&[], &[]).unwrap());
    let mut tuned = Config::read_with(Some(Path::new("a/model")), None, &[], &[]).unwrap();
    tuned.model.path = "".into();
    let page = page([&Table::try_from(Settings::default()).unwrap(), &defaults, &table(tuned)], &found);
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

#[test]
fn values_are_read_from_sources() {
    let source = "#[serde(rename_all = \"kebab-case\")]\npub enum A {\n    /// One.\n    #[default]\n    OneTwo,\n    #[serde(rename = \"3\")]\n    Three,\n}\n\n\
                  #[serde(rename_all = \"snake_case\")]\npub enum WithFields {\n    One(u8),\n}\n\npub enum Plain {\n    One,\n}\n";
    let mut found = BTreeMap::new();
    read_values(source, &mut found);
    assert_eq!(found, BTreeMap::from([("A".to_owned(), vec!["one-two".to_owned(), "3".to_owned()])]));
    assert_eq!(shown(&Value::Float(f64::from(0.1f32))), "0.1");
    assert_eq!(shown(&Value::Float(0.1)), "0.1");
}
