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
            let words = line.split(' ').map(OsString::from).collect();
            let (command, words) = own.with_saved(command.clone(), words, saved);
            command.try_get_matches_from(words)
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

    /// What a command line leads to with a program's own flags, where a run has these.
    fn table_of<A: Args>(line: &str, saved: &Table) -> Result<Table, clap::Error> {
        let (own, words) = (OwnFlags::of::<A>(), line.split(' ').map(OsString::from).collect());
        let (command, words) = own.with_saved(A::augment_args(Command::new("a")), words, saved);
        Ok(own.table(&command.try_get_matches_from(words)?))
    }

    #[test]
    fn saved_values_are_what_other_flags_require() {
        #[derive(Debug, Args)]
        struct Linked {
            #[arg(long, required_unless_present = "_second")]
            _first: Option<String>,
            #[arg(long)]
            _second: Option<String>,
            #[arg(long, requires = "_second")]
            _third: Option<String>,
            #[arg(long, num_args = 2)]
            _pair: Vec<String>,
        }
        let saved =
            table_of::<Linked>("a --first=-x --second b --third c --pair p q", &Table::new()).unwrap();
        assert_eq!(table_of::<Linked>("a", &saved).unwrap(), saved);
        let other = table_of::<Linked>("a --third d", &saved).unwrap();
        assert_eq!((other["first"].as_str(), other["third"].as_str()), (Some("-x"), Some("d")));
        let first = table_of::<Linked>("a --first a", &Table::new()).unwrap();
        assert_eq!(table_of::<Linked>("a", &first).unwrap(), first);
        let missing = table_of::<Linked>("a --third d", &first).unwrap_err().to_string();
        assert!(missing.contains("--second"), "{missing}");
    }

    #[test]
    fn a_saved_member_is_enough_for_a_group_and_gives_way_to_another_one() {
        #[derive(Debug, Args)]
        #[group(required = true, multiple = false)]
        struct Source {
            #[arg(long)]
            _file: Option<String>,
            #[arg(long)]
            _url: Option<String>,
        }
        let saved = table_of::<Source>("a --file x", &Table::new()).unwrap();
        assert_eq!(toml::to_string(&saved).unwrap(), "file = \"x\"\n");
        assert_eq!(table_of::<Source>("a", &saved).unwrap(), saved);
        let other = table_of::<Source>("a --url y", &saved).unwrap();
        assert_eq!(toml::to_string(&other).unwrap(), "url = \"y\"\n");
        let missing = table_of::<Source>("a", &Table::new()).unwrap_err().to_string();
        assert!(missing.contains("--file") && missing.contains("--url"), "{missing}");
        assert!(table_of::<Source>("a --file x --url y", &Table::new()).is_err());

        #[derive(Debug, Args)]
        struct Apart {
            #[arg(long)]
            _deep: bool,
            #[arg(long, conflicts_with = "_deep")]
            _layers: Option<u8>,
        }
        let saved = table_of::<Apart>("a --layers 3", &Table::new()).unwrap();
        assert_eq!(toml::to_string(&saved).unwrap(), "deep = false\nlayers = 3\n");
        assert_eq!(
            toml::to_string(&table_of::<Apart>("a --deep", &saved).unwrap()).unwrap(),
            "deep = true\n"
        );
    }

    #[test]
    fn a_saved_default_excludes_and_requires_nothing() {
        #[derive(Debug, Args)]
        struct Defaults {
            #[arg(long, default_value_t = 4, conflicts_with = "_file")]
            _layers: u8,
            #[arg(long)]
            _file: Option<String>,
            #[arg(long, default_value = "a", requires = "_key")]
            _method: String,
            #[arg(long)]
            _key: Option<String>,
        }
        let saved = table_of::<Defaults>("a --file x", &Table::new()).unwrap();
        assert_eq!(toml::to_string(&saved).unwrap(), "layers = 4\nfile = \"x\"\nmethod = \"a\"\n");
        assert_eq!(table_of::<Defaults>("a", &saved).unwrap(), saved);
        let other = table_of::<Defaults>("a --layers 5", &Table::new()).unwrap();
        assert_eq!(table_of::<Defaults>("a", &other).unwrap(), other);
        let both = table_of::<Defaults>("a --layers 5 --file x", &Table::new()).unwrap_err().to_string();
        assert!(both.contains("cannot be used with"), "{both}");
    }

    #[test]
    fn a_switch_is_true_or_false() {
        for value in [Value::from("yes"), Value::from(1)] {
            let saved = Table::from_iter([("odd".to_owned(), value), ("count".to_owned(), 3.into())]);
            let message = table_of::<Flags>("a", &saved).unwrap_err().to_string();
            assert!(message.contains("true, false"), "{message}");
        }
    }

    #[test]
    fn a_switch_of_a_run_is_turned_off_by_a_setting() {
        let (own, mut saved) = (OwnFlags::of::<Flags>(), Table::new());
        let take = |mut layer: Layer, saved: &mut Table| {
            own.take(&mut layer, saved).unwrap();
            assert!(layer.table.is_empty());
        };
        for set in ["flags.odd=true", "flags.count=3", "flags.word=[\"x\", \"y\"]"] {
            take(Layer::of_set(set).unwrap(), &mut saved);
        }
        let shown = |saved: &Table| toml::to_string(&table_of::<Flags>("a", saved).unwrap()).unwrap();
        assert_eq!(shown(&saved), "count = 3\nword = [\"x\", \"y\"]\nodd = true\n");
        take(Layer::of_set("flags.odd=false").unwrap(), &mut saved);
        take(Layer::of_set("flags.word=[]").unwrap(), &mut saved);
        assert_eq!(shown(&saved), "count = 3\nodd = false\n");
    }

    #[test]
    fn a_configuration_has_their_section_before_the_settings() {
        let own = OwnFlags::of::<Flags>();
        let command = own.add_to(Command::new("a"));
        let matches = command.try_get_matches_from(["a", "--count", "3"]).unwrap();
        let settings = crate::settings::config_to_toml(&crate::settings::Settings::default()).unwrap();
        let mut table: Table = (own.section(&matches).unwrap() + &settings).parse().unwrap();
        let flags = table.remove(SECTION).unwrap();
        assert_eq!(toml::to_string(&flags).unwrap(), "count = 3\nodd = false\n");
        assert_eq!(table, settings.parse().unwrap());
        let none = OwnFlags::of::<()>();
        assert_eq!(none.section(&Command::new("a").get_matches_from(["a"])).unwrap(), "");
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
