//! What the files beside a `tokenizer.json` say of it.

use std::path::Path;

use serde_json::Value;
use tokenizers::TruncationDirection;

use super::class::ClassSettings;

/// The files, in the order in which they count.
pub(super) const SPECIAL_TOKENS: [&str; 2] = ["tokenizer_config.json", "special_tokens_map.json"];

/// What is not in a `tokenizer.json`.
#[derive(Debug, Default)]
pub(super) struct CompanionFiles {
    /// `eos_token`.
    pub(super) end_of_text: Option<String>,
    /// Whether the names of special tokens in texts are split like any other text.
    pub(super) split_special_tokens: bool,
    /// `truncation_side`.
    pub(super) truncation: Option<TruncationDirection>,
    /// What the tokenizer's class sets.
    pub(super) class: Option<ClassSettings>,
}

impl CompanionFiles {
    /// Reads the files that there are beside `tokenizer`.
    pub(super) fn read(tokenizer: &Path) -> Self {
        let read = |name: &str| {
            let content = std::fs::read(tokenizer.parent()?.join(name)).ok()?;
            serde_json::from_slice::<Value>(&content).ok()
        };
        let (files, config) = (SPECIAL_TOKENS.map(read), read("config.json"));
        let end_of_text = |fields: &Value| {
            let token = fields.get("eos_token")?;
            Some(token.as_str().or_else(|| token.get("content")?.as_str())?.to_owned())
        };
        let truncation = |fields: &Value| match fields.get("truncation_side")?.as_str()? {
            "left" => Some(TruncationDirection::Left),
            "right" => Some(TruncationDirection::Right),
            _ => None,
        };
        let split = files[0].as_ref().and_then(|fields| fields.get("split_special_tokens")?.as_bool());
        Self {
            end_of_text: files.iter().flatten().find_map(end_of_text),
            split_special_tokens: split.unwrap_or(false),
            truncation: files[0].as_ref().and_then(truncation),
            class: files[0].as_ref().and_then(|fields| ClassSettings::read(fields, config.as_ref())),
        }
    }
}
