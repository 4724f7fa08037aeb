//! Configurations in layers: defaults, then TOML files, then `--set`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Serialize, de::DeserializeOwned};
use toml::{Table, Value};

use super::nearest::{Suggestion, suggest};
use super::sections::backend::auto_values;
use super::sections::decay::GivenDecay;
use super::sections::length::GivenLength;
use super::typed::from_table;

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("--config {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("--config {path} is not TOML: {message}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        message: String,
    },
    /// `--set` is not `key=value`.
    #[error("--set {given}: {allowed}")]
    Set {
        /// What was given.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// There is no such setting.
    #[error("{origin}: there is no setting `{key}`; {suggestion}")]
    Unknown {
        /// The file or flag.
        origin: String,
        /// The key.
        key: String,
        /// What may have been meant.
        suggestion: Suggestion,
    },
    /// A value has the wrong type.
    #[error("{origin}: {message}")]
    Value {
        /// The file or flag.
        origin: String,
        /// What is wrong.
        message: String,
    },
}

/// Merges TOML files and then `--set section.key=value` over the configuration `defaults`. A value of `--set` is parsed as
/// TOML; if it is not TOML, it is a string.
///
/// # Errors
/// If a file or a `--set` cannot be read, names a setting that does not exist, or gives a value of the wrong type; nothing is
/// ignored.
pub fn merge_config<C: Serialize + DeserializeOwned>(
    defaults: &C,
    files: &[&Path],
    sets: &[String],
) -> Result<C, ConfigError> {
    let layers: Vec<Layer> = files.iter().map(|path| Layer::read(path)).collect::<Result<_, _>>()?;
    merge_layers(defaults, layers, sets)
}

/// Settings of one origin.
#[derive(Debug)]
pub(crate) struct Layer {
    /// What messages call it.
    pub origin: String,
    pub table: Table,
}

impl Layer {
    /// A file given to `--config`.
    ///
    /// # Errors
    /// If it cannot be read, or is not TOML.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let table = text.parse().map_err(|e: toml::de::Error| ConfigError::Syntax {
            path: path.to_owned(),
            message: e.to_string(),
        })?;
        Ok(Self { origin: format!("--config {}", path.display()), table })
    }

    /// What was given to `--set`.
    ///
    /// # Errors
    /// If it is not `section.key=value`.
    pub(crate) fn of_set(set: &str) -> Result<Self, ConfigError> {
        Ok(Self { origin: format!("--set {set}"), table: parse_set(set)? })
    }
}

/// [`merge_config`] of files that have been read.
pub(crate) fn merge_layers<C: Serialize + DeserializeOwned>(
    defaults: &C,
    layers: Vec<Layer>,
    sets: &[String],
) -> Result<C, ConfigError> {
    let mut config = to_table(defaults, "the defaults")?;
    let known = config.clone();
    let mut decay = GivenDecay::default();
    for Layer { origin, table } in layers {
        let length = GivenLength::of(&table);
        decay.add(&table);
        apply(&mut config, table.clone(), &known, &origin)?;
        check::<C>(&config, &table, &known, &origin)?;
        length.replace(&mut config);
    }
    let mut length = GivenLength::default();
    for set in sets {
        let Layer { origin, table } = Layer::of_set(set)?;
        length = length.and(GivenLength::of(&table));
        decay.add(&table);
        apply(&mut config, table.clone(), &known, &origin)?;
        check::<C>(&config, &table, &known, &origin)?;
    }
    length.replace(&mut config);
    decay.replace(&mut config, &known);
    from_table(config).map_err(|error| value_error("the configuration", &error))
}

/// A configuration from TOML text in the program; settings that it leaves out have their default.
///
/// # Errors
/// As [`merge_config`].
pub fn parse_defaults<C: Default + Serialize + DeserializeOwned>(text: &str) -> Result<C, ConfigError> {
    let origin = "the program's own defaults";
    let mut config = to_table(&C::default(), origin)?;
    let known = config.clone();
    let table = text.parse().map_err(|e: toml::de::Error| value_error(origin, &e))?;
    let (length, mut decay) = (GivenLength::of(&table), GivenDecay::default());
    decay.add(&table);
    apply(&mut config, table, &known, origin)?;
    length.replace(&mut config);
    decay.replace(&mut config, &known);
    from_table(config).map_err(|error| value_error(origin, &error))
}

/// A configuration as TOML, with comments on what each `auto` in it stands for.
///
/// # Errors
/// If it cannot be written as TOML.
pub fn config_to_toml<C: Serialize>(config: &C) -> anyhow::Result<String> {
    let unwritable = "the configuration cannot be written as TOML";
    let table = Table::try_from(config).context(unwritable)?;
    let mut text = toml::to_string(&table).context(unwritable)?;
    let backend = table.get("compute").and_then(|section| section.get("backend")?.as_str());
    for (section, key, value) in auto_values(&table) {
        text += &format!("# {section}.{key}: auto is {value} on {}\n", backend.unwrap_or_default());
    }
    Ok(text)
}

/// A configuration as a table. Its text is that of its table, too, so that a program needs only one of the two ways to write it.
fn to_table<C: Serialize>(config: &C, origin: &str) -> Result<Table, ConfigError> {
    Table::try_from(config).map_err(|error| value_error(origin, &error))
}

/// Checks the configuration after the settings in `given` have been laid over it. Where a structure of the program flattens others, serde
/// does not say which setting is wrong: it is the one that is wrong alone.
fn check<C: DeserializeOwned>(
    config: &Table,
    given: &Table,
    known: &Table,
    origin: &str,
) -> Result<(), ConfigError> {
    let Err(wrong) = from_table::<C>(config.clone()) else { return Ok(()) };
    if wrong.is_named() {
        return Err(value_error(origin, &wrong));
    }
    for (section, values) in given {
        for (key, value) in values.as_table().into_iter().flatten() {
            let one = Table::from_iter([(key.clone(), value.clone())]);
            let mut alone = known.clone();
            apply(&mut alone, Table::from_iter([(section.clone(), Value::Table(one))]), known, origin)?;
            if let Err(wrong) = from_table::<C>(alone) {
                return Err(value_error(origin, &format!("`{section}.{key}`: {wrong}")));
            }
        }
    }
    Err(value_error(origin, &wrong))
}

fn value_error(origin: &str, error: &dyn std::fmt::Display) -> ConfigError {
    ConfigError::Value { origin: origin.to_owned(), message: error.to_string().trim_end().replace('\n', " ") }
}

/// A value was given for a whole section.
pub(crate) fn is_section(origin: &str, section: &str) -> ConfigError {
    let message = format!("`{section}` is a section; set one of its keys");
    ConfigError::Value { origin: origin.to_owned(), message }
}

/// No setting's name has more parts.
const MAX_PARTS: usize = 32;

fn parse_set(set: &str) -> Result<Table, ConfigError> {
    let bad = |allowed: &str| ConfigError::Set { given: set.to_owned(), allowed: allowed.to_owned() };
    let (key, value) = set
        .split_once('=')
        .ok_or_else(|| bad("write section.key=value, as in optimizer.learning_rate=3e-4"))?;
    let (key, value) = (key.trim(), value.trim());
    let path: Vec<&str> = key.split('.').collect();
    if path.len() > MAX_PARTS || path.iter().any(|part| part.is_empty()) {
        return Err(bad("the key is a setting's full name, as in optimizer.learning_rate"));
    }
    let nested = path.iter().rev().fold(parse_value(value), |value, part| {
        Value::Table(Table::from_iter([((*part).to_owned(), value)]))
    });
    match nested {
        Value::Table(table) => Ok(table),
        _ => Err(bad("the key is empty")),
    }
}

/// A value as TOML; what is not TOML is a string.
pub(crate) fn parse_value(text: &str) -> Value {
    match format!("value = {text}").parse::<Table>() {
        Ok(mut table) if table.len() == 1 => table.remove("value").unwrap_or(Value::Boolean(false)),
        _ => Value::String(text.to_owned()),
    }
}

/// Whether a setting is a table without keys in `known`.
fn is_empty(known: &Table, full: &str) -> bool {
    let (path, key) = full.rsplit_once('.').unwrap_or(("", full));
    let mut sections = path.split('.').filter(|part| !part.is_empty());
    let table = sections.try_fold(known, |table, part| table.get(part)?.as_table());
    table.and_then(|table| table.get(key)?.as_table()).is_some_and(Table::is_empty)
}

/// That a setting is of another type than the value it is given.
fn mismatch(setting: &Value, given: &Value) -> String {
    let needed = match setting {
        Value::Integer(_) => "a whole number",
        Value::Float(_) => "a number",
        Value::Boolean(_) => "true or false",
        Value::Array(_) => "a list",
        Value::Table(_) => "a section",
        Value::String(_) | Value::Datetime(_) => "a text",
    };
    match (setting, given) {
        // What TOML does not take for a number.
        (Value::Integer(_) | Value::Float(_), Value::String(text)) if text.parse::<f64>().is_ok() => {
            format!("{text} is too large or too small for a setting")
        }
        _ => format!("{needed} is needed, not {given}"),
    }
}

/// Merges `layer` into `config`; every key must be in `known`.
fn apply(config: &mut Table, layer: Table, known: &Table, origin: &str) -> Result<(), ConfigError> {
    fn walk(
        config: &mut Table,
        layer: Table,
        prefix: &str,
        known: &Table,
        origin: &str,
    ) -> Result<(), ConfigError> {
        for (key, value) in layer {
            let full = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            match (config.get_mut(&key), value) {
                // A table that is empty by default has keys of the user's own.
                (Some(Value::Table(inner)), Value::Table(layer)) if is_empty(known, &full) => {
                    inner.extend(layer);
                }
                (Some(Value::Table(inner)), Value::Table(layer)) => walk(inner, layer, &full, known, origin)?,
                (Some(Value::Table(_)), _) => {
                    return Err(is_section(origin, &full));
                }
                // A float setting accepts an integer.
                (Some(slot @ Value::Float(_)), Value::Integer(whole)) => *slot = Value::Float(whole as f64),
                (Some(slot), value) => {
                    if std::mem::discriminant(slot) != std::mem::discriminant(&value) {
                        let message = format!("`{full}`: {}", mismatch(slot, &value));
                        return Err(ConfigError::Value { origin: origin.to_owned(), message });
                    }
                    *slot = value;
                }
                (None, _) if key.contains('.') => {
                    let message = format!("`\"{key}\"` is one name to TOML; write it without the quotes");
                    return Err(ConfigError::Value { origin: origin.to_owned(), message });
                }
                (None, _) => {
                    let suggestion = suggest(&full, known);
                    return Err(ConfigError::Unknown { origin: origin.to_owned(), key: full, suggestion });
                }
            }
        }
        Ok(())
    }
    walk(config, layer, "", known, origin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn set(sets: &[&str]) -> Result<Settings, ConfigError> {
        merge_config(&Settings::default(), &[], &sets.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn later_layers_win_and_values_are_toml() {
        let folder = std::env::temp_dir().join(format!("brigade-config-{}", std::process::id()));
        std::fs::write(&folder, "[train]\nsteps = 5\nseed = 3\n[optimizer]\nname = \"sgd\"\n").unwrap();
        let config: Settings = merge_config(
            &Settings::default(),
            &[&folder],
            &["train.steps=7".into(), "optimizer.learning_rate=1".into()],
        )
        .unwrap();
        std::fs::remove_file(&folder).unwrap();
        assert_eq!((config.train.steps, config.train.seed), (7, 3));
        assert_eq!((config.optimizer.name.as_str(), config.optimizer.learning_rate), ("sgd", 1.0));
        assert_eq!(set(&["optimizer.name=lion"]).unwrap().optimizer.name, "lion");
    }

    #[test]
    fn a_name_with_dots_in_quotes_is_no_setting_of_a_section() {
        let wrong = parse_defaults::<Settings>("\"train.steps\" = 7").unwrap_err().to_string();
        assert!(wrong.contains("`\"train.steps\"` is one name to TOML"), "{wrong}");
    }

    #[test]
    fn mistakes_are_named_with_the_nearest_setting() {
        let message = |s: &str| set(&[s]).unwrap_err().to_string();
        assert_eq!(
            message("optimizer.learning_rat=1"),
            "--set optimizer.learning_rat=1: there is no setting `optimizer.learning_rat`; did you mean `optimizer.learning_rate`?"
        );
        assert_eq!(
            message("learning_rate=1"),
            "--set learning_rate=1: there is no setting `learning_rate`; did you mean `optimizer.learning_rate`?"
        );
        assert_eq!(
            message("train.steps=many"),
            "--set train.steps=many: `train.steps`: a whole number is needed, not \"many\""
        );
        for (set, said) in [
            ("train.steps=1e3", "`train.steps`: a whole number is needed, not 1000.0"),
            ("optimizer.learning_rate=fast", "`optimizer.learning_rate`: a number is needed, not \"fast\""),
            ("optimizer.name=1", "`optimizer.name`: a text is needed, not 1"),
            (
                "train.steps=99999999999999999999",
                "99999999999999999999 is too large or too small for a setting",
            ),
            ("optimizer.learning_rate=1e999", "1e999 is too large or too small for a setting"),
        ] {
            assert!(message(set).contains(said), "{}", message(set));
        }
        assert!(message("train.steps=-1").contains("train.steps=-1"), "{}", message("train.steps=-1"));
        assert_eq!(message("train=1"), "--set train=1: `train` is a section; set one of its keys");
        assert!(message("train.steps").contains("write section.key=value"));
        assert!(
            message(&format!("model{}=1", ".a".repeat(40_000))).contains("the key is a setting's full name")
        );
        assert!(message("optimizer.learning_rate_scaling=cubic").contains(", not cubic"));
    }
}
