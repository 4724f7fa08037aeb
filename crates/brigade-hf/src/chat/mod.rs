//! Chats: templates that make texts of them, and which parts of a text the assistant said.
//!
//! A template is Jinja in `tokenizer_config.json` or `chat_template.jinja`, rendered as `transformers` 5.23 renders it: with
//! `raise_exception`, `strftime_now`, Python's `tojson`, the methods of Python's strings and containers, and `{% generation %}`.
//! It comes from outside: it sees nothing but the chat, and is stopped when it runs for long.

mod json;
mod records;
mod spans;
mod template;

use minijinja::Value;
use minijinja::value::{Serde, ValueKind};

pub use records::{Encoded, Record, RecordTokenizer, TokenizedRecord};
pub use spans::{AssistantText, token_mask};
pub use template::ChatTemplate;

use crate::error::HfError;

/// Names under which messages have their reasoning; templates read the first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// The messages of a chat, in OpenAI's format, with the tools that the assistant may call.
#[derive(Debug, Clone)]
pub struct Chat {
    messages: Vec<Value>,
    /// Whether each message is learned, if it is the assistant's.
    learned: Vec<bool>,
    tools: Option<Value>,
    variables: Vec<(String, Value)>,
}

impl Chat {
    /// A chat of roles and texts.
    ///
    /// ```
    /// use brigade_hf::chat::{Chat, ChatTemplate};
    ///
    /// let template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}";
    /// let template = ChatTemplate::new("chat_template.jinja", template, [])?;
    /// let chat = Chat::new([("user", "Hello"), ("assistant", "Good day")]);
    /// assert_eq!(template.render(&chat, false)?, "user: Hello\nassistant: Good day\n");
    /// # Ok::<(), brigade_hf::HfError>(())
    /// ```
    pub fn new<'t>(messages: impl IntoIterator<Item = (&'t str, &'t str)>) -> Self {
        let message =
            |(role, content): (&str, &str)| Value::from_pairs([("role", role), ("content", content)]);
        let messages: Vec<_> = messages.into_iter().map(message).collect();
        Self { learned: vec![true; messages.len()], messages, tools: None, variables: Vec::new() }
    }

    /// The chat of a JSON object: its `messages`, each an object with a `role`, and perhaps `tools`. What the assistant says is learned,
    /// but for messages with a `weight` of 0. `record` is for messages of errors.
    ///
    /// # Errors
    /// If that is not what it is.
    pub fn from_json(record: &str, text: &str) -> Result<Self, HfError> {
        let wrong = |problem: String| HfError::Chat { record: record.to_owned(), problem };
        let object: Value =
            serde_json::from_str(text).map_err(|error| wrong(format!("it is not JSON: {error}")))?;
        Self::from_value(record, &object)
    }

    fn from_value(record: &str, object: &Value) -> Result<Self, HfError> {
        let (messages, learned) = messages(record, object, "messages")?;
        Ok(Self { messages, learned, tools: tools(record, object)?, variables: Vec::new() })
    }

    /// The same with these messages before, which are not learned.
    fn after(mut self, messages: Vec<Value>) -> Self {
        self.learned.splice(..0, vec![false; messages.len()]);
        self.messages.splice(..0, messages);
        self
    }

    /// Sets a variable of the template (`enable_thinking`, `date_string`) to a JSON value.
    pub fn with_variable(mut self, name: impl Into<String>, value: serde_json::Value) -> Self {
        self.variables.push((name.into(), Value::from(Serde(value))));
        self
    }

    /// Whether the assistant may call tools.
    pub fn has_tools(&self) -> bool {
        self.tools.is_some()
    }

    /// Roles of the messages.
    fn roles(&self) -> impl Iterator<Item = String> {
        self.messages
            .iter()
            .map(|message| field(message, "role").map(|role| role.to_string()).unwrap_or_default())
    }
}

/// The messages of a field, and whether each is learned.
fn messages(record: &str, object: &Value, name: &str) -> Result<(Vec<Value>, Vec<bool>), HfError> {
    let wrong = |problem: String| HfError::Chat { record: record.to_owned(), problem };
    let list = field(object, name).filter(|list| list.kind() == ValueKind::Seq);
    let list =
        list.and_then(|list| list.try_iter().ok()).ok_or_else(|| wrong(format!("`{name}` is not a list")))?;
    let (mut messages, mut learned) = (Vec::new(), Vec::new());
    for (index, message) in list.enumerate() {
        let number = index + 1;
        if field(&message, "role").is_none_or(|role| role.as_str().is_none()) {
            return Err(wrong(format!("message {number} of `{name}` has no `role`")));
        }
        let weight = field(&message, "weight").filter(|weight| !weight.is_none());
        learned.push(match weight.map(|weight| weight.as_i64()) {
            None | Some(Some(1)) => true,
            Some(Some(0)) => false,
            Some(_) => return Err(wrong(format!("the `weight` of message {number} is neither 0 nor 1"))),
        });
        messages.push(plain(&message));
    }
    if messages.is_empty() {
        return Err(wrong(format!("`{name}` is empty")));
    }
    Ok((messages, learned))
}

/// The tools that the assistant may call.
fn tools(record: &str, object: &Value) -> Result<Option<Value>, HfError> {
    match field(object, "tools").filter(|tools| !tools.is_none()) {
        Some(tools) if tools.kind() != ValueKind::Seq => {
            Err(HfError::Chat { record: record.to_owned(), problem: "`tools` is not a list".to_owned() })
        }
        tools => Ok(tools),
    }
}

/// A field of an object, if it has it.
fn field(object: &Value, name: &str) -> Option<Value> {
    let value = object.get_attr(name).ok()?;
    (object.kind() == ValueKind::Map && !value.is_undefined()).then_some(value)
}

/// A message without fields that are null, and with its reasoning under the name that templates read.
fn plain(message: &Value) -> Value {
    let fields = message.try_iter().into_iter().flatten();
    let fields = fields.filter_map(|name| Some((name.clone(), message.get_item(&name).ok()?)));
    let mut fields: Vec<_> = fields.filter(|(_, value)| !value.is_none()).collect();
    let of = |name: &str| {
        fields.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value.clone())
    };
    if let Some(reasoning) = REASONING.iter().find_map(|name| of(name)) {
        if of("thinking").is_none() {
            fields.insert(0, (Value::from("thinking"), reasoning.clone()));
        }
        fields.retain(|(key, _)| key.as_str() != Some(REASONING[0]));
        fields.push((Value::from(REASONING[0]), reasoning));
    }
    Value::from_pairs(fields)
}
