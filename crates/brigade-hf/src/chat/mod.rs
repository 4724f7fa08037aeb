//! Chats: templates that make texts of them, and which parts of a text the assistant said.
//!
//! A template is Jinja in `tokenizer_config.json` or `chat_template.jinja`, rendered as `transformers` 5.23 renders it: with
//! `raise_exception`, `strftime_now`, Python's `tojson`, the methods of Python's strings and containers, and `{% generation %}`.
//! It comes from outside: it sees nothing but the chat, and is stopped when it runs for long.

mod json;
mod spans;
mod template;

use minijinja::Value;
use minijinja::value::{Serde, ValueKind};

pub use spans::{AssistantText, token_mask};
pub use template::ChatTemplate;

use crate::error::HfError;

/// Names under which messages have their reasoning; templates read the first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// The messages of a chat, in OpenAI's format, with the tools that the assistant may call.
#[derive(Debug, Clone)]
pub struct Chat {
    messages: Vec<Value>,
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
        Self { messages: messages.into_iter().map(message).collect(), tools: None, variables: Vec::new() }
    }

    /// The chat of a JSON object: its `messages`, each an object with a `role`, and perhaps `tools`. `record` is for messages of errors.
    ///
    /// # Errors
    /// If that is not what it is.
    pub fn from_json(record: &str, text: &str) -> Result<Self, HfError> {
        let wrong = |problem: String| HfError::Chat { record: record.to_owned(), problem };
        let object: Value =
            serde_json::from_str(text).map_err(|error| wrong(format!("it is no JSON: {error}")))?;
        Self::from_value(record, &object)
    }

    pub(crate) fn from_value(record: &str, object: &Value) -> Result<Self, HfError> {
        let wrong = |problem: String| HfError::Chat { record: record.to_owned(), problem };
        let messages = field(object, "messages");
        let messages = messages.filter(|messages| messages.kind() == ValueKind::Seq);
        let messages = messages.ok_or_else(|| wrong("`messages` is not a list".to_owned()))?;
        let messages = messages.try_iter().map_err(|error| wrong(error.to_string()))?;
        let messages = messages.enumerate().map(|(index, message)| {
            let role = field(&message, "role").filter(|role| role.as_str().is_some());
            role.ok_or_else(|| wrong(format!("message {} has no `role`", index + 1))).map(|_| plain(&message))
        });
        let messages: Vec<_> = messages.collect::<Result<_, _>>()?;
        if messages.is_empty() {
            return Err(wrong("`messages` is empty".to_owned()));
        }
        let tools = field(object, "tools").filter(|tools| !tools.is_none());
        if tools.as_ref().is_some_and(|tools| tools.kind() != ValueKind::Seq) {
            return Err(wrong("`tools` is not a list".to_owned()));
        }
        Ok(Self { messages, tools, variables: Vec::new() })
    }

    /// Sets a variable of the template (`enable_thinking`, `date_string`) to a JSON value.
    pub fn with_variable(mut self, name: impl Into<String>, value: serde_json::Value) -> Self {
        self.variables.push((name.into(), Value::from(Serde(value))));
        self
    }

    /// Roles of the messages.
    fn roles(&self) -> impl Iterator<Item = String> {
        self.messages
            .iter()
            .map(|message| field(message, "role").map(|role| role.to_string()).unwrap_or_default())
    }
}

/// A field of an object, if it has it.
pub(crate) fn field(object: &Value, name: &str) -> Option<Value> {
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
