//! The lines of a JSONL file.

use std::path::Path;
use std::sync::Arc;

use super::columns::Columns;
use super::object;
use super::record::{MAX_RECORD_BYTES, Part, Record, RecordLocation, too_large};
use crate::Result;
use crate::text::corpus::bytes::BytesRead;
use crate::text::corpus::files::SourceFile;
use crate::text::corpus::input::Input;

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
                return object::record(&bytes, begin, place, &self.path, &self.columns).map(Some);
            }
        }
        Ok(None)
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
