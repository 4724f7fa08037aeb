//! JSON as Python's `json.dumps` writes it.

use std::io::{self, Write};

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, Serializer};

/// From where on Python writes numbers with an exponent, as a power of ten.
const LARGE: i32 = 16;
const SMALL: i32 = -4;

/// The filter `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(value: Value, arguments: Kwargs) -> Result<Value, Error> {
    let indent = match arguments.get::<Option<Value>>("indent")? {
        None => None,
        Some(value) if value.is_none() => None,
        Some(value) => match (value.as_str(), value.as_usize()) {
            (Some(text), _) => Some(text.to_owned()),
            (None, Some(spaces)) if spaces <= 100 => Some(" ".repeat(spaces)),
            _ => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("tojson cannot indent by {value}"),
                ));
            }
        },
    };
    let separators = arguments.get::<Option<Vec<String>>>("separators")?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson takes two separators")),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let ascii = arguments.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorted = arguments.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    arguments.assert_all_used()?;
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, "tojson of an undefined value"));
    }
    let value = if sorted { sort(&value)? } else { value };
    let format = Python { indent, item, key, ascii, depth: 0, empty: false };
    let mut text = Vec::new();
    let written = value.serialize(&mut Serializer::with_formatter(&mut text, format));
    written.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    String::from_utf8(text)
        .map(Value::from)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// With the keys of all objects in their order.
fn sort(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map => {
            let mut keys: Vec<_> = value.try_iter()?.collect();
            keys.sort();
            let fields = keys.into_iter().map(|key| Ok((key.clone(), sort(&value.get_item(&key)?)?)));
            fields.collect::<Result<Vec<_>, Error>>().map(Value::from_pairs)
        }
        ValueKind::Seq => {
            value.try_iter()?.map(|item| sort(&item)).collect::<Result<Vec<_>, _>>().map(Value::from)
        }
        _ => Ok(value.clone()),
    }
}

/// How Python writes JSON.
struct Python {
    /// Before each item, for each level; none: on one line.
    indent: Option<String>,
    /// Between items, and between a key and its value.
    item: String,
    key: String,
    ascii: bool,
    depth: usize,
    /// Whether the list or object has no item yet.
    empty: bool,
}

impl Python {
    fn line<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(indent.as_bytes()))
    }

    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        (self.depth, self.empty) = (self.depth + 1, true);
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.empty {
            self.line(writer)?;
        }
        self.empty = false;
        writer.write_all(bracket)
    }

    fn next<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.empty = false;
        if !first {
            writer.write_all(self.item.as_bytes())?;
        }
        self.line(writer)
    }
}

impl Formatter for Python {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }

    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(python_float(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if !self.ascii {
            return writer.write_all(fragment.as_bytes());
        }
        for unit in fragment.encode_utf16() {
            match u8::try_from(unit).ok().filter(u8::is_ascii) {
                Some(byte) => writer.write_all(&[byte])?,
                None => write!(writer, "\\u{unit:04x}")?,
            }
        }
        Ok(())
    }

    fn write_char_escape<W: ?Sized + Write>(&mut self, writer: &mut W, escape: CharEscape) -> io::Result<()> {
        // Those of Python are the same.
        serde_json::ser::CompactFormatter.write_char_escape(writer, escape)
    }
}

/// A number that is not whole, as Python writes it; none of another value.
pub(super) fn float(value: &Value) -> Option<String> {
    if !value.is_number() || value.is_integer() {
        return None;
    }
    f64::try_from(value.clone()).ok().map(python_float)
}

/// The shortest decimal number that reads back as the same, as Python's `repr` writes it.
fn python_float(value: f64) -> String {
    let shortest = format!("{value:e}");
    let exponent =
        shortest.split_once('e').and_then(|(digits, exponent)| Some((digits, exponent.parse::<i32>().ok()?)));
    match exponent {
        Some((digits, exponent)) if !(SMALL..LARGE).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{value:?}"),
    }
}
