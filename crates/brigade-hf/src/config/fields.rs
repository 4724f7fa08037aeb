//! Fields of a JSON object, of which none that has a meaning is overlooked.

use std::cell::RefCell;

use brigade_sorted::SortedSet;
use serde_json::{Map, Value};

use crate::error::{HfError, UnknownField};

/// How similar two names must be for one to be suggested instead of the other, from 0 to 1.
const ALIKE: f64 = 0.7;

/// The fields of an object. Those that were asked for are known; [`finish`](Self::finish) refuses the others.
pub(super) struct Fields<'j> {
    /// The file, for messages.
    pub file: &'j str,
    /// Before the names of its fields in messages: that of the object with a dot, or nothing.
    prefix: String,
    object: &'j Map<String, Value>,
    known: RefCell<SortedSet<String>>,
}

/// A type that fields may have.
pub(super) trait FieldType: Sized {
    /// What is allowed, in words.
    const ALLOWED: &str;

    /// The value, if it is of this type.
    fn read(value: &Value) -> Option<Self>;
}

/// Sizes. Products of two of them are within a `u64`.
impl FieldType for usize {
    const ALLOWED: &str = "a whole number from 0 to 2147483647";

    fn read(value: &Value) -> Option<Self> {
        i32::try_from(value.as_u64()?).ok()?.try_into().ok()
    }
}

impl FieldType for u32 {
    const ALLOWED: &str = "a whole number from 0";

    fn read(value: &Value) -> Option<Self> {
        value.as_u64()?.try_into().ok()
    }
}

impl FieldType for f64 {
    const ALLOWED: &str = "a number";

    fn read(value: &Value) -> Option<Self> {
        value.as_f64()
    }
}

impl FieldType for bool {
    const ALLOWED: &str = "true or false";

    fn read(value: &Value) -> Option<Self> {
        value.as_bool()
    }
}

impl FieldType for String {
    const ALLOWED: &str = "text";

    fn read(value: &Value) -> Option<Self> {
        value.as_str().map(str::to_owned)
    }
}

impl FieldType for Vec<String> {
    const ALLOWED: &str = "a list of texts";

    fn read(value: &Value) -> Option<Self> {
        value.as_array()?.iter().map(String::read).collect()
    }
}

/// One number, several, or none.
pub(super) struct Ids(pub Vec<u32>);

impl FieldType for Ids {
    const ALLOWED: &str = "a whole number from 0, a list of them, or null";

    fn read(value: &Value) -> Option<Self> {
        match value {
            Value::Null => Some(Self(Vec::new())),
            Value::Array(ids) => ids.iter().map(u32::read).collect::<Option<_>>().map(Self),
            id => u32::read(id).map(|id| Self(vec![id])),
        }
    }
}

impl<'j> Fields<'j> {
    pub fn new(file: &'j str, object: &'j Map<String, Value>) -> Self {
        Self { file, prefix: String::new(), object, known: RefCell::default() }
    }

    /// The field's value, null included.
    pub fn value(&self, name: &str) -> Option<&'j Value> {
        self.known.borrow_mut().insert(name.to_owned());
        self.object.get(name)
    }

    /// The field, or what it is where it is absent.
    pub fn get<T: FieldType>(&self, name: &str, absent: T) -> Result<T, HfError> {
        match self.value(name) {
            None => Ok(absent),
            Some(value) => T::read(value).ok_or_else(|| self.wrong(name, T::ALLOWED)),
        }
    }

    /// The field, which may be null, or what it is where it is absent.
    pub fn get_or_null<T: FieldType>(&self, name: &str, absent: Option<T>) -> Result<Option<T>, HfError> {
        match self.value(name) {
            None => Ok(absent),
            Some(Value::Null) => Ok(None),
            Some(value) => match T::read(value) {
                None => Err(self.wrong(name, &format!("{} or null", T::ALLOWED))),
                value => Ok(value),
            },
        }
    }

    /// The field that is an object; null is as good as absent.
    pub fn object(&self, name: &str) -> Result<Option<Fields<'j>>, HfError> {
        match self.value(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(object)) => {
                let prefix = format!("{}{name}.", self.prefix);
                Ok(Some(Fields { file: self.file, prefix, object, known: RefCell::default() }))
            }
            Some(_) => Err(self.wrong(name, "an object or null")),
        }
    }

    /// Refuses the field unless it is absent, null, or this.
    pub fn must_be(&self, name: &str, only: impl Into<Value>) -> Result<(), HfError> {
        let only = only.into();
        let equal =
            |value: &Value| *value == only || value.as_f64().is_some_and(|is| only.as_f64() == Some(is));
        match self.value(name) {
            None | Some(Value::Null) => Ok(()),
            Some(value) if equal(value) => Ok(()),
            Some(_) => Err(self.wrong(name, &format!("only {only}"))),
        }
    }

    /// An error of this field.
    pub fn wrong(&self, name: &str, allowed: &str) -> HfError {
        let given = self.object.get(name).map_or_else(|| "absent".to_owned(), Value::to_string);
        HfError::field(self.file, &format!("{}{name}", self.prefix), given, allowed)
    }

    /// Refuses fields that were not asked for, unless they are harmless or say nothing. `family`: for the message.
    pub fn finish(&self, family: &str, harmless: &[&str]) -> Result<(), HfError> {
        let known = self.known.borrow();
        let unknown = self.object.iter().filter(|(name, value)| {
            !known.contains(*name) && !harmless.contains(&name.as_str()) && !says_nothing(value)
        });
        let fields: Vec<_> = unknown
            .map(|(name, value)| UnknownField {
                name: format!("{}{name}", self.prefix),
                value: value.to_string(),
                nearest: nearest(name, &known),
            })
            .collect();
        if fields.is_empty() {
            return Ok(());
        }
        Err(HfError::UnknownFields { file: self.file.to_owned(), family: family.to_owned(), fields })
    }
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

fn nearest(name: &str, known: &SortedSet<String>) -> Option<String> {
    let likeness = |other: &String| strsim::normalized_damerau_levenshtein(other, name);
    let nearest = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(nearest) >= ALIKE).then(|| nearest.clone())
}
