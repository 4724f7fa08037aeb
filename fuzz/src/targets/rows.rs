//! Text to train on: files of rows.

use std::io::Write;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int32Array, RecordBatch, StringArray};
use arrow_ipc::writer::{FileWriter, StreamWriter};
use arrow_schema::ArrowError;
use brigade::data::fuzzing;
use parquet::basic::{Compression, GzipLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use tempfile::Builder;

use crate::target::{Bound, Limit, Target, bare, lines};

/// A kind of file, by its extension. Counted as parsed: all rows are documents.
macro_rules! rows {
    ($(#[$doc:meta])* $constant:ident: $name:literal, $extension:literal, $bound:expr, $payloads:expr, $envelope:expr) => {
        $(#[$doc])*
        pub const $constant: Target = Target {
            name: $name,
            run: |input| {
                documents($extension, input);
            },
            parsed: |input| documents($extension, input).is_some_and(|documents| documents > 0),
            bound: $bound,
            payloads: $payloads,
            envelope: $envelope,
        };
    };
}

rows! {
    /// Rows of a JSONL file. Bound: a row is there as bytes, as text, and cut in pieces.
    JSONL: "jsonl", ".jsonl",
    Bound {
        peak: Limit { fixed: 192 << 10, per_byte: 16 },
        total: Limit { fixed: 512 << 10, per_byte: 256 },
    },
    || ROWS.map(<[u8]>::to_vec).into(), lines
}

rows! {
    /// Compressed rows. Bound: a line is as long as it is without compression, up to a thousand times.
    GZIP: "gzip", ".jsonl.gz",
    Bound {
        peak: Limit { fixed: 1 << 20, per_byte: 16 << 10 },
        total: Limit { fixed: 2 << 20, per_byte: 256 << 10 },
    },
    || ROWS.into_iter().filter_map(|rows| gzip(rows).ok()).collect(), bare
}

rows! {
    /// Rows compressed in the other way. Bound: a line is as long as it is without compression, of which four bytes can say that
    /// it is 128 KiB long.
    ZSTD: "zstd", ".jsonl.zst",
    Bound {
        peak: Limit { fixed: 1 << 20, per_byte: 512 << 10 },
        total: Limit { fixed: 2 << 20, per_byte: 8 << 20 },
    },
    || ROWS.into_iter().filter_map(|rows| zstd::encode_all(rows, 1).ok()).collect(), bare
}

rows! {
    /// Rows of a Parquet file. Bound: pages are decompressed, to as much as they say, and the reader's own buffers come with each
    /// file.
    PARQUET: "parquet", ".parquet",
    Bound {
        peak: Limit { fixed: 256 << 20, per_byte: 1024 },
        total: Limit { fixed: 512 << 20, per_byte: 4096 },
    },
    || {
        let kinds = [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::GZIP(GzipLevel::default())];
        kinds.into_iter().filter_map(|kind| parquet_file(kind).ok()).collect()
    },
    bare
}

rows! {
    /// Rows of Arrow files and streams. Bound: a message may say that it has 64 MiB before they are there.
    ARROW: "arrow", ".arrow",
    Bound {
        peak: Limit { fixed: 66 << 20, per_byte: 4096 },
        total: Limit { fixed: 256 << 20, per_byte: 16 << 10 },
    },
    || arrow_files().unwrap_or_default(), bare
}

const ROWS: [&[u8]; 4] = [
    b"{\"text\":\"one\",\"id\":3}\n{\"prompt\":\"two\",\"text\":\"\\u00e9\"}\r\n",
    "\u{feff}{\"text\":\"zwé\"}\n\n  \n".as_bytes(),
    b"{\"text\":\"\",\"prompt\":null}",
    b"{\"a\":[{\"text\":1.5e3}],\"text\":\"\\ud83d\\ude00 x\"}",
];

fn gzip(rows: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(rows)?;
    encoder.finish()
}

/// A file of two groups of rows.
fn parquet_file(compression: Compression) -> parquet::errors::Result<Vec<u8>> {
    let schema = parse_message_type("message m { OPTIONAL INT32 id; OPTIONAL BYTE_ARRAY text (UTF8); }")?;
    let properties = WriterProperties::builder().set_compression(compression).build();
    let mut file = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut file, schema.into(), properties.into())?;
    for rows in [&["one", "zwé", "one", "three three three"][..], &["four"]] {
        let mut group = writer.next_row_group()?;
        // The last row has no number.
        let numbers: Vec<i32> = (1..rows.len() as i32).collect();
        let levels = |present: usize| (0..rows.len()).map(|row| i16::from(row < present)).collect::<Vec<_>>();
        if let Some(mut ids) = group.next_column()? {
            ids.typed::<Int32Type>().write_batch(&numbers, Some(&levels(numbers.len())), None)?;
            ids.close()?;
        }
        if let Some(mut column) = group.next_column()? {
            let values: Vec<ByteArray> = rows.iter().map(|row| ByteArray::from(*row)).collect();
            column.typed::<ByteArrayType>().write_batch(&values, Some(&levels(values.len())), None)?;
            column.close()?;
        }
        group.close()?;
    }
    writer.close()?;
    Ok(file)
}

/// The same rows in a stream and a file.
fn arrow_files() -> Result<Vec<Vec<u8>>, ArrowError> {
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("one"), Some("zwé"), Some("")]));
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
    let batch = RecordBatch::try_from_iter([("text", texts), ("id", numbers)])?;
    let mut stream = StreamWriter::try_new(Vec::new(), &batch.schema())?;
    stream.write(&batch)?;
    let mut file = FileWriter::try_new(Vec::new(), &batch.schema())?;
    file.write(&batch)?;
    Ok(vec![stream.into_inner()?, file.into_inner()?])
}

fn documents(extension: &str, bytes: &[u8]) -> Option<usize> {
    let mut file = Builder::new().suffix(extension).tempfile().ok()?;
    file.write_all(bytes).ok()?;
    fuzzing::documents(file.path()).ok()
}
