//! Tokenizers in files of other formats.

use std::path::Path;

/// Files that a `tokenizer.json` can be made of.
const OTHERS: [&str; 4] = ["vocab.txt", "vocab.json", "tokenizer.model", "spiece.model"];

/// For a `tokenizer.json` that is missing: what is beside it instead, and the command that makes one of that; empty if there is nothing.
pub fn conversion_hint(path: &Path) -> String {
    let folder = path.parent().unwrap_or(Path::new(""));
    let Some(other) = OTHERS.into_iter().find(|name| !path.exists() && folder.join(name).is_file()) else {
        return String::new();
    };
    let folder =
        folder.display().to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('\'', r"'\''");
    format!(
        "; {other} beside it cannot be read. This command makes a tokenizer.json from it: python -c 'from transformers import AutoTokenizer; f = \"{folder}\"; \
        AutoTokenizer.from_pretrained(f).save_pretrained(f)'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_a_vocabulary_alone_gets_the_command_that_converts_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        assert_eq!(conversion_hint(&path), "");
        std::fs::write(folder.path().join("vocab.txt"), "a").unwrap();
        let error = crate::Tokenizer::from_file(&path).unwrap_err().to_string();
        assert!(error.contains("; vocab.txt beside it cannot be read. This command makes a"), "{error}");
        assert!(error.contains("AutoTokenizer.from_pretrained(f).save_pretrained(f)'"), "{error}");
        std::fs::write(&path, "{}").unwrap();
        assert_eq!(conversion_hint(&path), "");
    }
}
