//! Jinja templates of chats.

use std::fmt::Write;
use std::ops::Range;

use chrono::{Local, NaiveDateTime};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, escape_formatter};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::{Chat, json};
use crate::error::HfError;

/// How many instructions a template may take: about half a second.
const FUEL: u64 = 5_000_000;

/// Marks around what the assistant said while the text is put together: characters that occur in no text.
const BEGIN: char = '\u{FDD0}';
const END: char = '\u{FDD1}';

/// The name of the template, and of the filter that stands for `{% generation %}`.
const NAME: &str = "chat";
const GENERATION: &str = "generation";

/// A template that makes a text of a chat.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// For messages.
    file: String,
    special_tokens: Vec<(String, String)>,
    marks_assistant: bool,
}

/// A text, and what the template marks as said by the assistant.
pub(super) struct Marked {
    pub text: String,
    pub spans: Vec<Range<usize>>,
}

impl ChatTemplate {
    /// A template, with the special tokens that it may name (`bos_token`, `eos_token`). `file` is for messages of errors.
    ///
    /// # Errors
    /// If it is not a template.
    pub fn new(
        file: &str,
        source: &str,
        special_tokens: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, HfError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| wrong(file, &error))?);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.set_formatter(|output, state, value| match json::float(value) {
            Some(float) => output.write_str(&float).map_err(Error::from),
            None => escape_formatter(output, state, value),
        });
        environment.add_filter("tojson", json::tojson);
        for name in ["e", "escape"] {
            environment.add_filter(name, |text: Value| escape(&text.to_string()));
        }
        environment.add_filter(GENERATION, |text: String| format!("{BEGIN}{text}{END}"));
        environment.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message.to_string()))
        });
        environment
            .add_function("strftime_now", |format: String| strftime(Local::now().naive_local(), &format));
        let (source, marks_assistant) = with_filters(source);
        let added = environment.add_template_owned(NAME, source);
        added.map_err(|error| wrong(file, &error))?;
        let special_tokens = special_tokens.into_iter().collect();
        Ok(Self { environment, file: file.to_owned(), special_tokens, marks_assistant })
    }

    /// Makes `strftime_now` say this time (`2025-03-09T14:05:00`), so that a text does not depend on the day.
    ///
    /// # Errors
    /// If it is not a time.
    pub fn with_time(mut self, time: &str) -> Result<Self, HfError> {
        let allowed = "a time such as 2025-03-09T14:05:00";
        let time: NaiveDateTime =
            time.parse().map_err(|_| HfError::field(&self.file, "time", time, allowed))?;
        self.environment.add_function("strftime_now", move |format: String| strftime(time, &format));
        Ok(self)
    }

    /// The text of a chat, with the prefix of an answer if `add_generation_prompt`.
    ///
    /// # Errors
    /// If the template raises an exception, which says what it wants of chats, or fails.
    pub fn render(&self, chat: &Chat, add_generation_prompt: bool) -> Result<String, HfError> {
        self.render_messages(chat, &chat.messages, add_generation_prompt).map(|marked| marked.text)
    }

    /// Whether it has `{% generation %}`.
    pub(super) fn marks_assistant(&self) -> bool {
        self.marks_assistant
    }

    /// The special tokens that it may name.
    pub(super) fn special_tokens(&self) -> impl Iterator<Item = &str> {
        self.special_tokens.iter().map(|(_, token)| token.as_str())
    }

    /// An error of this template.
    pub(super) fn wrong(&self, problem: impl Into<String>) -> HfError {
        HfError::Template { file: self.file.clone(), problem: problem.into() }
    }

    /// The text of other messages of a chat.
    pub(super) fn render_messages(
        &self,
        chat: &Chat,
        messages: &[Value],
        add_generation_prompt: bool,
    ) -> Result<Marked, HfError> {
        let mut context: Vec<(&str, Value)> = vec![
            ("messages", Value::from(messages.to_vec())),
            ("tools", chat.tools.clone().unwrap_or(Value::from(()))),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
        ];
        context.extend(self.special_tokens.iter().map(|(name, token)| (name.as_str(), Value::from(token))));
        context.extend(chat.variables.iter().map(|(name, value)| (name.as_str(), value.clone())));
        if self.marks_assistant && messages.iter().chain(&chat.tools).any(has_mark) {
            return Err(self.wrong("the chat has U+FDD0 or U+FDD1, which are noncharacters"));
        }
        let context = Value::from_pairs(context);
        let template = self.environment.get_template(NAME).map_err(|error| wrong(&self.file, &error))?;
        let text = template.render(context).map_err(|error| wrong(&self.file, &error))?;
        Ok(if self.marks_assistant { unmark(&text) } else { Marked { text, spans: Vec::new() } })
    }
}

fn wrong(file: &str, error: &Error) -> HfError {
    let problem = match (error.detail(), error.kind()) {
        (Some(detail), ErrorKind::InvalidOperation) => detail.to_owned(),
        _ => error.to_string(),
    };
    HfError::Template { file: file.to_owned(), problem }
}

/// As Python's `markupsafe` writes it.
fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&#34;").replace('\'', "&#39;")
}

fn strftime(time: NaiveDateTime, format: &str) -> Result<String, Error> {
    let mut text = String::new();
    match write!(text, "{}", time.format(format)) {
        Ok(()) => Ok(text),
        Err(_) => {
            Err(Error::new(ErrorKind::InvalidOperation, format!("strftime_now cannot write `{format}`")))
        }
    }
}

/// The template with blocks of a filter in place of those of `{% generation %}`, and whether there are any.
fn with_filters(source: &str) -> (String, bool) {
    let (mut text, mut rest, mut found) = (String::new(), source, false);
    while let Some(begin) = rest.find("{%") {
        let (before, tag) = rest.split_at(begin);
        text.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (inner, after) = (&tag[2..end], &tag[end + 2..]);
        let is_sign = |c: char| c == '-' || c == '+';
        let name = inner.trim_start_matches(is_sign).trim_end_matches(is_sign).trim();
        match name {
            "generation" => {
                text.push_str(&format!("{{%{}%}}", inner.replacen("generation", "filter generation", 1)))
            }
            "endgeneration" => {
                text.push_str(&format!("{{%{}%}}", inner.replacen("endgeneration", "endfilter", 1)))
            }
            _ => text.push_str(&tag[..end + 2]),
        }
        found |= name == "generation";
        rest = after;
    }
    text.push_str(rest);
    (text, found)
}

fn has_mark(value: &Value) -> bool {
    match value.kind() {
        ValueKind::String => value.as_str().is_some_and(|text| text.contains([BEGIN, END])),
        ValueKind::Seq => value.try_iter().is_ok_and(|mut items| items.any(|item| has_mark(&item))),
        ValueKind::Map => value.try_iter().is_ok_and(|mut keys| {
            keys.any(|key| has_mark(&key) || value.get_item(&key).is_ok_and(|value| has_mark(&value)))
        }),
        _ => false,
    }
}

/// A text without its marks, and where they were.
fn unmark(marked: &str) -> Marked {
    let (mut text, mut spans, mut begins) = (String::with_capacity(marked.len()), Vec::new(), Vec::new());
    for character in marked.chars() {
        match character {
            BEGIN => begins.push(text.len()),
            END => spans.extend(begins.pop().map(|begin| begin..text.len())),
            _ => text.push(character),
        }
    }
    spans.sort_by_key(|span: &Range<usize>| span.start);
    Marked { text, spans }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_generation_become_those_of_a_filter_with_their_signs() {
        let (text, found) =
            with_filters("a{%- generation +%}b{% endgeneration -%}{% if x %}{% endif %}{% open");
        assert_eq!(text, "a{%- filter generation +%}b{% endfilter -%}{% if x %}{% endif %}{% open");
        assert!(found);
        assert!(!with_filters("{{ generation }}{% set generation = 1 %}").1);
    }

    #[test]
    fn marks_are_taken_out_and_may_be_nested() {
        let marked = unmark("a\u{FDD0}bc\u{FDD0}d\u{FDD1}\u{FDD1}é\u{FDD0}\u{FDD1}");
        assert_eq!((marked.text.as_str(), marked.spans), ("abcdé", vec![1..4, 3..4, 6..6]));
    }
}
