//! The flags of a program beside the standard ones, and their values in its configuration.

use anyhow::bail;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command};
use toml::{Table, Value};

use crate::settings::{ConfigError, Layer, Suggestion, parse_value};

/// The section of a configuration that has them.
pub(super) const SECTION: &str = "flags";

/// The flags that a program adds to the standard ones.
pub(super) struct OwnFlags(Vec<Arg>);

impl OwnFlags {
    /// Those of `A`.
    pub(super) fn of<A: Args>() -> Self {
        Self(A::augment_args(Command::new("")).get_arguments().cloned().collect())
    }

    /// Refuses names that standard flags have.
    pub(super) fn check(&self, standard: &Command) -> anyhow::Result<()> {
        for own in &self.0 {
            let same = |other: &&Arg| {
                own.get_id() == other.get_id()
                    || own.get_long().is_some_and(|long| Some(long) == other.get_long())
                    || own.get_short().is_some_and(|short| Some(short) == other.get_short())
            };
            if let Some(other) = standard.get_arguments().find(same) {
                let (own, other) = (own.get_id(), other.get_long().unwrap_or_default());
                bail!(
                    "the program's own flag `{own}` has the name of the standard flag --{other}; its field, and what \
                     #[arg(long, short)] makes of it, must have names of their own"
                );
            }
        }
        Ok(())
    }

    /// The command without the demand that flags be given.
    pub(super) fn optional(&self, command: Command) -> Command {
        self.0.iter().fold(command, |command, own| command.mut_arg(own.get_id(), |flag| flag.required(false)))
    }

    /// Moves their section from a file's settings to `saved`.
    ///
    /// # Errors
    /// If the section names a flag that the program does not have.
    pub(super) fn take(&self, layer: &mut Layer, saved: &mut Table) -> Result<(), ConfigError> {
        let Some(Value::Table(section)) = layer.table.remove(SECTION) else { return Ok(()) };
        for (key, value) in section {
            if !self.0.iter().any(|own| name(own) == key) {
                let names = self.0.iter().map(|own| name(own).to_owned()).collect();
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

    /// The command, in which flags that are not given have their saved values.
    pub(super) fn with_defaults(
        &self,
        mut command: Command,
        given: Option<&ArgMatches>,
        saved: &Table,
    ) -> Command {
        let Some(given) = given else { return command };
        for own in &self.0 {
            let source = given.value_source(own.get_id().as_str());
            let is_given = source.is_some_and(|source| source != ValueSource::DefaultValue);
            if let Some(value) = saved.get(name(own)).filter(|_| !is_given) {
                let values = texts(value);
                command = command.mut_arg(own.get_id(), |flag| flag.required(false).default_values(values));
            }
        }
        command
    }

    /// The value of each flag that has one.
    pub(super) fn table(&self, matches: &ArgMatches) -> Table {
        let value = |own: &Arg| {
            let raw = matches.try_get_raw(own.get_id().as_str()).ok().flatten()?;
            let mut values: Vec<Value> = raw.map(|raw| plain(&raw.to_string_lossy())).collect();
            Some(if values.len() == 1 { values.remove(0) } else { Value::Array(values) })
        };
        self.0.iter().filter_map(|own| Some((name(own).to_owned(), value(own)?))).collect()
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
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::settings::StandardFlags;

    #[derive(Debug, Args)]
    struct Flags {
        #[arg(long)]
        count: u8,
        #[arg(long, short, action = clap::ArgAction::Append)]
        word: Vec<String>,
        #[arg(long)]
        odd: bool,
        file: Option<String>,
    }

    fn standard() -> Command {
        StandardFlags::augment_args(Command::new(""))
    }

    #[test]
    fn values_of_a_run_come_back_where_none_is_given() {
        let own = OwnFlags::of::<Flags>();
        own.check(&standard()).unwrap();
        let command = Flags::augment_args(Command::new("a"));
        let read = |line: &str, saved: &Table| {
            let words = || line.split(' ');
            let given = own.optional(command.clone()).try_get_matches_from(words()).unwrap();
            own.with_defaults(command.clone(), Some(&given), saved).try_get_matches_from(words())
        };
        let first = read("a --count 007 --word x --word 3 f", &Table::new()).unwrap();
        let saved = own.table(&first);
        assert_eq!(
            toml::to_string(&saved).unwrap(),
            "count = \"007\"\nword = [\"x\", 3]\nodd = false\nfile = \"f\"\n"
        );
        assert_eq!(own.table(&read("a", &saved).unwrap()), saved);
        let changed = own.table(&read("a --odd --word y", &saved).unwrap());
        assert_eq!(
            toml::to_string(&changed).unwrap(),
            "count = \"007\"\nword = \"y\"\nodd = true\nfile = \"f\"\n"
        );
        assert!(read("a", &Table::new()).unwrap_err().to_string().contains("--count"));
    }

    #[test]
    fn names_of_standard_flags_are_refused() {
        #[derive(Debug, Args)]
        struct Long {
            #[arg(long = "seed")]
            _start: u8,
        }
        #[derive(Debug, Args)]
        struct Short {
            #[arg(short = 'q')]
            _question: u8,
        }
        #[derive(Debug, Args)]
        struct Field {
            #[arg(long = "beginning", id = "seed")]
            _seed: u8,
        }
        for (own, said) in [
            (OwnFlags::of::<Long>(), "--seed"),
            (OwnFlags::of::<Short>(), "--quiet"),
            (OwnFlags::of::<Field>(), "--seed"),
        ] {
            let message = own.check(&standard()).unwrap_err().to_string();
            assert!(message.contains(&format!("the name of the standard flag {said}; ")), "{message}");
        }
    }
}
