//! A record that is written as an object of JSON.

use std::fmt;
use std::path::Path;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::columns::Columns;
use super::record::{Record, RecordLocation};
use crate::{Error, Result};

/// The record that `bytes` of the file at `path` from byte `begin` on are.
pub(super) fn record(
    bytes: &[u8],
    begin: u64,
    place: RecordLocation,
    path: &Path,
    columns: &Columns,
) -> Result<Record> {
    let text = std::str::from_utf8(bytes).map_err(|error| Error::NotUtf8 {
        path: path.to_path_buf(),
        offset: begin + error.valid_up_to() as u64,
    })?;
    let text = if begin == 0 { text.trim_start_matches('\u{feff}') } else { text };
    if let Some(found) = other_than_object(text) {
        return Err(place.error(format!("it is {found}; a record is an object like {{\"text\": \"…\"}}")));
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let fields = Wanted(columns).deserialize(&mut json).and_then(|fields| {
        json.end()?;
        Ok(fields)
    });
    let (fields, others) = fields.map_err(|error| {
        // Serde counts lines within this record.
        let message = error.to_string().replace(&format!(" at line {}", error.line()), " at");
        place.error(format!("{message}; a record is a JSON object like {{\"text\": \"…\"}}"))
    })?;
    let mut record = columns.pick(fields, place, &others)?;
    record.source = columns.are_optional().then(|| text.trim().into());
    Ok(record)
}

/// What JSON that is not an object seems to be, judging by its beginning.
pub(super) fn other_than_object(text: &str) -> Option<&'static str> {
    match text.trim_start().bytes().next()? {
        b'[' => Some("an array"),
        b'"' => Some("a string"),
        b'0'..=b'9' | b'-' => Some("a number"),
        b't' | b'f' => Some("true or false"),
        b'n' => Some("null"),
        _ => None,
    }
}

/// Keeps the values of the columns that are wanted, and the names of the others, up to a few.
struct Wanted<'a>(&'a Columns);

impl<'de> DeserializeSeed<'de> for Wanted<'_> {
    type Value = (Map<String, Value>, Vec<String>);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Wanted<'_> {
    type Value = (Map<String, Value>, Vec<String>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut fields, mut others) = (Map::new(), Vec::new());
        while let Some(key) = map.next_key::<String>()? {
            if !self.0.has(&key) {
                map.next_value::<IgnoredAny>()?;
                others.push(key);
            } else if fields.contains_key(&key) {
                return Err(serde::de::Error::custom(format_args!("duplicate field `{key}`")));
            } else {
                fields.insert(key, map.next_value()?);
            }
        }
        Ok((fields, others))
    }
}
