//! The flags of a program beside the standard ones, and their values in its configuration.

use std::ffi::OsString;

use anyhow::bail;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Args, Command};
use toml::{Table, Value};

use crate::settings::{ConfigError, Layer, Suggestion, is_section, parse_value};

/// The section of a configuration that has them.
pub(crate) const SECTION: &str = "flags";

/// The flags that a program adds to the standard ones.
pub(crate) struct OwnFlags {
    flags: Vec<Arg>,
    groups: Vec<ArgGroup>,
    /// Adds them to a command.
    add_to: fn(Command) -> Command,
    /// Makes the program's own type of them.
    check_values: fn(&ArgMatches) -> Result<(), clap::Error>,
}

impl OwnFlags {
    /// Those of `A`.
    pub(crate) fn of<A: Args>() -> Self {
        let command = A::augment_args(Command::new(""));
        Self {
            flags: command.get_arguments().cloned().collect(),
            groups: command.get_groups().cloned().collect(),
            add_to: A::augment_args,
            check_values: |matches| A::from_arg_matches(matches).map(drop),
        }
    }

    /// The command with these flags.
    pub(crate) fn add_to(&self, command: Command) -> Command {
        (self.add_to)(command)
    }

    /// Finds what the program cannot take of what was given.
    pub(crate) fn check_values(&self, matches: &ArgMatches) -> Result<(), clap::Error> {
        (self.check_values)(matches)
    }

    /// Refuses names that standard flags have.
    pub(crate) fn check(&self, standard: &Command) -> anyhow::Result<()> {
        for own in &self.flags {
            let same = |other: &&Arg| {
                own.get_id() == other.get_id()
                    || own.get_long().is_some_and(|long| Some(long) == other.get_long())
                    || own.get_short().is_some_and(|short| Some(short) == other.get_short())
            };
            if let Some(other) = standard.get_arguments().find(same) {
                let (own, other) = (own.get_id(), other.get_long().unwrap_or_default());
                bail!(
                    "the program's own flag `{own}` has the name of the standard flag --{other}; rename the field, \
                    or give it another name with #[arg(long, short)]"
                );
            }
        }
        Ok(())
    }

    /// Moves their section from the settings of a file or of a `--set` to `saved`.
    ///
    /// # Errors
    /// If it is not a section, or names a flag that the program does not have.
    pub(crate) fn take(&self, layer: &mut Layer, saved: &mut Table) -> Result<(), ConfigError> {
        let section = match layer.table.remove(SECTION) {
            None => return Ok(()),
            Some(Value::Table(section)) => section,
            Some(_) => return Err(is_section(&layer.origin, SECTION)),
        };
        for (key, value) in section {
            if !self.flags.iter().any(|own| name(own) == key) {
                let names = self.flags.iter().map(|own| name(own).to_owned()).collect();
                return Err(ConfigError::Unknown {
                    origin: layer.origin.clone(),
                    key: format!("{SECTION}.{key}"),
                    suggestion: Suggestion::Allowed { section: SECTION.into(), names },
                });
            }
            saved.insert(key, value);
        }
        Ok(())
    }

    /// The command and its words, in which flags that are not given have their saved values: unless a flag is given that excludes them. What can be written
    /// in front of the other words is, because flags that are given meet what others require.
    pub(crate) fn with_saved(
        &self,
        mut command: Command,
        mut words: Vec<OsString>,
        saved: &Table,
    ) -> (Command, Vec<OsString>) {
        // The files say what is missing here.
        let Ok(given) = command.clone().ignore_errors(true).try_get_matches_from(&words) else {
            return (command, words);
        };
        let is_given = |own: &Arg| {
            let source = given.value_source(own.get_id().as_str());
            source.is_some_and(|source| source != ValueSource::DefaultValue)
        };
        let given: Vec<&Arg> = self.flags.iter().filter(|own| is_given(own)).collect();
        let is_free = |own: &Arg| !given.iter().any(|other| self.exclude(&command, own, other));
        let free: Vec<_> = self.flags.iter().filter(|own| is_free(own)).collect();
        for own in free {
            let Some(value) = saved.get(name(own)) else { continue };
            let values = texts(value);
            if values.is_empty() {
                continue;
            }
            // What is written counts as given, which a default must not: flags that it excludes may be.
            let is_default = own
                .get_default_values()
                .iter()
                .map(|value| value.to_str())
                .eq(values.iter().map(|value| Some(value.as_str())));
            if let Some(written) = written(own, &values).filter(|_| !is_default) {
                words.splice(1..1, written);
                continue;
            }
            command = command.mut_arg(own.get_id(), |flag| flag.required(false).default_values(values));
            for group in self.groups.iter().filter(|group| group.get_args().any(|id| id == own.get_id())) {
                command = command.mut_group(group.get_id(), |group| group.required(false));
            }
        }
        (command, words)
    }

    /// Whether one of two flags has no saved value if the other is given: because it is the same, or they may not be given together.
    fn exclude(&self, command: &Command, own: &Arg, given: &Arg) -> bool {
        let conflict = |a: &Arg, b: &Arg| {
            command.get_arg_conflicts_with(a).iter().any(|other| other.get_id() == b.get_id())
        };
        let takes_one = |group: &ArgGroup| {
            let has = |flag: &Arg| group.get_args().any(|id| id == flag.get_id());
            !group.clone().is_multiple() && has(own) && has(given)
        };
        own.get_id() == given.get_id()
            || conflict(own, given)
            || conflict(given, own)
            || self.groups.iter().any(takes_one)
    }

    /// The section of a configuration with their values, as TOML; empty if none has one.
    ///
    /// # Errors
    /// If a value cannot be written as TOML.
    pub(crate) fn section(&self, matches: &ArgMatches) -> anyhow::Result<String> {
        let values = self.table(matches);
        if values.is_empty() {
            return Ok(String::new());
        }
        Ok(toml::to_string(&Table::from_iter([(SECTION.to_owned(), Value::Table(values))]))? + "\n")
    }

    /// The value of each flag that has one.
    fn table(&self, matches: &ArgMatches) -> Table {
        let value = |own: &Arg| {
            let raw = matches.try_get_raw(own.get_id().as_str()).ok().flatten()?;
            let mut values: Vec<Value> = raw.map(|raw| plain(&raw.to_string_lossy())).collect();
            Some(if values.len() == 1 { values.remove(0) } else { Value::Array(values) })
        };
        self.flags.iter().filter_map(|own| Some((name(own).to_owned(), value(own)?))).collect()
    }
}

/// A flag with values as words of a command line; none where words could be taken for another flag's value.
fn written(flag: &Arg, values: &[String]) -> Option<Vec<OsString>> {
    let long = flag.get_long()?;
    let with = |value: &String| OsString::from(format!("--{long}={value}"));
    let takes_one = flag.get_num_args().is_none_or(|values| values.max_values() <= 1);
    match flag.get_action() {
        ArgAction::SetTrue | ArgAction::SetFalse => {
            let turns_to = matches!(flag.get_action(), ArgAction::SetTrue);
            match values {
                [value] if *value == turns_to.to_string() => Some(vec![format!("--{long}").into()]),
                [value] if *value == (!turns_to).to_string() => Some(Vec::new()),
                _ => None,
            }
        }
        ArgAction::Append if takes_one => Some(values.iter().map(with).collect()),
        ArgAction::Set if takes_one && values.len() == 1 => Some(values.iter().map(with).collect()),
        _ => None,
    }
}

/// A flag's name in the configuration.
fn name(flag: &Arg) -> &str {
    flag.get_long().unwrap_or_else(|| flag.get_id().as_str())
}

/// A word of the command line as TOML: a number or `true` only where that is the same word.
fn plain(word: &str) -> Value {
    match parse_value(word) {
        value @ (Value::Integer(_) | Value::Float(_) | Value::Boolean(_)) if value.to_string() == word => {
            value
        }
        _ => Value::String(word.to_owned()),
    }
}

/// A value of the configuration as words of a command line.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(values) => values.iter().flat_map(texts).collect(),
        Value::String(text) => vec![text.clone()],
        other => vec![other.to_string()],
    }
}

#[cfg(test)]
mod tests;
