//! What is wrong with the value of a setting, in words.

use std::fmt::{self, Display};

use serde::de::{Error, Expected, Unexpected};

/// A value that a setting does not take.
#[derive(Debug, Default)]
pub(super) struct WrongValue {
    /// The setting's full name.
    name: String,
    what: String,
}

impl WrongValue {
    /// Whether the setting is known.
    pub(super) fn is_named(&self) -> bool {
        !self.name.is_empty()
    }

    /// What is wrong with the setting inside of a section.
    pub(super) fn within(mut self, section: &str) -> Self {
        let dot = if self.name.is_empty() || self.name.starts_with('[') { "" } else { "." };
        self.name.insert_str(0, dot);
        self.name.insert_str(0, section);
        self
    }
}

impl Display for WrongValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.is_empty() {
            true => f.write_str(&self.what),
            false => write!(f, "`{}`: {}", self.name, self.what),
        }
    }
}

impl std::error::Error for WrongValue {}

impl Error for WrongValue {
    fn custom<T: Display>(what: T) -> Self {
        Self { what: what.to_string(), ..Self::default() }
    }

    #[cold]
    fn invalid_type(given: Unexpected<'_>, needed: &dyn Expected) -> Self {
        Self::custom(format_args!("{} is needed, not {}", needed_in_words(needed), given_in_words(given)))
    }

    #[cold]
    fn unknown_variant(given: &str, names: &'static [&'static str]) -> Self {
        let distance = |name: &&&str| strsim::damerau_levenshtein(given, name);
        let nearest =
            names.iter().min_by_key(distance).filter(|name| distance(name) <= given.chars().count() / 3);
        let meant = nearest.map_or(String::new(), |name| format!("; did you mean {name}?"));
        let all = match names {
            [most @ .., last] if !most.is_empty() => format!("{} or {last}", most.join(", ")),
            _ => names.concat(),
        };
        Self::custom(format_args!("it must be {all}, not {given}{meant}"))
    }

    #[cold]
    fn invalid_value(given: Unexpected<'_>, needed: &dyn Expected) -> Self {
        Self::invalid_type(given, needed)
    }
}

/// What serde calls by the names of Rust's types.
fn needed_in_words(needed: &dyn Expected) -> String {
    let needed = needed.to_string();
    let words = match needed.as_str() {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number of 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" => "text in quotes",
        "a sequence" => "a list",
        "a map" => "a section",
        other if other.starts_with("struct ") => "a section",
        other if other.starts_with("enum ") => "a name in quotes",
        other => other,
    };
    words.to_owned()
}

fn given_in_words(given: Unexpected<'_>) -> String {
    match given {
        Unexpected::Bool(value) => value.to_string(),
        Unexpected::Signed(value) => value.to_string(),
        Unexpected::Unsigned(value) => value.to_string(),
        Unexpected::Float(value) => value.to_string(),
        Unexpected::Str(value) => format!("{value:?}"),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a section".to_owned(),
        other => other.to_string(),
    }
}
