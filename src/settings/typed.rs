//! A configuration from its table, with messages that name the setting.
//!
//! TOML's own deserializer also reads structures from sequences and dates, which triples what a program compiles for each of them,
//! and its messages rarely say where.

use std::vec;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, Expected, MapAccess, SeqAccess,
    Unexpected, VariantAccess, Visitor,
};
use toml::{Table, Value, map};

use super::wrong_value::WrongValue;

/// Reads a configuration from its table.
pub(super) fn from_table<C: DeserializeOwned>(table: Table) -> Result<C, WrongValue> {
    C::deserialize(Setting(Value::Table(table)))
}

type Result<T, E = WrongValue> = std::result::Result<T, E>;

/// The value of a setting.
struct Setting(Value);

impl Setting {
    #[cold]
    fn wrong(&self, expected: &dyn Expected) -> WrongValue {
        let given = match &self.0 {
            Value::Boolean(value) => Unexpected::Bool(*value),
            Value::Integer(value) => Unexpected::Signed(*value),
            Value::Float(value) => Unexpected::Float(*value),
            Value::String(value) => Unexpected::Str(value),
            Value::Datetime(_) => Unexpected::Other("a date"),
            Value::Array(_) => Unexpected::Seq,
            Value::Table(_) => Unexpected::Map,
        };
        WrongValue::invalid_type(given, expected)
    }
}

#[cold]
fn negative(value: i64) -> WrongValue {
    WrongValue::custom(format_args!("a whole number of 0 or more is needed, not {value}"))
}

macro_rules! unsigned {
    ($($function:ident)*) => {$(
        fn $function<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            match self.0 {
                Value::Integer(value) => match u64::try_from(value) {
                    Ok(value) => visitor.visit_u64(value),
                    Err(_) => Err(negative(value)),
                },
                _ => Err(self.wrong(&visitor)),
            }
        }
    )*};
}

macro_rules! one_kind {
    ($($function:ident $kind:ident $visit:ident)*) => {$(
        fn $function<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            match self.0 {
                Value::$kind(value) => visitor.$visit(value),
                _ => Err(self.wrong(&visitor)),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for Setting {
    type Error = WrongValue;

    unsigned! { deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 }

    one_kind! {
        deserialize_bool Boolean visit_bool
        deserialize_str String visit_string
        deserialize_string String visit_string
        deserialize_identifier String visit_string
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.0 {
            Value::Boolean(value) => visitor.visit_bool(value),
            Value::Integer(value) => visitor.visit_i64(value),
            Value::Float(value) => visitor.visit_f64(value),
            Value::String(value) => visitor.visit_string(value),
            Value::Datetime(value) => visitor.visit_string(value.to_string()),
            Value::Array(values) => visitor.visit_seq(Items::of(values)),
            Value::Table(table) => visitor.visit_map(Entries::of(table)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.0 {
            Value::Array(values) => visitor.visit_seq(Items::of(values)),
            _ => Err(self.wrong(&visitor)),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.0 {
            Value::Table(table) => visitor.visit_map(Entries::of(table)),
            _ => Err(self.wrong(&visitor)),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        match self.0 {
            Value::String(name) => visitor.visit_enum(Variant { name, content: None }),
            Value::Table(table) if table.len() == 1 => {
                let (name, content) =
                    table.into_iter().next().unwrap_or((String::new(), Value::Boolean(false)));
                visitor.visit_enum(Variant { name, content: Some(content) })
            }
            _ => Err(self.wrong(&visitor)),
        }
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct ignored_any
    }
}

/// The values of an array.
struct Items {
    left: vec::IntoIter<Value>,
    read: usize,
}

impl Items {
    fn of(values: Vec<Value>) -> Self {
        Self { left: values.into_iter(), read: 0 }
    }
}

impl<'de> SeqAccess<'de> for Items {
    type Error = WrongValue;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>> {
        let Some(value) = self.left.next() else { return Ok(None) };
        let place = self.read;
        self.read += 1;
        seed.deserialize(Setting(value)).map(Some).map_err(|wrong| wrong.within(&format!("[{place}]")))
    }
}

/// The settings of a section.
struct Entries {
    left: map::IntoIter<String, Value>,
    /// The setting whose name has been read.
    next: (String, Value),
}

impl Entries {
    fn of(table: Table) -> Self {
        Self { left: table.into_iter(), next: (String::new(), Value::Boolean(false)) }
    }
}

impl<'de> MapAccess<'de> for Entries {
    type Error = WrongValue;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>> {
        let Some(next) = self.left.next() else { return Ok(None) };
        self.next = next;
        seed.deserialize(Setting(Value::String(self.next.0.clone()))).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value> {
        let value = std::mem::replace(&mut self.next.1, Value::Boolean(false));
        seed.deserialize(Setting(value)).map_err(|wrong| wrong.within(&self.next.0))
    }
}

/// One of several values by its name, with what it holds: `"name"`, or `{ name = content }`.
struct Variant {
    name: String,
    content: Option<Value>,
}

impl<'de> EnumAccess<'de> for Variant {
    type Error = WrongValue;
    type Variant = Content;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Content)> {
        let variant = seed.deserialize(Setting(Value::String(self.name)))?;
        Ok((variant, Content(self.content)))
    }
}

/// What one of several values holds.
struct Content(Option<Value>);

impl Content {
    fn value(self) -> Result<Setting> {
        self.0.map(Setting).ok_or_else(|| WrongValue::custom("the value is missing; write { name = value }"))
    }
}

impl<'de> VariantAccess<'de> for Content {
    type Error = WrongValue;

    fn unit_variant(self) -> Result<()> {
        match self.0 {
            None => Ok(()),
            Some(value) => {
                Err(WrongValue::custom(format_args!("this name takes no value, but {value} is given")))
            }
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value> {
        seed.deserialize(self.value()?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value> {
        self.value()?.deserialize_seq(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value> {
        self.value()?.deserialize_map(visitor)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Everything {
        flag: bool,
        count: usize,
        small: u8,
        signed: i32,
        rate: f64,
        text: String,
        maybe: Option<u64>,
        list: Vec<f32>,
        pair: (u32, String),
        own: Table,
        rest: Value,
        wrapped: Wrapped,
        choice: Choice,
        parts: Vec<Part>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Wrapped(u64);

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum Choice {
        Plain,
        One(u64),
        Two(u64, bool),
        Named { size: u64 },
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Part {
        #[serde(default)]
        size: u16,
    }

    const TEXT: &str = "
        flag = true\ncount = 3\nsmall = 255\nsigned = -7\nrate = 0.5\ntext = 'a'\nmaybe = 1\nlist = [1.5, 2.0]\npair = [1, 'b']
        wrapped = 4\nchoice = { named = { size = 2 } }\nparts = [{}, { size = 2 }]\n[own]\nany = [1, 'x']\n[rest]\nday = 2000-01-01\n";

    #[test]
    fn it_reads_what_toml_reads() {
        for choice in ["'plain'", "{ one = 1 }", "{ two = [1, true] }", "{ named = { size = 2 } }"] {
            let table: Table = TEXT.replace("{ named = { size = 2 } }", choice).parse().unwrap();
            let mut expected: Everything = table.clone().try_into().unwrap();
            // A date in a value of any type is its text.
            expected.rest = from_table::<Table>(table.clone()).unwrap()["rest"].clone();
            assert_eq!(expected.rest["day"].as_str(), Some("2000-01-01"));
            assert_eq!(from_table::<Everything>(table).unwrap(), expected);
        }
    }

    #[test]
    fn a_message_names_the_setting() {
        let message = |from: &str, to: &str| {
            let table: Table = TEXT.replace(from, to).parse().unwrap();
            from_table::<Everything>(table).unwrap_err().to_string()
        };
        assert_eq!(
            message("count = 3", "count = -3"),
            "`count`: a whole number of 0 or more is needed, not -3"
        );
        assert_eq!(
            message("small = 255", "small = 256"),
            "`small`: a whole number from 0 to 255 is needed, not 256"
        );
        assert_eq!(message("flag = true", "flag = 1"), "`flag`: true or false is needed, not 1");
        assert_eq!(
            message("{ size = 2 }]", "{ size = 'x' }]"),
            "`parts[1].size`: a whole number from 0 to 65535 is needed, not \"x\""
        );
        assert!(message("{ size = 2 } }", "3 }").starts_with("`choice`: a section is needed, not 3"));
        assert!(message("{ named = { size = 2 } }", "'one'").starts_with("`choice`: the value is missing"));
        assert!(message("{ named = { size = 2 } }", "{ plain = 1 }").contains("takes no value, but 1"));
        assert!(message("{ named = { size = 2 } }", "'plan'").ends_with(", not plan; did you mean plain?"));
        assert_eq!(message("count = 3", ""), "missing field `count`");
        assert!(message("count = 3", "counts = 3").starts_with("unknown field `counts`, expected one of"));
    }
}
