//! The rows of a parquet file.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::record::reader::{ReaderIter, TreeBuilder};
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor, Type};
use serde_json::{Map, Value};

use super::Part;
use super::columns::{Columns, missing};
use super::record::{Place, Record};
use crate::text::corpus::files::SourceFile;
use crate::text::corpus::input::BytesRead;
use crate::text::panics::catch_panics;
use crate::{Error, Result};

/// How many values of a column are read at once.
const BATCH_ROWS: usize = 64;

/// The rows of the groups in `part`, with the columns that are wanted.
pub(super) fn parquet(
    file: &SourceFile,
    part: &Part,
    columns: &Columns,
    read: &BytesRead,
) -> Result<ParquetRows> {
    let path: Arc<Path> = file.path.as_path().into();
    let reader = open(&file.path)?;
    let groups = reader.num_row_groups();
    let part = part.clone().unwrap_or(0..groups as u64);
    let before = reader.metadata().row_groups().iter().take(part.start as usize);
    let row = before.map(|group| group.num_rows().max(0) as u64).sum();
    let schema = reader.metadata().file_metadata().schema();
    let fields = schema.get_fields();
    if let Some(column) =
        columns.required().find(|column| !fields.iter().any(|field| field.name() == *column))
    {
        let there: Vec<String> = fields.iter().map(|field| describe(field)).collect();
        return Err(Place::file(&path).error(missing(column, &there)));
    }
    let wanted = fields.iter().filter(|field| columns.has(field.name())).cloned().collect();
    let projected = Type::group_type_builder(schema.name()).with_fields(wanted).build();
    let projected = projected.map_err(|error| damaged(&path, String::new(), error.to_string()))?;
    Ok(ParquetRows {
        projected: Arc::new(SchemaDescriptor::new(Arc::new(projected))),
        columns: columns.clone(),
        groups: part.start as usize..groups.min(part.end as usize),
        rows: None,
        row,
        reader,
        path,
        read: Arc::clone(read),
    })
}

/// The groups of rows in parts of about `part_bytes`, each with its size.
pub(super) fn parquet_parts(path: &Path, part_bytes: u64) -> Result<Vec<(Part, u64)>> {
    let reader = open(path)?;
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

fn open(path: &Path) -> Result<SerializedFileReader<File>> {
    let file = File::open(path).map_err(|source| Error::io("open", path, source))?;
    catch_panics(|| SerializedFileReader::new(file)).map_err(|message| damaged(path, String::new(), message))
}

fn damaged(path: &Path, place: String, message: String) -> Error {
    Error::Damaged { path: path.into(), kind: "a parquet file", place, message }
}

fn describe(field: &Type) -> String {
    match field.is_primitive() {
        true => format!("{} ({})", field.name(), field.get_physical_type()),
        false => field.name().to_owned(),
    }
}

/// A stream of rows.
pub(super) struct ParquetRows {
    path: Arc<Path>,
    reader: SerializedFileReader<File>,
    projected: SchemaDescPtr,
    columns: Columns,
    /// Those that are left to read.
    groups: std::ops::Range<usize>,
    rows: Option<ReaderIter>,
    /// How many rows of the file lie before the next one.
    row: u64,
    read: BytesRead,
}

impl Iterator for ParquetRows {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        match catch_panics(|| self.read_row()) {
            Ok(row) => {
                let fields = row?;
                self.row += 1;
                let place = Place::row(&self.path, self.row);
                Some(self.columns.pick(fields, place, &[]))
            }
            Err(message) => {
                // Nothing can be read after this.
                (self.groups, self.rows) = (0..0, None);
                Some(Err(damaged(&self.path, format!(", after row {}", self.row), message)))
            }
        }
    }
}

impl ParquetRows {
    fn read_row(&mut self) -> parquet::errors::Result<Option<Map<String, Value>>> {
        loop {
            if let Some(row) = self.rows.as_mut().and_then(ReaderIter::next) {
                let columns = row?.into_columns();
                let fields = columns.into_iter().map(|(name, field)| Ok((name, json(field)?)));
                return fields.collect::<parquet::errors::Result<_>>().map(Some);
            }
            let Some(group) = self.groups.next() else { return Ok(None) };
            let group = self.reader.get_row_group(group)?;
            self.read.fetch_add(group.metadata().compressed_size().max(0) as u64, Ordering::Relaxed);
            let rows = TreeBuilder::new().with_batch_size(BATCH_ROWS);
            self.rows = Some(rows.as_iter(Arc::clone(&self.projected), group.as_ref())?);
        }
    }
}

/// The value as JSON; bytes are text, and what JSON has not is text as well.
fn json(field: Field) -> parquet::errors::Result<Value> {
    Ok(match field {
        Field::Null => Value::Null,
        Field::Bool(value) => value.into(),
        Field::Byte(value) => value.into(),
        Field::Short(value) => value.into(),
        Field::Int(value) => value.into(),
        Field::Long(value) => value.into(),
        Field::UByte(value) => value.into(),
        Field::UShort(value) => value.into(),
        Field::UInt(value) => value.into(),
        Field::ULong(value) => value.into(),
        Field::Float(value) => value.into(),
        Field::Double(value) => value.into(),
        Field::Str(value) => value.into(),
        Field::Bytes(value) => value.as_utf8()?.into(),
        Field::Group(row) => {
            let fields = row.into_columns().into_iter().map(|(name, field)| Ok((name, json(field)?)));
            fields.collect::<parquet::errors::Result<Map<_, _>>>()?.into()
        }
        Field::ListInternal(list) => {
            list.elements().iter().cloned().map(json).collect::<parquet::errors::Result<Vec<_>>>()?.into()
        }
        other => other.to_string().into(),
    })
}
