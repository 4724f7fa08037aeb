//! What accompanies `tokenizer.json`: special tokens and templates of chats.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use brigade_sorted::SortedMap;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::chat::ChatTemplate;
use crate::config::read_object;
use crate::error::HfError;
use crate::templates::{additional_templates, template_name};

const CONFIG: &str = "tokenizer_config.json";
const SPECIAL: &str = "special_tokens_map.json";
const TOKENIZER: &str = "tokenizer.json";
const TEMPLATE: &str = "chat_template.jinja";

/// The names of special tokens that every tokenizer may have.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Fields that list additional special tokens.
const FURTHER: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

/// The name of the only template, and of the one for chats with tools where there are several.
const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// What the files beside `tokenizer.json` say.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenizerConfig {
    /// Special tokens by name (`bos_token`).
    pub special_tokens: SortedMap<String, String>,
    /// Tokens that are whole wherever they stand in a text, from `tokenizer.json`.
    pub added_tokens: Vec<AddedToken>,
    /// The longest row that the tokenizer was made for.
    pub max_length: Option<usize>,
    /// Templates of chats by name; a single one is `default`.
    pub templates: SortedMap<String, String>,
}

/// A token that is whole wherever it stands in a text.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct AddedToken {
    /// Its number.
    pub id: u32,
    /// Its text.
    pub content: String,
    /// Whether it is not ordinary text.
    #[serde(default)]
    pub special: bool,
}

impl TokenizerConfig {
    /// Reads `tokenizer_config.json`, `special_tokens_map.json`, `chat_template.jinja`, `additional_chat_templates/NAME.jinja` and the added tokens of
    /// `tokenizer.json`, of those that are there. What two say the first of them decides; but where templates have files of their own, there are no others.
    ///
    /// # Errors
    /// If a file cannot be read, or has other than what these have.
    pub fn read(folder: &Path) -> Result<Self, HfError> {
        let mut config = Self { added_tokens: added_tokens(&folder.join(TOKENIZER))?, ..Self::default() };
        for name in [CONFIG, SPECIAL] {
            let path = folder.join(name);
            if let Some(object) = read_object(&path)? {
                config.add_special_tokens(&path, &object)?;
                config.add_templates(&path, &object)?;
                // Those without a limit have 10³⁰.
                let length = object.get("model_max_length").and_then(Value::as_u64);
                let length = length.and_then(|length| i32::try_from(length).ok()?.try_into().ok());
                config.max_length = config.max_length.or(length);
            }
        }
        let in_files = templates_in_files(folder)?;
        if !in_files.is_empty() {
            config.templates = in_files;
        }
        Ok(config)
    }

    /// With the template of chats in a file, in place of all others.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn with_template_of(self, file: &Path) -> Result<Self, HfError> {
        let template = fs::read_to_string(file).map_err(|error| HfError::io(file, error))?;
        Ok(Self { templates: [(DEFAULT.to_owned(), template)].into_iter().collect(), ..self })
    }

    /// The texts of all special tokens.
    pub fn special_texts(&self) -> Vec<String> {
        let added = self.added_tokens.iter().filter(|token| token.special).map(|token| &token.content);
        let mut texts: Vec<_> = self.special_tokens.values().chain(added).cloned().collect();
        texts.sort();
        texts.dedup();
        texts
    }

    /// The template of chats, or where there are several that of chats with tools.
    ///
    /// # Errors
    /// If there is none, several without a default, or it is no template. `folder` is for messages.
    pub fn chat_template(&self, folder: &Path, tools: bool) -> Result<ChatTemplate, HfError> {
        let with_tools = self.templates.get(TOOL_USE).filter(|_| tools);
        let Some(source) = with_tools.or_else(|| self.templates.get(DEFAULT)) else {
            let names: Vec<_> = self.templates.keys().map(|name| format!("`{name}`")).collect();
            let problem = match names.as_slice() {
                [] => "there is no chat template, neither `chat_template` in tokenizer_config.json nor chat_template.jinja".to_owned(),
                names => format!("there is no template `{DEFAULT}`, only {}", names.join(", ")),
            };
            return Err(HfError::Template { file: folder.display().to_string(), problem });
        };
        let tokens = self.special_tokens.iter().map(|(name, token)| (name.clone(), token.clone()));
        ChatTemplate::new(&folder.display().to_string(), source, tokens)
    }

    fn add_special_tokens(&mut self, path: &Path, object: &Map<String, Value>) -> Result<(), HfError> {
        let wrong = |name: &str, value: &Value, allowed: &str| {
            HfError::field(&path.to_string_lossy(), name, value, allowed)
        };
        for name in NAMES {
            let Some(value) = object.get(name).filter(|value| !value.is_null()) else { continue };
            let token = content(value)
                .ok_or_else(|| wrong(name, value, "a text, an object with `content`, or null"))?;
            self.special_tokens.entry(name.into()).or_insert(token);
        }
        // Those with names are for templates as well; those of a list are in `added_tokens`.
        for name in FURTHER {
            let Some(Value::Object(by_name)) = object.get(name) else { continue };
            for (name, value) in by_name {
                let token = content(value)
                    .ok_or_else(|| wrong(name, value, "a text, or an object with `content`"))?;
                self.special_tokens.entry(name.clone()).or_insert(token);
            }
        }
        Ok(())
    }

    fn add_templates(&mut self, path: &Path, object: &Map<String, Value>) -> Result<(), HfError> {
        const FIELD: &str = "chat_template";
        let Some(value) = object.get(FIELD) else { return Ok(()) };
        let named = |item: &Value| {
            let text = |field: &str| item.get(field)?.as_str().map(str::to_owned);
            Some((text("name")?, text("template")?))
        };
        let templates: Option<Vec<_>> = match value {
            Value::Null => return Ok(()),
            Value::String(template) => Some(vec![(DEFAULT.to_owned(), template.clone())]),
            Value::Array(items) => items.iter().map(named).collect(),
            _ => None,
        };
        let allowed = "a text, a list of objects with `name` and `template`, or null";
        let shown = || value.to_string().chars().take(100).collect::<String>();
        let templates =
            templates.ok_or_else(|| HfError::field(&path.to_string_lossy(), FIELD, shown(), allowed))?;
        self.templates.extend(templates);
        Ok(())
    }
}

/// Templates that have files of their own.
fn templates_in_files(folder: &Path) -> Result<SortedMap<String, String>, HfError> {
    let mut templates = SortedMap::new();
    for file in [TEMPLATE.to_owned()].into_iter().chain(additional_templates(folder)?) {
        let name = template_name(&file).unwrap_or(DEFAULT);
        match fs::read_to_string(folder.join(&file)) {
            Ok(template) => _ = templates.insert(name.to_owned(), template),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(HfError::io(&folder.join(&file), error)),
        }
    }
    Ok(templates)
}

/// The text of a token, which may have options beside it.
fn content(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

fn added_tokens(path: &Path) -> Result<Vec<AddedToken>, HfError> {
    #[derive(Deserialize)]
    struct Tokenizer {
        #[serde(default)]
        added_tokens: Vec<AddedToken>,
    }
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(HfError::io(path, error)),
    };
    let tokenizer: Result<Tokenizer, _> = serde_json::from_slice(&text);
    let wrong =
        |error: serde_json::Error| HfError::Json { path: path.to_owned(), problem: error.to_string() };
    tokenizer.map(|tokenizer| tokenizer.added_tokens).map_err(wrong)
}
