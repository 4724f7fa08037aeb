//! Where `transformers` keeps named templates of chats: `additional_chat_templates/NAME.jinja`, beside `chat_template.jinja`.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::error::HfError;

const FOLDER: &str = "additional_chat_templates/";
const EXTENSION: &str = ".jinja";

/// The files of named templates of chats in a model's folder, in order, as paths from there: `additional_chat_templates/tool_use.jinja`.
///
/// # Errors
/// If the folder with them cannot be read.
pub fn additional_templates(folder: &Path) -> Result<Vec<String>, HfError> {
    let place = folder.join(FOLDER);
    let io = |error| HfError::io(&place, error);
    let entries = match fs::read_dir(&place) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(io(error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let name = entry.map_err(io)?.file_name();
        let file = name.to_str().map(|name| format!("{FOLDER}{name}"));
        files.extend(file.filter(|file| template_name(file).is_some()));
    }
    files.sort();
    Ok(files)
}

/// The name of the template in such a file.
pub(crate) fn template_name(file: &str) -> Option<&str> {
    let name = file.strip_prefix(FOLDER)?.strip_suffix(EXTENSION)?;
    (!name.is_empty() && !name.contains('/')).then_some(name)
}
