//! `config.json` and `generation_config.json` in a folder.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use brigade_files::AtomicFile;
use serde_json::{Map, Value, json};

use super::checks::{Labels, SpecialTokens};
use super::fields::Fields;
use super::{Config, Task, llama};
use crate::error::HfError;

const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";

/// Fields that say the same as others, and go when these change.
const FOLLOWERS: [(&str, &str); 2] = [("id2label", "num_labels"), ("torch_dtype", "dtype")];

/// Fields of `generation_config.json` that have an effect in `transformers` and none here, with the number that turns each off.
const IGNORED: [(&str, f64); 26] = [
    ("bad_words_ids", 0.0),
    ("begin_suppress_tokens", 0.0),
    ("diversity_penalty", 0.0),
    ("dola_layers", f64::NAN),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("exponential_decay_length_penalty", 0.0),
    ("forced_bos_token_id", f64::NAN),
    ("forced_eos_token_id", f64::NAN),
    ("force_words_ids", 0.0),
    ("guidance_scale", 1.0),
    ("min_length", 0.0),
    ("min_new_tokens", 0.0),
    ("min_p", 0.0),
    ("no_repeat_ngram_size", 0.0),
    ("num_beams", 1.0),
    ("penalty_alpha", 0.0),
    ("sequence_bias", 0.0),
    ("stop_strings", 0.0),
    ("suppress_tokens", 0.0),
    ("token_healing", 0.0),
    ("top_h", f64::NAN),
    ("typical_p", 1.0),
    ("watermarking_config", 0.0),
];

/// What the `config.json` of a folder says, with the `generation_config.json` beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigFile {
    /// What the model is made of. It may be changed; fields that are not changed by it are written as they were read.
    pub config: Config,
    /// What the model is for; none if the file does not say it, or says what is not known here.
    pub task: Option<Task>,
    /// The type of its weights, as `torch` names it (`bfloat16`).
    pub dtype: Option<String>,
    /// How to generate text, if a file says so.
    pub generation: Option<GenerationConfig>,
    read: Option<(Map<String, Value>, Config)>,
}

/// How to generate text, from `generation_config.json`. Missing fields are none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationConfig {
    /// Tokens with a meaning of their own; where none ends a text, those of the model do.
    pub tokens: SpecialTokens,
    /// Whether tokens are drawn, not taken by the highest probability.
    pub do_sample: Option<bool>,
    /// What logits are divided by.
    pub temperature: Option<f64>,
    /// How many of the most probable tokens are drawn from.
    pub top_k: Option<usize>,
    /// The probability that those have together that are drawn from.
    pub top_p: Option<f64>,
    /// What logits of tokens that were there before are divided by, or multiplied by if they are below 0.
    pub repetition_penalty: Option<f64>,
    /// How many tokens are generated at most.
    pub max_new_tokens: Option<usize>,
    /// How many tokens a text has at most, with those that are given.
    pub max_length: Option<usize>,
    fields: Map<String, Value>,
}

impl ConfigFile {
    /// Of a model that begins here.
    pub fn new(config: Config, task: Task) -> Self {
        Self { config, task: Some(task), dtype: None, generation: None, read: None }
    }

    /// Reads `config.json` and, if it is there, `generation_config.json`.
    ///
    /// # Errors
    /// If a file cannot be read, or [its fields](Config::from_fields) are not what a model can have.
    pub fn read(folder: &Path) -> Result<Self, HfError> {
        let path = folder.join(CONFIG);
        let object = read_object(&path)?.ok_or_else(|| HfError::io(&path, ErrorKind::NotFound.into()))?;
        let (config, task) = Config::with_task(&path.to_string_lossy(), &object)?;
        let dtype = ["dtype", "torch_dtype"].into_iter().find_map(|name| object.get(name)?.as_str());
        let dtype = dtype.map(str::to_owned);
        let generation = GenerationConfig::read(&folder.join(GENERATION))?;
        Ok(Self { read: Some((object, config.clone())), config, task, dtype, generation })
    }

    /// With what a file of [`label_fields`](Self::label_fields) says, if it is there: `config` is then a classifier.
    ///
    /// # Errors
    /// If the file cannot be read, or one of its fields is not what it can be.
    pub fn with_labels_of(mut self, path: &Path) -> Result<Self, HfError> {
        let Some(object) = read_object(path)? else { return Ok(self) };
        let file = path.to_string_lossy();
        let fields = Fields::new(&file, &object);
        *self.config.labels_mut() = Labels::read(&fields)?;
        if let Config::Decoder(config) = &mut self.config {
            config.tokens.pad = fields.get_or_null("pad_token_id", None)?.or(config.tokens.pad);
        }
        self.task = Some(Task::SequenceClassification);
        Ok(self)
    }

    /// With what a folder's `generation_config.json` says of how to generate text, if it has one.
    ///
    /// # Errors
    /// If the file cannot be read, or one of its fields is not what it can be.
    pub fn with_generation_of(mut self, folder: &Path) -> Result<Self, HfError> {
        self.generation = GenerationConfig::read(&folder.join(GENERATION))?.or(self.generation);
        Ok(self)
    }

    /// Has a decoder's texts also end with these tokens: `generation_config.json` names them after those that end a text already. Whether any is new.
    pub fn add_ends(&mut self, ends: &[u32]) -> bool {
        let Config::Decoder(config) = &self.config else { return false };
        let named = self.generation.as_ref().map(|generation| generation.tokens.eos.as_slice());
        let mut all = named.filter(|eos| !eos.is_empty()).unwrap_or(&config.tokens.eos).to_vec();
        let before = all.len();
        for end in ends {
            if !all.contains(end) {
                all.push(*end);
            }
        }
        let grows = all.len() > before;
        if grows {
            let of_model = || GenerationConfig::of_tokens(config.tokens.clone());
            self.generation.get_or_insert_with(of_model).tokens.eos = all;
        }
        grows
    }

    /// The fields of a classifier that its model may not have: `id2label`, `label2id` and `problem_type`, and a decoder's `pad_token_id`, by which it finds the last token of a text.
    pub fn label_fields(&self) -> Map<String, Value> {
        let mut object = Map::new();
        self.config.labels().write(&mut object);
        if let Config::Decoder(config) = &self.config {
            object.extend(config.tokens.pad.map(|pad| ("pad_token_id".to_owned(), json!(pad))));
        }
        object
    }

    /// The fields to write: those that were read, with what has changed since; or all fields of a model that begins here.
    ///
    /// # Errors
    /// As [`Config::to_fields`].
    pub fn to_fields(&self) -> Result<Map<String, Value>, HfError> {
        let mut object = match &self.read {
            None => self.config.to_fields()?,
            Some((object, config)) if *config == self.config => object.clone(),
            Some((object, config)) => {
                let new = self.config.to_fields()?;
                let (mut object, old) = (object.clone(), config.to_fields()?);
                let rotary: Vec<_> = llama::rotary_fields().collect();
                let differs = |name: &str| new.get(name) != old.get(name);
                if rotary.iter().any(|name| differs(name)) {
                    for name in rotary {
                        object.remove(name);
                        object.extend(new.get(name).map(|value| (name.to_owned(), value.clone())));
                    }
                }
                for (name, value) in new.iter().filter(|(name, _)| differs(name)) {
                    set(&mut object, name, value.clone());
                }
                object
            }
        };
        if let Some(class) = self.task.and_then(|task| self.config.family().class(task)) {
            object.insert("architectures".into(), json!([class]));
        }
        if let Some(dtype) = &self.dtype {
            set(&mut object, "torch_dtype", json!(dtype));
        }
        Ok(object)
    }

    /// Writes both files.
    ///
    /// # Errors
    /// As [`to_fields`](Self::to_fields), or if a file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), HfError> {
        write_object(&folder.join(CONFIG), self.to_fields()?)?;
        match &self.generation {
            Some(generation) => write_object(&folder.join(GENERATION), generation.to_fields()),
            None => Ok(()),
        }
    }
}

impl GenerationConfig {
    /// Of a model that begins here, with these special tokens.
    pub fn of_tokens(tokens: SpecialTokens) -> Self {
        Self { tokens, ..Self::default() }
    }

    /// Reads a file, if it is there.
    fn read(path: &Path) -> Result<Option<Self>, HfError> {
        let Some(object) = read_object(path)? else { return Ok(None) };
        let file = path.to_string_lossy();
        let fields = Fields::new(&file, &object);
        Ok(Some(Self {
            tokens: SpecialTokens::read(&fields, [None; 3])?,
            do_sample: fields.get_or_null("do_sample", None)?,
            temperature: fields.get_or_null("temperature", None)?,
            top_k: fields.get_or_null("top_k", None)?,
            top_p: fields.get_or_null("top_p", None)?,
            repetition_penalty: fields.get_or_null("repetition_penalty", None)?,
            max_new_tokens: fields.get_or_null("max_new_tokens", None)?,
            max_length: fields.get_or_null("max_length", None)?,
            fields: object.clone(),
        }))
    }

    /// The fields of the file that would change a text in `transformers`, and have no effect here, with their values.
    pub fn ignored(&self) -> Vec<String> {
        let is_on = |value: &Value, off: f64| match value {
            Value::Null | Value::Bool(false) => false,
            Value::Number(number) => number.as_f64() != Some(off),
            Value::Array(values) => !values.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
            Value::Bool(true) | Value::String(_) => true,
        };
        let of = |(name, off): (&str, f64)| {
            let value = self.fields.get(name).filter(|value| is_on(value, off))?;
            Some(format!("`{name}` = {value}"))
        };
        IGNORED.into_iter().filter_map(of).collect()
    }

    /// The fields to write: those that were read, with what has changed since.
    pub fn to_fields(&self) -> Map<String, Value> {
        let mut object = self.fields.clone();
        let eos = match self.tokens.eos.as_slice() {
            [] => None,
            [one] if !object.get("eos_token_id").is_some_and(Value::is_array) => Some(json!(one)),
            several => Some(json!(several)),
        };
        let fields = [
            ("bos_token_id", self.tokens.bos.map(Value::from)),
            ("eos_token_id", eos),
            ("pad_token_id", self.tokens.pad.map(Value::from)),
            ("do_sample", self.do_sample.map(Value::from)),
            ("temperature", self.temperature.map(Value::from)),
            ("top_k", self.top_k.map(Value::from)),
            ("top_p", self.top_p.map(Value::from)),
            ("repetition_penalty", self.repetition_penalty.map(Value::from)),
            ("max_new_tokens", self.max_new_tokens.map(Value::from)),
            ("max_length", self.max_length.map(Value::from)),
        ];
        for (name, value) in fields {
            let same = |old: &Value| {
                Some(old) == value.as_ref()
                    || old.as_f64().is_some() && old.as_f64() == value.as_ref().and_then(Value::as_f64)
            };
            match (&value, object.get(name)) {
                (_, Some(old)) if same(old) => {}
                (Some(value), _) => _ = object.insert(name.into(), value.clone()),
                (None, _) => _ = object.remove(name),
            }
        }
        object
    }
}

/// Sets a field, under the name that the object has for it.
fn set(object: &mut Map<String, Value>, name: &str, value: Value) {
    for (first, follower) in FOLLOWERS {
        if name == first {
            object.remove(follower);
        }
    }
    object.insert(name.into(), value);
}

/// A file's object; none if there is no file.
pub(crate) fn read_object(path: &Path) -> Result<Option<Map<String, Value>>, HfError> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(HfError::io(path, error)),
    };
    let wrong = |problem: String| HfError::Json { path: path.to_owned(), problem };
    match serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))? {
        Value::Object(object) => Ok(Some(object)),
        _ => Err(wrong("it is another JSON value".to_owned())),
    }
}

/// Writes an object so that the file is whole or absent.
pub(crate) fn write_object(path: &Path, object: Map<String, Value>) -> Result<(), HfError> {
    use std::io::Write;

    let text = format!("{:#}\n", Value::Object(object));
    let written = AtomicFile::create(path).and_then(|file| {
        file.file().write_all(text.as_bytes())?;
        file.commit()
    });
    written.map(drop).map_err(|error| HfError::io(path, error))
}
