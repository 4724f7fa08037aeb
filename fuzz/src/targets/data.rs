//! Text to train on, and tokenizers.

use std::io::Write;

use brigade::data::{Tokenizer, fuzzing};
use parquet::basic::{Compression, GzipLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use tempfile::Builder;

use crate::target::{Bound, Limit, Target, bare, lines};

/// What stands between a `tokenizer.json` and the text that it takes apart.
const TEXT: &[u8] = b"\n#text\n";

/// Rows of a JSONL file.
///
/// Counted as parsed: all rows are documents. Bound: a row is there as bytes, as text, and cut in pieces.
pub const JSONL: Target = Target {
    name: "jsonl",
    run: |input| {
        documents(".jsonl", input);
    },
    parsed: |input| documents(".jsonl", input).is_some_and(|documents| documents > 0),
    bound: Bound {
        peak: Limit { fixed: 192 << 10, per_byte: 16 },
        total: Limit { fixed: 512 << 10, per_byte: 256 },
    },
    payloads: || ROWS.map(<[u8]>::to_vec).into(),
    envelope: lines,
};

const ROWS: [&[u8]; 4] = [
    b"{\"text\":\"one\",\"id\":3}\n{\"prompt\":\"two\",\"text\":\"\\u00e9\"}\r\n",
    "\u{feff}{\"text\":\"zwé\"}\n\n  \n".as_bytes(),
    b"{\"text\":\"\",\"prompt\":null}",
    b"{\"a\":[{\"text\":1.5e3}],\"text\":\"\\ud83d\\ude00 x\"}",
];

/// Compressed rows.
///
/// Counted as parsed: all rows are documents. Bound: a line is as long as it is without compression, up to a thousand times.
pub const GZIP: Target = Target {
    name: "gzip",
    run: |input| {
        documents(".jsonl.gz", input);
    },
    parsed: |input| documents(".jsonl.gz", input).is_some_and(|documents| documents > 0),
    bound: Bound {
        peak: Limit { fixed: 1 << 20, per_byte: 16 << 10 },
        total: Limit { fixed: 2 << 20, per_byte: 256 << 10 },
    },
    payloads: || ROWS.into_iter().filter_map(|rows| gzip(rows).ok()).collect(),
    envelope: bare,
};

/// Rows compressed in the other way.
///
/// Counted as parsed: all rows are documents. Bound: a line is as long as it is without compression, of which four bytes can say that it
/// is 128 KiB long.
pub const ZSTD: Target = Target {
    name: "zstd",
    run: |input| {
        documents(".jsonl.zst", input);
    },
    parsed: |input| documents(".jsonl.zst", input).is_some_and(|documents| documents > 0),
    bound: Bound {
        peak: Limit { fixed: 1 << 20, per_byte: 512 << 10 },
        total: Limit { fixed: 2 << 20, per_byte: 8 << 20 },
    },
    payloads: || ROWS.into_iter().filter_map(|rows| zstd::encode_all(rows, 1).ok()).collect(),
    envelope: bare,
};

/// Rows of a Parquet file.
///
/// Counted as parsed: all rows are documents. Bound: pages are decompressed, to as much as they say, and the reader's own
/// buffers come with each file.
pub const PARQUET: Target = Target {
    name: "parquet",
    run: |input| {
        documents(".parquet", input);
    },
    parsed: |input| documents(".parquet", input).is_some_and(|documents| documents > 0),
    bound: Bound {
        peak: Limit { fixed: 256 << 20, per_byte: 1024 },
        total: Limit { fixed: 512 << 20, per_byte: 4096 },
    },
    payloads: || {
        let kinds = [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::GZIP(GzipLevel::default())];
        kinds.into_iter().filter_map(|kind| parquet_file(kind).ok()).collect()
    },
    envelope: bare,
};

/// A `tokenizer.json`, and a text there and back.
///
/// Counted as parsed: it is a tokenizer that takes the text. Bound: the vocabulary is there as text, as JSON, and in maps
/// both ways.
pub const TOKENIZER: Target = Target {
    name: "tokenizer",
    run: |input| {
        tokenized(input);
    },
    parsed: |input| tokenized(input).is_some(),
    bound: Bound {
        peak: Limit { fixed: 4 << 20, per_byte: 1024 },
        total: Limit { fixed: 16 << 20, per_byte: 8192 },
    },
    payloads: || {
        let texts = ["fn main() { let x = 1; }\n".repeat(20)];
        let made = [Tokenizer::bytes(), Tokenizer::train_bpe(280, &texts)];
        let with = |text: &str| [TEXT, text.as_bytes()].concat();
        let made = made.into_iter().flatten().map(|made| [made.json().as_bytes(), &with("fn é(1)")].concat());
        made.chain(KINDS.map(|json| [json.as_bytes(), &with("a b  ab")].concat())).collect()
    },
    envelope: bare,
};

/// Small ones of other kinds.
const KINDS: [&str; 3] = [
    r###"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":3,"content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":{"type":"Lowercase"},"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,"model":{"type":"WordLevel","vocab":{"a":0,"b":1,"[UNK]":2},"unk_token":"[UNK]"}}"###,
    r###"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":4,"content":"[EOS]","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":null,"pre_tokenizer":{"type":"WhitespaceSplit"},"post_processor":null,"decoder":{"type":"WordPiece","prefix":"##","cleanup":true},"model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":{"[UNK]":0,"a":1,"##b":2,"b":3}}}"###,
    r###"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":3,"content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":{"type":"NFKC"},"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true},"post_processor":null,"decoder":{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true},"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0.0],["▁",-2.5],["a",-3.0]],"byte_fallback":false}}"###,
];

fn gzip(rows: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(rows)?;
    encoder.finish()
}

/// A file of two groups of rows.
fn parquet_file(compression: Compression) -> parquet::errors::Result<Vec<u8>> {
    let schema = parse_message_type("message m { REQUIRED INT32 id; OPTIONAL BYTE_ARRAY text (UTF8); }")?;
    let properties = WriterProperties::builder().set_compression(compression).build();
    let mut file = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut file, schema.into(), properties.into())?;
    for rows in [&["one", "zwé", "one", "three three three"][..], &["four"]] {
        let mut group = writer.next_row_group()?;
        let numbers: Vec<i32> = (0..=rows.len() as i32).collect();
        if let Some(mut ids) = group.next_column()? {
            ids.typed::<Int32Type>().write_batch(&numbers, None, None)?;
            ids.close()?;
        }
        if let Some(mut column) = group.next_column()? {
            // The last row has no text.
            let levels: Vec<i16> =
                numbers.iter().map(|row| i16::from((*row as usize) < rows.len())).collect();
            let values: Vec<ByteArray> = rows.iter().map(|row| ByteArray::from(*row)).collect();
            column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None)?;
            column.close()?;
        }
        group.close()?;
    }
    writer.close()?;
    Ok(file)
}

fn documents(extension: &str, bytes: &[u8]) -> Option<usize> {
    let mut file = Builder::new().suffix(extension).tempfile().ok()?;
    file.write_all(bytes).ok()?;
    fuzzing::documents(file.path()).ok()
}

fn tokenized(input: &[u8]) -> Option<usize> {
    let text = String::from_utf8_lossy(input);
    let marker = std::str::from_utf8(TEXT).unwrap_or_default();
    let (json, text) = text.split_once(marker).unwrap_or((&text, "a b"));
    fuzzing::tokenizer(json, text).ok()
}
