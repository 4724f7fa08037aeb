//! The rows of tables: Parquet files, and Arrow files and streams, as `datasets.save_to_disk` writes them.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_schema::{ArrowError, Schema};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Map;

use super::Part;
use super::columns::{Columns, missing};
use super::record::{Place, Record};
use super::value::value;
use crate::text::corpus::files::SourceFile;
use crate::text::corpus::input::{BytesRead, Counted};
use crate::text::panics::catch_panics;
use crate::{Error, Result};

/// How many rows of a parquet file are read at once.
const BATCH_ROWS: usize = 64;

/// What an Arrow file begins with; a stream does not.
const FILE_MAGIC: &[u8; 6] = b"ARROW1";

/// The most bytes of a file before its stream.
const MOST_PADDING: u64 = 64;

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>;

/// The rows of an Arrow file or stream, with the columns that are wanted.
pub(super) fn arrow(file: &SourceFile, columns: &Columns, read: &BytesRead) -> Result<Rows> {
    let table = Table { path: file.path.as_path().into(), kind: "an Arrow file", columns: columns.clone() };
    let failed = |source| Error::io("read", &file.path, source);
    let mut opened = File::open(&file.path).map_err(failed)?;
    opened.seek(SeekFrom::Start(start_of_stream(&opened).map_err(failed)?)).map_err(failed)?;
    let counted = BufReader::with_capacity(1 << 16, Counted::new(opened, read));
    let reader = table.open(|| StreamReader::try_new(counted, None))?;
    let wanted = table.wanted(&reader.schema())?;
    let project = move |batch: Result<RecordBatch, _>| batch.and_then(|batch| batch.project(&wanted));
    Ok(Rows::new(table, Box::new(reader.map(project)), 0))
}

/// Where the stream begins, which in a file lies between the magic, padded with zeros, and a table of contents.
fn start_of_stream(file: &File) -> std::io::Result<u64> {
    let mut first = Vec::new();
    file.take(MOST_PADDING).read_to_end(&mut first)?;
    let padded = first.strip_prefix(FILE_MAGIC);
    let zeros = padded.map(|rest| rest.iter().take_while(|byte| **byte == 0).count());
    Ok(zeros.map_or(0, |zeros| (FILE_MAGIC.len() + zeros) as u64))
}

/// The rows of the groups in `part` of a parquet file, with the columns that are wanted.
pub(super) fn parquet(file: &SourceFile, part: &Part, columns: &Columns, read: &BytesRead) -> Result<Rows> {
    let path: Arc<Path> = file.path.as_path().into();
    let table = Table { path: Arc::clone(&path), kind: PARQUET, columns: columns.clone() };
    let reader = open_parquet(&path)?;
    let groups = reader.metadata().row_groups();
    let part = part.clone().unwrap_or(0..groups.len() as u64);
    let part = part.start as usize..groups.len().min(part.end as usize);
    let before = groups[..part.start].iter().map(|group| group.num_rows().max(0) as u64).sum();
    let bytes: i64 = groups[part.clone()].iter().map(|group| group.compressed_size().max(0)).sum();
    let wanted = table.wanted(reader.schema())?;
    let mask = ProjectionMask::roots(reader.parquet_schema(), wanted);
    let reader = reader.with_projection(mask).with_row_groups(part.collect()).with_batch_size(BATCH_ROWS);
    let batches = table.open(|| reader.build())?;
    read.fetch_add(bytes as u64, Ordering::Relaxed);
    Ok(Rows::new(table, Box::new(batches), before))
}

/// The groups of rows of a parquet file in parts of about `part_bytes`, each with its size.
pub(super) fn parquet_parts(path: &Path, part_bytes: u64) -> Result<Vec<(Part, u64)>> {
    let reader = open_parquet(path)?;
    let mut parts: Vec<(std::ops::Range<u64>, u64)> = Vec::new();
    for (group, metadata) in (0..).zip(reader.metadata().row_groups()) {
        let bytes = metadata.compressed_size().max(0) as u64;
        match parts.last_mut() {
            Some((groups, before)) if *before + bytes <= part_bytes => {
                (groups.end, *before) = (group + 1, *before + bytes);
            }
            _ => parts.push((group..group + 1, bytes)),
        }
    }
    Ok(parts.into_iter().map(|(groups, bytes)| (Some(groups), bytes)).collect())
}

const PARQUET: &str = "a parquet file";

fn open_parquet(path: &Path) -> Result<ParquetRecordBatchReaderBuilder<File>> {
    let file = File::open(path).map_err(|source| Error::io("open", path, source))?;
    catch_panics(|| ParquetRecordBatchReaderBuilder::try_new(file))
        .map_err(|message| damaged(path, PARQUET, String::new(), message))
}

fn damaged(path: &Path, kind: &'static str, place: String, message: String) -> Error {
    Error::Damaged { path: path.into(), kind, place, message }
}

/// A file of rows.
struct Table {
    path: Arc<Path>,
    kind: &'static str,
    columns: Columns,
}

impl Table {
    fn open<R, E: std::fmt::Display>(&self, open: impl FnOnce() -> Result<R, E>) -> Result<R> {
        catch_panics(open).map_err(|message| damaged(&self.path, self.kind, String::new(), message))
    }

    /// The numbers of the columns that are wanted.
    fn wanted(&self, schema: &Schema) -> Result<Vec<usize>> {
        let fields = schema.fields();
        let is_there = |column: &str| fields.iter().any(|field| field.name() == column);
        if let Some(column) = self.columns.required().find(|column| !is_there(column)) {
            let describe =
                |field: &arrow_schema::FieldRef| format!("{} ({})", field.name(), field.data_type());
            let there: Vec<String> = fields.iter().map(describe).collect();
            return Err(Place::file(&self.path).error(missing(column, &there)));
        }
        let wanted = fields.iter().enumerate().filter(|(_, field)| self.columns.has(field.name()));
        Ok(wanted.map(|(number, _)| number).collect())
    }
}

/// A stream of rows.
pub(super) struct Rows {
    table: Table,
    batches: Batches,
    batch: Option<RecordBatch>,
    /// The next row of the batch.
    next: usize,
    /// How many rows of the file lie before the next one.
    row: u64,
}

impl Rows {
    fn new(table: Table, batches: Batches, row: u64) -> Self {
        Self { table, batches, batch: None, next: 0, row }
    }

    /// Whether there is a next row.
    fn has_next(&mut self) -> Result<bool> {
        while self.batch.as_ref().is_none_or(|batch| batch.num_rows() <= self.next) {
            (self.batch, self.next) = (None, 0);
            let batch = catch_panics(|| self.batches.next().transpose());
            self.batch = batch.map_err(|message| {
                damaged(&self.table.path, self.table.kind, format!(", after row {}", self.row), message)
            })?;
            if self.batch.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn read(&mut self) -> Result<Option<Record>> {
        if !self.has_next()? {
            return Ok(None);
        }
        let Some(batch) = &self.batch else { return Ok(None) };
        let (row, place) = (self.next, Place::row(&self.table.path, self.row + 1));
        (self.next, self.row) = (self.next + 1, self.row + 1);
        let mut fields = Map::new();
        for (field, array) in batch.schema_ref().fields().iter().zip(batch.columns()) {
            let value = value(array, row);
            let value =
                value.map_err(|message| place.error(format!("the column `{}` {message}", field.name())));
            fields.insert(field.name().clone(), value?);
        }
        self.table.columns.pick(fields, place, &[]).map(Some)
    }
}

impl Iterator for Rows {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.read();
        if record.is_err() {
            // Nothing can be read after this.
            (self.batches, self.batch) = (Box::new(std::iter::empty()), None);
        }
        record.transpose()
    }
}
