//! A chat with a model, line by line.

use brigade::CachedText;
use brigade::report::counted;
use brigade_hf::chat::{Chat, ChatTemplate};

use super::generator::UnloadedModel;
use super::{ChatInput, Generator, TokenLimit};

/// What has been said.
pub struct ChatSession {
    template: ChatTemplate,
    system: Option<String>,
    /// Role and text.
    messages: Vec<(&'static str, String)>,
}

impl ChatSession {
    pub fn new(template: ChatTemplate, system: Option<String>) -> Self {
        Self { template, system, messages: Vec::new() }
    }

    /// The tokens of a short chat, which differ where the system message, the template or the tokenizer does; none if the template refuses it.
    pub fn beginning(&self, model: &UnloadedModel) -> Option<Vec<u32>> {
        model.tokens_of_chat(&self.template, &self.chat_of(&[("user", "a".to_owned())])).ok()
    }

    /// Answers each line of `input`, until that ends or nobody reads the answers. The oldest messages are left out where a chat no longer fits in the model, or leaves no token to generate.
    pub fn run(
        &mut self,
        model: &UnloadedModel,
        generator: &mut Generator<'_>,
        input: &mut dyn ChatInput,
    ) -> anyhow::Result<()> {
        let mut text = CachedText::default();
        while let Some(line) = input.next_line()? {
            if line.trim().is_empty() {
                continue;
            }
            self.messages.push(("user", line));
            let Some(tokens) = self.tokens(model, generator.limit(), input)? else {
                self.messages.pop();
                continue;
            };
            let answer = generator.continued(&mut text, &tokens, &mut |part| input.show(part))?;
            if !input.show("\n")? {
                return Ok(());
            }
            self.messages.push(("assistant", answer.text));
        }
        Ok(())
    }

    /// The tokens of the chat, without the oldest messages where it is too long; none if its last message alone is.
    fn tokens(
        &mut self,
        model: &UnloadedModel,
        limit: TokenLimit,
        input: &mut dyn ChatInput,
    ) -> anyhow::Result<Option<Vec<u32>>> {
        let (mut left_out, mut was_too_long) = (0, String::new());
        loop {
            let tokens = model.tokens_of_chat(&self.template, &self.chat_of(&self.messages))?;
            let why = match limit.after(tokens.len()) {
                _ if !model.fits(&tokens) => {
                    format!("the model has {} positions", model.model.sequence_length())
                }
                Err(error) => error.to_string(),
                Ok(_) => {
                    if left_out > 0 {
                        let dropped = counted(left_out, "message");
                        input.note(format_args!(
                            "note: the chat {was_too_long}; {dropped} dropped from its beginning"
                        ));
                    }
                    return Ok(Some(tokens));
                }
            };
            was_too_long = format!("has {} tokens, but {why}", tokens.len());
            if self.messages.len() < 3 {
                input.note(format_args!("note: the message {was_too_long}; it is dropped"));
                return Ok(None);
            }
            // A question with its answer.
            self.messages.drain(..2);
            left_out += 2;
        }
    }

    /// The system message, if there is one, and others.
    fn chat_of(&self, messages: &[(&'static str, String)]) -> Chat {
        let system = self.system.iter().map(|text| ("system", text.as_str()));
        Chat::new(system.chain(messages.iter().map(|(role, text)| (*role, text.as_str()))))
    }
}
