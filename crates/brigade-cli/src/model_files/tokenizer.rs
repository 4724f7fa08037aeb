//! The files of a tokenizer.

use std::path::Path;

use brigade::TOKENIZER_COMPANIONS;
use brigade_hf::{HfError, additional_templates};

/// What may lie beside the `tokenizer.json` in a folder, as paths from there, with the named templates of chats that it has.
pub fn tokenizer_companions(folder: &Path) -> Result<Vec<String>, HfError> {
    let mut files = TOKENIZER_COMPANIONS.map(str::to_owned).to_vec();
    files.extend(additional_templates(folder)?);
    Ok(files)
}
