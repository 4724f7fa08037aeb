//! Records of data for instruction tuning: tokens, and which of them carry loss.

use std::error::Error;
use std::ops::Range;

use minijinja::Value;
use minijinja::value::ValueKind;

use super::spans::token_mask;
use super::{Chat, ChatTemplate, field, messages, tools};
use crate::error::HfError;

/// A record of instruction tuning.
#[derive(Debug, Clone)]
pub enum Record {
    /// `messages`, perhaps with `tools`; or `prompt` and `completion` as lists of messages, of which those of the completion are
    /// learned.
    Chat(Chat),
    /// `prompt` and `completion` as texts, of which the completion is learned, with the token that ends a text.
    Completion {
        /// What is given.
        prompt: String,
        /// What is learned.
        completion: String,
    },
}

/// The tokens of a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Their numbers.
    pub ids: Vec<u32>,
    /// Which bytes of the text each stands for; a token that a tokenizer adds stands for none.
    pub offsets: Vec<Range<usize>>,
}

/// A record as tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenizedRecord {
    /// Their numbers.
    pub ids: Vec<u32>,
    /// Which of them are learned: as targets, they carry loss.
    pub learned: Vec<bool>,
}

/// Makes tokens of records.
#[derive(Debug)]
pub struct RecordTokenizer<'t, E> {
    /// The template of chats; without one, chats are refused.
    pub template: Option<&'t ChatTemplate>,
    /// Special tokens, [which may end a turn](ChatTemplate::assistant_text).
    pub special_tokens: &'t [String],
    /// The token that ends a completion.
    pub eos_token: &'t str,
    /// Makes tokens of a text, with those that the tokenizer adds itself if the flag says so: chats have them from their template.
    pub encode: E,
}

impl Record {
    /// The record of a JSON object. `record` is for messages of errors: a file and a line.
    ///
    /// # Errors
    /// If it is not such an object.
    pub fn from_json(record: &str, text: &str) -> Result<Self, HfError> {
        let wrong = |problem: String| HfError::Chat { record: record.to_owned(), problem };
        let object: Value =
            serde_json::from_str(text).map_err(|error| wrong(format!("it is not JSON: {error}")))?;
        let (prompt, completion) = (field(&object, "prompt"), field(&object, "completion"));
        if field(&object, "messages").is_some() {
            return Chat::from_value(record, &object).map(Self::Chat);
        }
        let (Some(prompt), Some(completion)) = (prompt, completion) else {
            let names = match object.kind() {
                ValueKind::Map => {
                    object.try_iter().into_iter().flatten().map(|name| format!("`{name}`")).collect()
                }
                _ => Vec::new(),
            };
            let has = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
            return Err(wrong(format!("it has neither `messages` nor `prompt` and `completion`, but {has}")));
        };
        match (prompt.as_str(), completion.as_str()) {
            (Some(prompt), Some(completion)) => {
                Ok(Self::Completion { prompt: prompt.to_owned(), completion: completion.to_owned() })
            }
            (None, None) => {
                let (prompt, _) = messages(record, &object, "prompt")?;
                let (completion, learned) = messages(record, &object, "completion")?;
                let tools = tools(record, &object)?;
                let chat = Chat { messages: completion, learned, tools, variables: Vec::new() };
                Ok(Self::Chat(chat.after(prompt)))
            }
            _ => Err(wrong(
                "`prompt` and `completion` must both be strings or both be lists of messages".to_owned(),
            )),
        }
    }
}

impl<E> RecordTokenizer<'_, E>
where
    E: Fn(&str, bool) -> Result<Encoded, Box<dyn Error + Send + Sync>>,
{
    /// The tokens of a record. `record` is for messages of errors.
    ///
    /// # Errors
    /// If the assistant says nothing, or nothing that a token stands for; if there is no template for a chat, or it refuses the chat; or
    /// if the tokenizer fails.
    pub fn tokens(&self, record: &str, content: &Record) -> Result<TokenizedRecord, HfError> {
        let wrong = |problem: String| HfError::Chat { record: record.to_owned(), problem };
        let (text, spans, add_special) = match content {
            Record::Completion { prompt, completion } => {
                let text = [prompt, completion, self.eos_token].concat();
                let learned = prompt.len()..text.len();
                (text, vec![learned], true)
            }
            Record::Chat(chat) => {
                let template = self.template.ok_or_else(|| wrong("there is no chat template".to_owned()))?;
                let said = template.assistant_text(chat, self.special_tokens);
                let said = said.map_err(|error| wrong(error.to_string()))?;
                (said.text, said.spans, false)
            }
        };
        let encoded = (self.encode)(&text, add_special).map_err(|error| wrong(error.to_string()))?;
        let learned = token_mask(&spans, &encoded.offsets);
        if !learned.contains(&true) || learned.len() != encoded.ids.len() {
            return Err(wrong("no token belongs to the part to learn".to_owned()));
        }
        Ok(TokenizedRecord { ids: encoded.ids, learned })
    }
}
