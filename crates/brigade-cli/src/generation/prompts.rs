//! The texts to continue.

use std::path::Path;

use anyhow::{Context, bail};
use brigade_hf::chat::Chat;
use serde_json::{Map, Value};

/// A text or a chat to continue.
pub struct Prompt {
    /// Where it was given, for messages.
    pub name: String,
    pub content: PromptContent,
    /// The fields of its line, if it is one of JSONL.
    pub fields: Map<String, Value>,
}

pub enum PromptContent {
    Text(String),
    /// The assistant is to answer.
    Chat(Box<Chat>),
}

impl Prompt {
    /// That of `--prompt`.
    pub fn of_flag(text: &str) -> Self {
        let fields = [("prompt".to_owned(), text.into())].into_iter().collect();
        Self { name: "--prompt".into(), content: PromptContent::Text(text.to_owned()), fields }
    }

    /// Those of a file, one on a line, but for lines that are empty: texts, or in a file `*.jsonl` objects with a text `prompt` or with `messages`.
    pub fn of_file(path: &Path) -> anyhow::Result<Vec<Self>> {
        let text = std::fs::read_to_string(path).with_context(|| format!("--prompts {}", path.display()))?;
        let is_json = path.extension().is_some_and(|extension| extension == "jsonl");
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let prompts = lines.map(|(index, line)| {
            let name = format!("--prompts {}, line {}", path.display(), index + 1);
            if is_json { Self::of_json(name, line) } else { Ok(Self { name, ..Self::of_flag(line) }) }
        });
        let prompts: Vec<_> = prompts.collect::<anyhow::Result<_>>()?;
        if prompts.is_empty() {
            bail!("--prompts {}: it has no prompts", path.display());
        }
        Ok(prompts)
    }

    fn of_json(name: String, line: &str) -> anyhow::Result<Self> {
        let value: Value = serde_json::from_str(line).with_context(|| format!("{name}: it is not JSON"))?;
        let Value::Object(fields) = value else { bail!("{name}: it is not a JSON object") };
        let content = match (fields.get("prompt"), fields.get("messages")) {
            (Some(Value::String(text)), None) => PromptContent::Text(text.clone()),
            (None, Some(_)) => PromptContent::Chat(Box::new(Chat::from_json(&name, line)?)),
            (Some(_), None) => bail!("{name}: `prompt` is not a string"),
            (Some(_), Some(_)) => bail!("{name}: it has both `prompt` and `messages`; give one of them"),
            (None, None) => {
                let names: Vec<_> = fields.keys().map(|name| format!("`{name}`")).collect();
                let has = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
                bail!("{name}: it has neither `prompt` nor `messages`, but {has}")
            }
        };
        Ok(Self { name, content, fields })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str) -> anyhow::Result<Vec<Prompt>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        Prompt::of_file(&path)
    }

    #[test]
    fn a_line_is_a_prompt() {
        let texts = |name: &str, text: &str| -> Vec<Option<String>> {
            let content = |prompt: Prompt| match prompt.content {
                PromptContent::Text(text) => Some(text),
                PromptContent::Chat(_) => None,
            };
            read(name, text).unwrap().into_iter().map(content).collect()
        };
        assert_eq!(texts("a.txt", "One\n\n{\"two\"}\r\n"), [Some("One".into()), Some("{\"two\"}".into())]);
        let lines =
            "{\"prompt\": \"a\\nb\", \"id\": 3}\n{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}";
        assert_eq!(texts("a.jsonl", lines), [Some("a\nb".into()), None]);
    }

    #[test]
    fn a_bad_line_is_named() {
        for (text, said) in [
            ("{\"prompt\": \"a\"}\nno", "a.jsonl, line 2: it is not JSON"),
            ("[1]", "line 1: it is not a JSON object"),
            ("{\"prompt\": 1}", "`prompt` is not a string"),
            ("{\"text\": \"a\"}", "neither `prompt` nor `messages`, but `text`"),
            ("{\"prompt\": \"a\", \"messages\": []}", "both `prompt` and `messages`"),
            ("{\"messages\": []}", "line 1: `messages` is empty"),
            ("\n \n", "it has no prompts"),
        ] {
            let error = read("a.jsonl", text).err().map(|error| brigade::format_error(&error));
            assert!(error.as_ref().is_some_and(|error| error.contains(said)), "{text}: {error:?}");
        }
    }
}
