//! One record, and where it is.

use std::fmt;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::{Error, Result};

/// A record above this size is refused rather than held in memory.
pub(super) const MAX_RECORD_BYTES: u64 = 256 << 20;

/// A part of a file: the bytes in which its lines begin, or the groups of its rows. Text, JSON, Arrow and compressed files have no parts.
pub(crate) type Part = Option<Range<u64>>;

/// A record of a file: a line of JSONL, an object of a file of JSON, or a row of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The columns, by the names that they were asked for. Bytes of a table are text here.
    pub fields: Map<String, Value>,
    /// Where it is, for messages.
    pub place: RecordLocation,
    /// The JSON that it was read from, if that has the same fields and others at most.
    pub(super) source: Option<Box<str>>,
}

/// Where a record is: `notes.jsonl:3`, or `notes.parquet, row 3`, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordLocation {
    path: Arc<Path>,
    position: Position,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    File,
    /// A line's number after `skipped` bytes that were not read.
    Line {
        line: u64,
        skipped: u64,
    },
    #[cfg(feature = "parquet")]
    Row(u64),
}

impl Record {
    /// All of it as a JSON object, without columns of a table that are null. Fields have the order that they had in a file, if that is JSON and calls them by the same names.
    pub fn json(&self) -> String {
        match &self.source {
            Some(source) => source.to_string(),
            None => {
                let fields = self.fields.iter().filter(|(_, value)| !value.is_null());
                Value::Object(fields.map(|(name, value)| (name.clone(), value.clone())).collect()).to_string()
            }
        }
    }

    /// The text in a column; `None` where the column is missing or null.
    ///
    /// # Errors
    /// [`Error::Record`] where it is something else.
    pub fn text(&self, column: &str) -> Result<Option<&str>> {
        match self.fields.get(column) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => {
                let kind = kind(other);
                Err(self.place.error(format!("the column for `{column}` has {kind}, but must have text")))
            }
        }
    }
}

/// What a value of JSON is, in words.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

impl RecordLocation {
    /// A whole file.
    pub(crate) fn file(path: &Path) -> Self {
        Self { path: path.into(), position: Position::File }
    }

    /// A line of a file, from 1, after `skipped` bytes that were not read.
    pub(super) fn line(path: &Arc<Path>, line: u64, skipped: u64) -> Self {
        Self { path: Arc::clone(path), position: Position::Line { line, skipped } }
    }

    /// A row of a table, from 1.
    #[cfg(feature = "parquet")]
    pub(super) fn row(path: &Arc<Path>, row: u64) -> Self {
        Self { path: Arc::clone(path), position: Position::Row(row) }
    }

    /// The error that says what is wrong there.
    pub fn error(&self, message: impl Into<String>) -> Error {
        Error::Record { place: self.to_string(), message: message.into() }
    }
}

impl fmt::Display for RecordLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.position {
            Position::File => write!(f, "{path}"),
            // Only messages need the number of lines in what was skipped.
            Position::Line { line, skipped } => match line_ends(&self.path, skipped) {
                Ok(before) => write!(f, "{path}:{}", before + line),
                Err(_) => write!(f, "{path}, line {line} after byte {skipped}"),
            },
            #[cfg(feature = "parquet")]
            Position::Row(row) => write!(f, "{path}, row {row}"),
        }
    }
}

/// How many lines end in the first `bytes` bytes of a file.
fn line_ends(path: &Path, bytes: u64) -> std::io::Result<u64> {
    if bytes == 0 {
        return Ok(0);
    }
    let mut read = std::io::BufReader::new(std::fs::File::open(path)?.take(bytes));
    let mut lines = 0;
    loop {
        let buffer = std::io::BufRead::fill_buf(&mut read)?;
        if buffer.is_empty() {
            return Ok(lines);
        }
        lines += buffer.iter().filter(|byte| **byte == b'\n').count() as u64;
        let count = buffer.len();
        std::io::BufRead::consume(&mut read, count);
    }
}

/// Why a record is refused that is above [`MAX_RECORD_BYTES`].
pub(super) fn too_large(what: &str) -> String {
    format!("{what} has more than {} MiB", MAX_RECORD_BYTES >> 20)
}
