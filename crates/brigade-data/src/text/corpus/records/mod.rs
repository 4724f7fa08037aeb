//! Records of files, one at a time: the columns that are asked for, under the names that they are asked by.

#[cfg(feature = "parquet")]
mod chunks;
mod columns;
mod encoder;
mod lines;
mod object;
mod record;
#[cfg(feature = "parquet")]
mod tables;
#[cfg(feature = "parquet")]
mod value;
mod values;

pub use columns::Columns;
pub use encoder::RecordEncoder;
pub(crate) use encoder::text_of_record;
pub(crate) use record::Part;
pub use record::{Record, RecordLocation};

use super::bytes::BytesRead;
use super::files::{Compression, Format, SourceFile};
use super::input::Input;
use crate::{Error, Result};
use lines::Lines;
use record::{MAX_RECORD_BYTES, too_large};
use values::Values;

/// A stream of records.
pub(crate) type Records = Box<dyn Iterator<Item = Result<Record>> + Send>;

/// The file in parts of about `part_bytes`, each with its size; whole where it is not larger, or cannot be read from the middle.
pub(crate) fn parts(file: &SourceFile, bytes: u64, part_bytes: u64) -> Result<Vec<(Part, u64)>> {
    if bytes <= part_bytes || file.compression != Compression::None {
        return Ok(vec![(None, bytes)]);
    }
    let by_bytes = |start: u64| {
        let end = bytes.min(start + part_bytes);
        (Some(start..end), end - start)
    };
    Ok(match file.format {
        Format::Jsonl => (0..bytes).step_by(part_bytes as usize).map(by_bytes).collect(),
        #[cfg(feature = "parquet")]
        Format::Parquet => tables::parquet_parts(file, part_bytes)?,
        _ => vec![(None, bytes)],
    })
}

/// The records of a part of `file`, in order. A file of text is one record, with its text as the column `text`.
pub(crate) fn records(
    file: &SourceFile,
    part: &Part,
    columns: &Columns,
    read: &BytesRead,
) -> Result<Records> {
    Ok(match file.format {
        Format::Text => {
            let mut input = Input::open(file, 0, u64::MAX, read)?;
            let (path, columns) = (file.path.clone(), columns.clone());
            Box::new(std::iter::once_with(move || {
                let place = RecordLocation::file(&path);
                let mut bytes = Vec::new();
                let count = input.read_up_to(MAX_RECORD_BYTES + 1, &mut bytes);
                if count.map_err(|source| input.error(source, ""))? > MAX_RECORD_BYTES {
                    return Err(place.error(too_large("the text")));
                }
                let text = String::from_utf8(bytes).map_err(|error| Error::NotUtf8 {
                    path: path.clone(),
                    offset: error.utf8_error().valid_up_to() as u64,
                })?;
                columns.pick([("text".to_owned(), text.into())].into_iter().collect(), place, &[])
            }))
        }
        Format::Jsonl => Box::new(Lines::open(file, part, columns, read)?),
        Format::Json => Box::new(Values::open(file, columns, read)?),
        Format::Parquet | Format::Arrow => rows(file, part, columns, read)?,
    })
}

#[cfg(feature = "parquet")]
fn rows(file: &SourceFile, part: &Part, columns: &Columns, read: &BytesRead) -> Result<Records> {
    Ok(Box::new(match file.format {
        Format::Arrow => tables::arrow(file, columns, read)?,
        _ => tables::parquet(file, part, columns, read)?,
    }))
}

/// The names that the numbers of a column stand for, as the file says.
#[cfg(feature = "parquet")]
pub(crate) fn class_names(file: &SourceFile, columns: &Columns, column: &str) -> Result<Option<Vec<String>>> {
    match (file.format, columns.in_files(column)) {
        (Format::Parquet | Format::Arrow, Some(column)) => tables::class_names(file, column),
        _ => Ok(None),
    }
}

/// Only tables have them.
#[cfg(not(feature = "parquet"))]
pub(crate) fn class_names(_: &SourceFile, _: &Columns, _: &str) -> Result<Option<Vec<String>>> {
    Ok(None)
}

/// Refuses the file: text that is there and not read would be missed too late.
#[cfg(not(feature = "parquet"))]
fn rows(file: &SourceFile, _: &Part, _: &Columns, _: &BytesRead) -> Result<Records> {
    let kind = if file.format == Format::Arrow { "an Arrow file" } else { "a parquet file" };
    Err(Error::NotBuilt { path: file.path.clone(), kind })
}

#[cfg(test)]
#[cfg(feature = "parquet")]
mod tests;
