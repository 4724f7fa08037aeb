//! The objects of a file of JSON: the elements of one array, or one object after the other.

use std::path::Path;
use std::sync::Arc;

use super::columns::Columns;
use super::object;
use super::record::{MAX_RECORD_BYTES, Record, RecordLocation, too_large};
use crate::text::corpus::bytes::BytesRead;
use crate::text::corpus::files::SourceFile;
use crate::text::corpus::input::Input;
use crate::{Error, Result};

/// The objects of a file of JSON, read one at a time.
pub(super) struct Values {
    path: Arc<Path>,
    input: Input,
    columns: Columns,
    /// Of the next byte, from 1.
    line: u64,
    /// Bytes that have been read.
    offset: u64,
    at: At,
}

/// What comes next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Begin,
    /// An object or the end of the file.
    Sequence,
    /// An element; if it is the first, the array may end instead.
    Element {
        is_first: bool,
    },
    /// A comma or the end of the array.
    AfterElement,
    /// Nothing but white space.
    AfterArray,
    End,
}

impl Values {
    pub(super) fn open(file: &SourceFile, columns: &Columns, read: &BytesRead) -> Result<Self> {
        let input = Input::open(file, 0, u64::MAX, read)?;
        let (path, columns) = (file.path.as_path().into(), columns.clone());
        Ok(Self { path, input, columns, line: 1, offset: 0, at: At::Begin })
    }

    fn read(&mut self) -> Result<Option<Record>> {
        while let Some(byte) = self.next_byte()? {
            self.at = match (self.at, byte) {
                (_, b' ' | b'\t' | b'\r' | b'\n') => self.at,
                // A byte order mark.
                (At::Begin, 0xEF | 0xBB | 0xBF) if self.offset <= 3 => At::Begin,
                (At::Begin, b'[') => At::Element { is_first: true },
                (At::Begin | At::Sequence, b'{') => {
                    self.at = At::Sequence;
                    return self.object().map(Some);
                }
                (At::Element { .. }, b'{') => {
                    self.at = At::AfterElement;
                    return self.object().map(Some);
                }
                (At::AfterElement, b',') => At::Element { is_first: false },
                (At::AfterElement | At::Element { is_first: true }, b']') => At::AfterArray,
                (at, byte) => return Err(self.unexpected(at, byte)),
            };
        }
        match self.at {
            At::Element { .. } | At::AfterElement => Err(self.place().error("the file ends within an array")),
            _ => Ok(None),
        }
    }

    /// The record whose first brace has just been read.
    fn object(&mut self) -> Result<Record> {
        let (begin, place) = (self.offset - 1, self.place());
        let (mut bytes, mut depth, mut in_string, mut is_escaped) = (vec![b'{'], 1_u32, false, false);
        while depth > 0 {
            let buffer = match self.input.buffered() {
                Ok(buffer) => buffer,
                Err(source) => return Err(failed(&self.input, source, self.line)),
            };
            if buffer.is_empty() {
                return Err(place.error("the file ends within this object"));
            }
            let mut taken = 0;
            for byte in buffer {
                taken += 1;
                match byte {
                    b'\n' => self.line += 1,
                    _ if is_escaped => is_escaped = false,
                    b'\\' if in_string => is_escaped = true,
                    b'"' => in_string = !in_string,
                    b'{' if !in_string => depth += 1,
                    b'}' if !in_string => depth -= 1,
                    _ => {}
                }
                if depth == 0 {
                    break;
                }
            }
            bytes.extend_from_slice(&buffer[..taken]);
            self.input.consume(taken);
            self.offset += taken as u64;
            if bytes.len() as u64 > MAX_RECORD_BYTES {
                return Err(place.error(too_large("the object")));
            }
        }
        object::record(&bytes, begin, place, &self.path, &self.columns)
    }

    fn next_byte(&mut self) -> Result<Option<u8>> {
        let first = self.input.buffered().map(|buffer| buffer.first().copied());
        let Some(byte) = first.map_err(|source| failed(&self.input, source, self.line))? else {
            return Ok(None);
        };
        self.input.consume(1);
        self.offset += 1;
        self.line += u64::from(byte == b'\n');
        Ok(Some(byte))
    }

    fn place(&self) -> RecordLocation {
        RecordLocation::line(&self.path, self.line, 0)
    }

    fn unexpected(&self, at: At, byte: u8) -> Error {
        let found = object::other_than_object(char::from(byte).encode_utf8(&mut [0; 4]));
        let message = match at {
            At::AfterElement => "a comma or the end of the array is missing".to_owned(),
            At::AfterArray => "something follows the array".to_owned(),
            At::Element { .. } if byte == b']' => {
                "an element is missing before the end of the array".to_owned()
            }
            _ => format!("it is {}", found.unwrap_or("no JSON")),
        };
        self.place().error(format!(
            "{message}; a .json file is one array of objects like {{\"text\": \"…\"}}, or one such object after the other"
        ))
    }
}

/// An error of reading, which is on this line or after it.
fn failed(input: &Input, source: std::io::Error, line: u64) -> Error {
    input.error(source, &format!(", after line {}", line - 1))
}

impl Iterator for Values {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at == At::End {
            return None;
        }
        let record = self.read();
        if !matches!(record, Ok(Some(_))) {
            self.at = At::End;
        }
        record.transpose()
    }
}
