//! Records other than plain texts: chats, completions, texts with labels.

use std::fmt::Debug;

use serde_json::Value;

use super::record::{Record, RecordLocation};
use crate::{Example, Result, Tokenizer};

/// Makes examples of records, each a JSON object: a line of a JSONL file, or a row of a table with a field for each column.
pub trait RecordEncoder: Debug + Send + Sync {
    /// Text that changes whenever a record may give another example. It is part of the cache's key, as the tokenizer is.
    fn identity(&self) -> String;

    /// Whether the record is made into an example; if not, and it has a `text`, it is a text.
    fn takes(&self, record: &Record) -> bool;

    /// The example of a record, which is JSON with the fields in their order.
    ///
    /// # Errors
    /// If it is not a record of this kind, as [`RecordLocation::error`].
    fn example(&self, place: &RecordLocation, record: &str, tokenizer: &Tokenizer) -> Result<Example>;
}

/// All texts in a record, one on each line, to train a tokenizer on; none if it is not JSON.
pub(crate) fn text_of_record(record: &str) -> String {
    fn add(value: &Value, text: &mut String) {
        match value {
            Value::String(string) => {
                text.push_str(string);
                text.push('\n');
            }
            Value::Array(items) => items.iter().for_each(|item| add(item, text)),
            Value::Object(fields) => fields.values().for_each(|field| add(field, text)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    let mut text = String::new();
    if let Ok(record) = serde_json::from_str(record) {
        add(&record, &mut text);
    }
    text
}
