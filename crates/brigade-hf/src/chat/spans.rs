//! What the assistant said, in the text of a chat.

use std::ops::Range;

use minijinja::Value;

use super::Chat;
use super::template::ChatTemplate;
use crate::error::HfError;

/// A placeholder for a message, to see where it ends: a character that no text has.
const OTHER: &str = "\u{FDD2}";

/// The role of messages that are learned.
const ASSISTANT: &str = "assistant";

/// The text of a chat, and where the assistant speaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssistantText {
    /// The text.
    pub text: String,
    /// Ranges of its bytes, in order: each what the assistant says in one turn, up to and with the token that ends it.
    pub spans: Vec<Range<usize>>,
}

/// Which tokens are in ranges of a text. `offsets` are each token's own range, in bytes; a token belongs to a range with which it shares
/// a byte, and one of no bytes to none.
pub fn token_mask(spans: &[Range<usize>], offsets: &[Range<usize>]) -> Vec<bool> {
    let shares =
        |token: &Range<usize>| spans.iter().any(|span| token.start.max(span.start) < token.end.min(span.end));
    offsets.iter().map(shares).collect()
}

impl ChatTemplate {
    /// The text of a chat, and where the assistant says what is to be learned: in what the template marks by `{% generation %}`; where it has no such
    /// marks, from the end of what stands before an answer (`add_generation_prompt`) to the end of the message and of what the template
    /// writes after the last message, but for white space after a special token. `special_tokens` are further ones than those that the
    /// template may name.
    ///
    /// # Errors
    /// As [`render`](Self::render), if the assistant says nothing, or if a template without marks writes earlier messages in another
    /// way once an answer follows, so that it does not say where the answer begins or ends.
    pub fn assistant_text(&self, chat: &Chat, special_tokens: &[String]) -> Result<AssistantText, HfError> {
        let whole = self.render_messages(chat, &chat.messages, false)?;
        let mut spans = whole.spans;
        if !self.marks_assistant() {
            for index in assistant_turns(chat) {
                let span = self.span(chat, index, &whole.text, special_tokens)?;
                if spans.last().is_some_and(|last: &Range<usize>| last.end > span.start) {
                    return Err(self.unclear(index));
                }
                spans.push(span);
            }
        }
        let turns: Vec<_> = assistant_turns(chat).collect();
        if !turns.iter().all(|index| chat.learned[*index]) {
            if spans.len() != turns.len() {
                let [parts, turns] = [(spans.len(), "part"), (turns.len(), "turn")]
                    .map(|(count, name)| format!("{count} {name}{}", if count == 1 { "" } else { "s" }));
                let problem = format!("it marks {parts} for {turns} of the assistant");
                return Err(self.wrong(format!("{problem}, so it is unclear which to learn")));
            }
            let mut turns = turns.into_iter();
            spans.retain(|_| turns.next().is_some_and(|index| chat.learned[index]));
        }
        if spans.is_empty() {
            return Err(self.wrong("the assistant says nothing in this chat that could be learned"));
        }
        Ok(AssistantText { text: whole.text, spans })
    }

    /// Where a message is in the text of the chat.
    fn span(
        &self,
        chat: &Chat,
        index: usize,
        text: &str,
        special: &[String],
    ) -> Result<Range<usize>, HfError> {
        let end = self.end(chat, index, text)?;
        let start = self.start(chat, index, text)?;
        let turn = text.get(start..end).filter(|turn| !turn.is_empty()).ok_or_else(|| self.unclear(index))?;
        let trimmed = turn.trim_end();
        let is_special = |token: &str| !token.is_empty() && trimmed.ends_with(token);
        let ends_special =
            self.special_tokens().any(is_special) || special.iter().any(|token| is_special(token));
        let length = if ends_special { trimmed.len() } else { turn.len() };
        Ok(start..start + length)
    }

    /// Where a message ends: what the template writes after it where it is the last one also follows it in the whole chat.
    fn end(&self, chat: &Chat, index: usize, text: &str) -> Result<usize, HfError> {
        let whole = self.after(chat, &chat.messages, index)?;
        let last = self.after(chat, &chat.messages[..=index], index)?;
        let ends = whole.starts_with(&last).then(|| text.len() - whole.len() + last.len());
        ends.ok_or_else(|| self.unclear(index))
    }

    /// Where a message begins: after the prompt for an answer, or after the part of that prompt that is also before this message (the rest may open a block for thinking). If the template
    /// writes earlier messages differently once they are answered, that part ends with the previous message. The first message answers nothing, and begins where its content does.
    fn start(&self, chat: &Chat, index: usize, text: &str) -> Result<usize, HfError> {
        if index == 0 {
            return self.content(chat, index, text);
        }
        let before = &chat.messages[..index];
        let prompted = self.render_messages(chat, before, true)?.text;
        if text.starts_with(&prompted) {
            return Ok(prompted.len());
        }
        let silent = self.render_messages(chat, before, false)?.text;
        if text.starts_with(&silent) {
            let begin = self.content(chat, index, text)?;
            let header = text.get(silent.len()..begin).filter(|header| !header.is_empty());
            if header.is_some_and(|header| prompted.starts_with(&format!("{silent}{header}"))) {
                return Ok(begin);
            }
        }
        let (Some(prompt), Some(previous)) = (prompted.strip_prefix(&silent), index.checked_sub(1)) else {
            return Err(self.unclear(index));
        };
        // The text before must not come after the message.
        let mut others = chat.messages[..=index].to_vec();
        let ending = self.after(chat, &others, index)?;
        others[previous] = with_content(&others[previous], OTHER);
        let same = self.after(chat, &others, index)? == ending;
        let end = self.end(chat, previous, text)?;
        let begins = same && text.get(end..).is_some_and(|rest| rest.starts_with(prompt));
        begins.then(|| end + prompt.len()).ok_or_else(|| self.unclear(index))
    }

    /// Where a message's content begins in the text of the chat: up to there it stays when it has another.
    fn content(&self, chat: &Chat, index: usize, text: &str) -> Result<usize, HfError> {
        let mut others = chat.messages.clone();
        others[index] = with_content(&others[index], OTHER);
        let other = self.render_messages(chat, &others, false)?.text;
        let same = text.chars().zip(other.chars()).take_while(|(a, b)| a == b);
        Ok(same.map(|(character, _)| character.len_utf8()).sum())
    }

    fn unclear(&self, index: usize) -> HfError {
        let number = index + 1;
        self.wrong(format!(
            "it does not show where message {number} is; blocks of {{% generation %}} would mark it"
        ))
    }

    /// What follows a message's content in the text of these messages: what stays when it has another.
    fn after(&self, chat: &Chat, messages: &[Value], index: usize) -> Result<String, HfError> {
        let text = self.render_messages(chat, messages, false)?.text;
        let mut others = messages.to_vec();
        others[index] = with_content(&others[index], OTHER);
        let other = self.render_messages(chat, &others, false)?.text;
        let pairs = text.chars().rev().zip(other.chars().rev());
        let after: usize = pairs.take_while(|(a, b)| a == b).map(|(character, _)| character.len_utf8()).sum();
        Ok(text[text.len() - after..].to_owned())
    }
}

/// Which messages are the assistant's.
fn assistant_turns(chat: &Chat) -> impl Iterator<Item = usize> {
    let roles: Vec<_> = chat.roles().collect();
    (0..roles.len()).filter(move |index| roles[*index] == ASSISTANT)
}

/// A message with another content.
fn with_content(message: &Value, content: &str) -> Value {
    const CONTENT: &str = "content";
    let keys = message.try_iter().into_iter().flatten().filter(|key| key.as_str() != Some(CONTENT));
    let fields = keys.filter_map(|key| Some((key.clone(), message.get_item(&key).ok()?)));
    Value::from_pairs(fields.chain([(Value::from(CONTENT), Value::from(content))]))
}
