//! The parsers of files, for a fuzz runner: they must not panic, whatever the bytes.

use std::path::{Path, PathBuf};

use crate::text::corpus::{BytesRead, chunks};
use crate::{Columns, Corpus, Result, Tokenizer};

/// Reads the documents of a file by its extension, and returns their number.
pub fn documents(path: &Path) -> Result<usize> {
    let mut documents = 0;
    for file in Corpus::from_sources(&[PathBuf::from(path).to_string_lossy().into_owned()]).files()? {
        for chunk in chunks(&file, &None, &Columns::default(), None, &BytesRead::default())? {
            documents += usize::from(chunk?.ends_document);
        }
    }
    Ok(documents)
}

/// Reads a `tokenizer.json`, encodes and decodes a text with it, and returns the number of tokens.
pub fn tokenizer(json: &str, text: &str) -> Result<usize> {
    let tokenizer = Tokenizer::from_json("tokenizer.json", json.to_owned())?;
    let ids = tokenizer.encode(text)?;
    tokenizer.decode(&ids)?;
    tokenizer.decode(&[tokenizer.end_of_text()])?;
    Ok(ids.len())
}
