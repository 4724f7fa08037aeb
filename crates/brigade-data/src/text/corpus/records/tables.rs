//! The rows of tables: Parquet files, and Arrow files and streams, as `datasets.save_to_disk` writes them.

use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_schema::{ArrowError, Schema};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Map, Value};

use super::chunks::ChunkFile;
use super::columns::{Columns, missing};
use super::record::{Part, Record, RecordLocation};
use super::value::value;
use crate::text::corpus::bytes::{BytesRead, Counted, Failure};
use crate::text::corpus::files::{Format, SourceFile};
use crate::text::panics::catch_panics;
use crate::{Error, Result};

/// How many rows of a parquet file are read at once.
const BATCH_ROWS: usize = 64;

/// What an Arrow file begins with; a stream does not.
const FILE_MAGIC: &[u8; 6] = b"ARROW1";

/// The most bytes of a file before its stream.
const MAX_PADDING: u64 = 64;

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>;

/// The rows of an Arrow file or stream, with the columns that are wanted.
pub(super) fn arrow(file: &SourceFile, columns: &Columns, read: &BytesRead) -> Result<Rows> {
    let table = Table::new(file, "an Arrow file", columns);
    let first = Counted::open(file, 0, MAX_PADDING, &BytesRead::default())?;
    let start = start_of_stream(first).map_err(|source| Error::io("read", &file.path, source))?;
    if start > 0 && !ends_with_magic(file)? {
        return Err(table.damaged(String::new(), "its end is missing".into()));
    }
    let at_end = Arc::new(AtomicBool::new(false));
    let counted = ErrorRecordingReader {
        file: file.clone(),
        bytes: Counted::open(file, start, u64::MAX, read)?,
        failure: table.failure.clone(),
        at_end: Arc::clone(&at_end),
    };
    let buffered = BufReader::with_capacity(1 << 16, counted);
    let reader = table.open(|| StreamReader::try_new(buffered, None))?;
    let wanted = table.wanted(&reader.schema())?;
    let project = move |batch: Result<RecordBatch, _>| batch.and_then(|batch| batch.project(&wanted));
    // A marker ends a stream, and nothing is read after it.
    let is_cut = std::iter::once_with(move || at_end.load(Ordering::Relaxed)).filter(|is_cut| *is_cut);
    let cut = is_cut.map(|_| Err(ArrowError::IpcError("its end is missing".into())));
    Ok(Rows::new(table, Box::new(reader.map(project).chain(cut)), 0))
}

/// Where the stream begins, which in a file lies between the magic, padded with zeros, and a table of contents.
fn start_of_stream(file: impl Read) -> std::io::Result<u64> {
    let mut first = Vec::new();
    file.take(MAX_PADDING).read_to_end(&mut first)?;
    let padded = first.strip_prefix(FILE_MAGIC);
    let zeros = padded.map(|rest| rest.iter().take_while(|byte| **byte == 0).count());
    Ok(zeros.map_or(0, |zeros| (FILE_MAGIC.len() + zeros) as u64))
}

/// Whether a file has its end: without it, a stream that is cut between two batches looks whole.
fn ends_with_magic(file: &SourceFile) -> Result<bool> {
    let failed = |source| Error::io("read", &file.path, source);
    let size = match &file.object {
        Some(object) => object.size(),
        None => std::fs::metadata(&file.path).map_err(failed)?.len(),
    };
    let start = size.saturating_sub(FILE_MAGIC.len() as u64);
    let mut end = Vec::new();
    Counted::open(file, start, u64::MAX, &BytesRead::default())?.read_to_end(&mut end).map_err(failed)?;
    Ok(end == FILE_MAGIC)
}

/// The rows of the groups in `part` of a parquet file, with the columns that are wanted.
pub(super) fn parquet(file: &SourceFile, part: &Part, columns: &Columns, read: &BytesRead) -> Result<Rows> {
    let table = Table::new(file, PARQUET, columns);
    let reader = table.open_parquet(file)?;
    let groups = reader.metadata().row_groups();
    let part = part.clone().unwrap_or(0..groups.len() as u64);
    if part.start > groups.len() as u64 {
        return Err(table.damaged(String::new(), "it has fewer groups of rows than it had".into()));
    }
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

/// The names that a column's numbers stand for, which `datasets` keeps beside the schema of what it writes: those of a `ClassLabel`, or of a list of them.
pub(super) fn class_names(file: &SourceFile, column: &str) -> Result<Option<Vec<String>>> {
    let schema = match file.format {
        Format::Arrow => {
            let table = Table::new(file, "an Arrow file", &Columns::default());
            let first = Counted::open(file, 0, MAX_PADDING, &BytesRead::default())?;
            let start = start_of_stream(first).map_err(|source| Error::io("read", &file.path, source))?;
            let bytes = Counted::open(file, start, u64::MAX, &BytesRead::default())?;
            table.open(|| StreamReader::try_new(BufReader::new(bytes), None))?.schema()
        }
        _ => Table::new(file, PARQUET, &Columns::default()).open_parquet(file)?.schema().clone(),
    };
    let described = schema.metadata().get("huggingface").and_then(|text| serde_json::from_str(text).ok());
    let feature =
        described.as_ref().and_then(|value: &Value| value.get("info")?.get("features")?.get(column));
    let own =
        feature.and_then(|feature| feature.get("names").or_else(|| feature.get("feature")?.get("names")));
    let names = own.and_then(Value::as_array);
    Ok(names.and_then(|names| names.iter().map(|name| name.as_str().map(str::to_owned)).collect()))
}

/// The groups of rows of a parquet file in parts of about `part_bytes`, each with its size.
pub(super) fn parquet_parts(file: &SourceFile, part_bytes: u64) -> Result<Vec<(Part, u64)>> {
    let reader = Table::new(file, PARQUET, &Columns::default()).open_parquet(file)?;
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

/// Reads a file, and keeps why it cannot be read, and whether more was asked for than there is.
struct ErrorRecordingReader {
    file: SourceFile,
    bytes: Counted,
    failure: Failure,
    at_end: Arc<AtomicBool>,
}

impl Read for ErrorRecordingReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.bytes.read(buffer).map_err(|error| self.failure.note(&self.file, error))?;
        if count == 0 && !buffer.is_empty() {
            self.at_end.store(true, Ordering::Relaxed);
        }
        Ok(count)
    }
}

/// A file of rows.
struct Table {
    path: Arc<Path>,
    kind: &'static str,
    columns: Columns,
    failure: Failure,
}

impl Table {
    fn new(file: &SourceFile, kind: &'static str, columns: &Columns) -> Self {
        Self { path: file.path.as_path().into(), kind, columns: columns.clone(), failure: Failure::default() }
    }

    fn open<R, E: std::fmt::Display>(&self, open: impl FnOnce() -> Result<R, E>) -> Result<R> {
        catch_panics(open).map_err(|message| self.damaged(String::new(), message))
    }

    fn open_parquet(&self, file: &SourceFile) -> Result<ParquetRecordBatchReaderBuilder<ChunkFile>> {
        let opened = ChunkFile::open(file, &self.failure)?;
        self.open(|| ParquetRecordBatchReaderBuilder::try_new(opened))
    }

    /// What a reader's message means: that the file cannot be read, or that it has another content than it should.
    fn damaged(&self, place: String, message: String) -> Error {
        let message = match message.contains("Disabled feature at compile time: brotli") {
            true => "it is compressed by brotli; write it with snappy, gzip, zstd or lz4".to_owned(),
            false => message,
        };
        let damage = || Error::Damaged { path: self.path.to_path_buf(), kind: self.kind, place, message };
        self.failure.take().unwrap_or_else(damage)
    }

    /// The numbers of the columns that are wanted.
    fn wanted(&self, schema: &Schema) -> Result<Vec<usize>> {
        let fields = schema.fields();
        let is_there = |column: &str| fields.iter().any(|field| field.name() == column);
        if let Some(column) = self.columns.required().find(|column| !is_there(column)) {
            let describe =
                |field: &arrow_schema::FieldRef| format!("{} ({})", field.name(), field.data_type());
            let there: Vec<String> = fields.iter().map(describe).collect();
            return Err(RecordLocation::file(&self.path).error(missing(column, &there)));
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
            self.batch =
                batch.map_err(|message| self.table.damaged(format!(", after row {}", self.row), message))?;
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
        let (row, place) = (self.next, RecordLocation::row(&self.table.path, self.row + 1));
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
