//! The lines of a JSONL file.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::columns::Columns;
use super::record::{Record, RecordLocation};
use super::{MAX_RECORD_BYTES, Part, too_large};
use crate::text::corpus::bytes::BytesRead;
use crate::text::corpus::files::SourceFile;
use crate::text::corpus::input::Input;
use crate::{Error, Result};

/// The lines of a JSONL file, or those that begin in a part of it; blank ones are skipped.
pub(super) struct Lines {
    path: Arc<Path>,
    input: Input,
    columns: Columns,
    line: u64,
    /// Where the first line begins.
    start: u64,
    /// Where the next line begins.
    offset: u64,
    /// Where the last line has begun.
    end: u64,
}

impl Lines {
    pub(super) fn open(file: &SourceFile, part: &Part, columns: &Columns, read: &BytesRead) -> Result<Self> {
        let part = part.clone().unwrap_or(0..u64::MAX);
        // What lies across the beginning is a line of the part before it.
        let before = part.start.saturating_sub(1);
        let mut input = Input::open(file, before, part.end, read)?;
        let start = if part.start > 0 { before + input.skip_line()? } else { 0 };
        let (path, columns) = (file.path.as_path().into(), columns.clone());
        Ok(Self { path, input, columns, line: 0, start, offset: start, end: part.end })
    }

    fn read(&mut self) -> Result<Option<Record>> {
        let mut bytes = Vec::new();
        while self.offset < self.end {
            bytes.clear();
            let read = self.input.read_line(&mut bytes, MAX_RECORD_BYTES);
            match read.map_err(|source| self.input.error(source, &format!(", after line {}", self.line)))? {
                0 => break,
                count => self.offset += count as u64,
            }
            self.line += 1;
            let place = RecordLocation::line(&self.path, self.line, self.start);
            if bytes.len() as u64 > MAX_RECORD_BYTES {
                return Err(place.error(too_large("the line")));
            }
            if !bytes.iter().all(u8::is_ascii_whitespace) {
                let begin = self.offset - bytes.len() as u64;
                return self.parse(&bytes, begin, place).map(Some);
            }
        }
        Ok(None)
    }

    fn parse(&self, bytes: &[u8], begin: u64, place: RecordLocation) -> Result<Record> {
        let text = std::str::from_utf8(bytes).map_err(|error| Error::NotUtf8 {
            path: self.path.to_path_buf(),
            offset: begin + error.valid_up_to() as u64,
        })?;
        let text = if begin == 0 { text.trim_start_matches('\u{feff}') } else { text };
        if let Some(found) = other_than_object(text) {
            return Err(place.error(format!("it is {found}; a line is an object like {{\"text\": \"…\"}}")));
        }
        let mut json = serde_json::Deserializer::from_str(text);
        let fields = Wanted(&self.columns).deserialize(&mut json).and_then(|fields| {
            json.end()?;
            Ok(fields)
        });
        let (fields, others) = fields.map_err(|error| {
            // Serde counts lines within this one.
            let message = error.to_string().replace(&format!(" at line {}", error.line()), " at");
            place.error(format!("{message}; a line is a JSON object like {{\"text\": \"…\"}}"))
        })?;
        let mut record = self.columns.pick(fields, place, &others)?;
        record.source = self.columns.are_optional().then(|| text.trim().into());
        Ok(record)
    }
}

impl Iterator for Lines {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.read();
        if record.is_err() {
            self.end = 0;
        }
        record.transpose()
    }
}

/// What a line of JSON that is not an object seems to be, judging by its beginning.
fn other_than_object(text: &str) -> Option<&'static str> {
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
