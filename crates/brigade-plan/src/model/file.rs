//! Models from files: a folder or a `config.json` of Hugging Face's, or the `[model]` of a configuration of ours.

use std::path::Path;

use brigade_hf::Config;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::experts::Experts;
use super::other_families::{self, OTHER_FAMILIES};
use super::{MAX_LAYERS, MOST, ModelError, ModelShape, unknown, wrong};

/// What a plan reads of a configuration of training.
#[derive(Debug, Deserialize)]
struct Described {
    model: Section,
    #[serde(default)]
    data: Data,
}

/// `[model]`. The fields of the settings, and those that only a plan knows.
#[derive(Debug, Deserialize)]
struct Section {
    #[serde(default)]
    path: String,
    #[serde(default)]
    config: Map<String, Value>,
    width: Option<usize>,
    layers: Option<usize>,
    heads: Option<usize>,
    kv_heads: Option<usize>,
    intermediate: Option<usize>,
    #[serde(default)]
    vocabulary: usize,
    #[serde(default)]
    gated: bool,
    experts: Option<usize>,
    experts_per_token: Option<usize>,
    tied_head: Option<bool>,
    #[serde(default)]
    sequence_length: usize,
}

/// `[data]`
#[derive(Debug, Default, Deserialize)]
struct Data {
    #[serde(default)]
    tokenizer: String,
}

/// The widest that a model may be.
const MAX_WIDTH: usize = 1 << 20;

/// The fields of `[model]`: those of training, and those that only a plan knows.
const FIELDS: [&str; 19] = [
    "path",
    "pretrained",
    "resize_embeddings",
    "config",
    "name",
    "vocabulary",
    "sequence_length",
    "width",
    "layers",
    "heads",
    "tied_head",
    "activation",
    "dropout",
    "initializer_range",
    "kv_heads",
    "intermediate",
    "gated",
    "experts",
    "experts_per_token",
];

/// Those that only a plan knows.
const PLAN_FIELDS: [&str; 5] = ["kv_heads", "intermediate", "gated", "experts", "experts_per_token"];

/// Whether a model can be planned from this file, but not trained: a `config.json` under another name or of one of the
/// [`OTHER_FAMILIES`] or with what training does not know, or a TOML with fields that only a plan knows.
pub fn is_only_for_plans(path: &Path) -> bool {
    let has_end = |end: &str| path.extension().is_some_and(|own| own.eq_ignore_ascii_case(end));
    if has_end("toml") {
        let table = std::fs::read_to_string(path).ok().and_then(|text| text.parse::<toml::Table>().ok());
        let has = |table: &toml::Table| {
            table
                .get("model")?
                .as_table()
                .map(|model| PLAN_FIELDS.iter().any(|field| model.contains_key(*field)))
        };
        return table.as_ref().and_then(has).unwrap_or(false);
    }
    if has_end("json") && path.file_name().is_some_and(|name| name != "config.json") {
        return true;
    }
    let file = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    let fields = std::fs::read(file).ok().and_then(|text| serde_json::from_slice::<Map<_, _>>(&text).ok());
    fields.is_some_and(|fields| other_family(&fields).is_some() || unknown::is_unknown(&fields))
}

/// The family of a `config.json` that can only be planned.
fn other_family(fields: &Map<String, Value>) -> Option<&str> {
    fields.get("model_type")?.as_str().filter(|family| OTHER_FAMILIES.contains(family))
}

/// A field of `[model]` that there is not, with the nearest that there is.
fn unknown_field(table: &toml::Table) -> Option<String> {
    let unknown = table.get("model")?.as_table()?.keys().find(|key| !FIELDS.contains(&key.as_str()))?;
    let near = |field: &&&str| strsim::damerau_levenshtein(field, unknown);
    let nearest = FIELDS.iter().min_by_key(near).filter(|field| near(field) <= 3);
    let hint = match nearest {
        Some(field) => format!("did you mean `model.{field}`?"),
        None => format!("`model` has {}", FIELDS.join(", ")),
    };
    Some(format!("there is no setting `model.{unknown}`; {hint}"))
}

impl ModelShape {
    /// Reads a folder with a `config.json`, such a file itself, or a TOML with a `[model]`.
    ///
    /// # Errors
    /// If there is no such file, or it describes no model that is known.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        let path = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
        let file = path.display().to_string();
        let problem = |problem: String| ModelError::File { file: file.clone(), problem };
        let text = std::fs::read_to_string(&path).map_err(|error| problem(error.to_string()))?;
        if path.extension().is_some_and(|end| end.eq_ignore_ascii_case("toml")) {
            return Self::from_toml(&path, &text);
        }
        let value: Value = serde_json::from_str(&text).map_err(|error| problem(error.to_string()))?;
        let object = value.as_object().ok_or_else(|| problem("it must be a JSON object".into()))?;
        if let Some(family) = other_family(object) {
            return other_families::shape(&file, family, object);
        }
        unknown::read(&file, object)
    }

    /// Of the section `[model.config]` of a configuration, which has the fields of a `config.json`. Where it has no `vocab_size`, that is the number of the tokenizer's
    /// tokens, if that is known.
    ///
    /// # Errors
    /// If the fields describe no model that is known, or the size of the vocabulary is not known.
    pub fn of_fields(
        name: &str,
        mut fields: Map<String, Value>,
        tokens: Option<usize>,
    ) -> Result<Self, ModelError> {
        if !fields.contains_key("vocab_size") {
            let allowed = "planning needs it, because the tokenizer does not say how many tokens it has";
            let tokens = tokens.ok_or_else(|| wrong(name, "model.config.vocab_size", "(absent)", allowed))?;
            fields.insert("vocab_size".into(), tokens.into());
        }
        let config = Config::from_fields("[model.config]", &fields)
            .map_err(|error| ModelError::File { file: name.to_owned(), problem: error.to_string() })?;
        Self::of_config(name, &config).check(name)
    }

    fn from_toml(path: &Path, text: &str) -> Result<Self, ModelError> {
        let file = path.display().to_string();
        let problem = |problem: String| ModelError::File { file: file.clone(), problem };
        let syntax = |error: toml::de::Error| problem(error.to_string().trim().to_owned());
        let table: toml::Table = text.parse().map_err(syntax)?;
        if let Some(unknown) = unknown_field(&table) {
            return Err(problem(unknown));
        }
        let described: Described = toml::from_str(text).map_err(syntax)?;
        let Section {
            path: folder,
            config,
            width,
            layers,
            heads,
            kv_heads,
            intermediate,
            vocabulary,
            gated,
            experts,
            experts_per_token,
            ..
        } = described.model;
        if !folder.is_empty() {
            return Self::read(Path::new(&folder));
        }
        if !config.is_empty() {
            return Self::of_fields(&file, config, tokens(&described.data.tokenizer));
        }
        let needed = |field: &str, value: Option<usize>| {
            value.ok_or_else(|| wrong(&file, &format!("model.{field}"), "(absent)", "planning needs it"))
        };
        let (hidden, layers, heads) =
            (needed("width", width)?, needed("layers", layers)?, needed("heads", heads)?);
        let vocabulary = match vocabulary {
            0 => tokens(&described.data.tokenizer)
                .ok_or_else(|| wrong(&file, "model.vocabulary", 0, "the number of the tokenizer's tokens"))?,
            given => given,
        };
        let tied = described.model.tied_head.unwrap_or(true);
        let length = described.model.sequence_length;
        // With these limits, no product of sizes overflows.
        let within = |field: &str, value: usize, least: usize, most: usize| {
            let allowed = format!("it must be a whole number from {least} to {most}");
            let is_within = (least..=most).contains(&value);
            is_within.then_some(()).ok_or_else(|| wrong(&file, &format!("model.{field}"), value, &allowed))
        };
        within("width", hidden, 1, MAX_WIDTH)?;
        within("layers", layers, 1, MAX_LAYERS)?;
        within("vocabulary", vocabulary, 1, MOST - 1)?;
        within("sequence_length", length, 0, MOST - 1)?;
        let (key_heads, inner) = (kv_heads.unwrap_or(heads), intermediate.unwrap_or(4 * hidden));
        within("intermediate", inner, 1, MOST - 1)?;
        let divides = |field: &str, value: usize, of: &str, total: usize| {
            let allowed = format!("it must divide model.{of} = {total}");
            let is_divisor = value > 0 && total.is_multiple_of(value);
            is_divisor.then_some(()).ok_or_else(|| wrong(&file, &format!("model.{field}"), value, &allowed))
        };
        divides("heads", heads, "width", hidden)?;
        divides("kv_heads", key_heads, "heads", heads)?;
        if !gated && kv_heads.is_none() && intermediate.is_none() && experts.is_none() {
            let shape = Self::gpt(&file, layers, hidden, heads, vocabulary, length);
            return if tied { shape } else { shape.untied() }.check(&file);
        }
        let mut shape = Self::llama(&file, layers, hidden, heads, key_heads, inner, vocabulary, tied);
        shape.gated = gated;
        shape.layer_parameters -= if gated { 0 } else { (hidden * inner) as u64 };
        let experts = Experts { count: experts.unwrap_or(1), per_token: experts_per_token.unwrap_or(1) };
        let mlp = if gated { 3 } else { 2 } * (hidden * inner) as u64;
        experts.widen(&mut shape, mlp).map_err(|allowed| {
            let given = format!("{} of {}", experts.per_token, experts.count);
            wrong(&file, "model.experts_per_token of model.experts", given, &allowed)
        })?;
        shape.check(&file)
    }
}

/// The tokens that a tokenizer has, as far as its name says: 256 bytes and the end of a text, or those of `bpe:N`.
fn tokens(tokenizer: &str) -> Option<usize> {
    match tokenizer {
        "bytes" => Some(257),
        _ => tokenizer.strip_prefix("bpe:")?.parse().ok(),
    }
}
