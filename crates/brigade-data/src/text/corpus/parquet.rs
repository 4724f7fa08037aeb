//! The column `text` of a parquet file.

use std::fs::File;
use std::path::PathBuf;

use parquet::basic::Type;
use parquet::column::reader::ColumnReader;
use parquet::data_type::ByteArray;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::documents::Document;
use crate::text::panics::catch_panics;
use crate::{Error, Result};

const COLUMN: &str = "text";

/// How many rows are read at once.
const BATCH_ROWS: usize = 64;

/// The values of the column `text`, in order; rows without a value are skipped.
pub(super) fn texts(path: PathBuf, file: File) -> Result<impl Iterator<Item = Result<Document>>> {
    let reader = catch_panics(|| SerializedFileReader::new(file));
    let reader = reader.map_err(|message| Error::Parquet { path: path.clone(), message })?;
    let schema = reader.metadata().file_metadata().schema_descr_ptr();
    let is_text = |column: &parquet::schema::types::ColumnDescPtr| {
        column.path().parts() == [COLUMN]
            && column.max_rep_level() == 0
            && column.physical_type() == Type::BYTE_ARRAY
    };
    let Some(column) = schema.columns().iter().position(is_text) else {
        let names = schema
            .columns()
            .iter()
            .map(|column| format!("{} ({})", column.path().string(), column.physical_type()));
        return Err(Error::ParquetColumn { path, columns: names.collect::<Vec<_>>().join(", ") });
    };
    let optional = schema.column(column).max_def_level() > 0;
    Ok(Texts { path, reader, column, optional, next_group: 0, group: None, ready: Vec::new().into_iter() })
}

struct Texts {
    path: PathBuf,
    reader: SerializedFileReader<File>,
    column: usize,
    optional: bool,
    next_group: usize,
    group: Option<ColumnReader>,
    ready: std::vec::IntoIter<ByteArray>,
}

impl Iterator for Texts {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(value) = self.ready.next() {
                return Some(self.document(&value));
            }
            match catch_panics(|| self.read_batch()) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(message) => {
                    // Nothing can be read after this.
                    self.next_group = usize::MAX;
                    self.group = None;
                    return Some(Err(Error::Parquet { path: self.path.clone(), message }));
                }
            }
        }
    }
}

impl Texts {
    /// Reads the next rows, if need be from the next row group; returns false at the end of the file.
    fn read_batch(&mut self) -> parquet::errors::Result<bool> {
        let Some(ColumnReader::ByteArrayColumnReader(reader)) = &mut self.group else {
            if self.next_group >= self.reader.num_row_groups() {
                return Ok(false);
            }
            self.group = Some(self.reader.get_row_group(self.next_group)?.get_column_reader(self.column)?);
            self.next_group += 1;
            return Ok(true);
        };
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        let (rows, ..) =
            reader.read_records(BATCH_ROWS, self.optional.then_some(&mut levels), None, &mut values)?;
        if rows == 0 {
            self.group = None;
        }
        self.ready = values.into_iter();
        Ok(true)
    }

    fn document(&self, value: &ByteArray) -> Result<Document> {
        let bytes = value.data();
        let text = std::str::from_utf8(bytes).map_err(|error| Error::NotUtf8 {
            path: self.path.clone(),
            offset: error.valid_up_to() as u64,
        })?;
        Ok(Document { prompt: None, text: text.into(), source_bytes: bytes.len() as u64 })
    }
}
