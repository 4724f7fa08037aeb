//! Whether two runs have anything to compare.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use super::Run;
use crate::error::{Error, Result};

/// What decides the model that a run trains.
const MODEL: &str = "model.";

/// Settings of the model that do not change what its losses mean.
const FREE: [&str; 5] =
    [PATH, "model.dropout", "model.pretrained", "model.resize_embeddings", "model.initializer_range"];

/// The length of rows, with which a new model alone has as many positions.
const LENGTH: &str = "model.sequence_length";

/// The folder of a model that was not new.
const PATH: &str = "model.path";

/// The file with the sizes of a model of Hugging Face's form: in the folder of the model, and in that of a run in the end.
const MODEL_FILE: &str = "config.json";

/// Fields there that differ where models do.
const MODEL_FIELDS: [&str; 11] = [
    "model_type",
    "hidden_size",
    "n_embd",
    "num_hidden_layers",
    "n_layer",
    "num_attention_heads",
    "n_head",
    "num_key_value_heads",
    "intermediate_size",
    "head_dim",
    "vocab_size",
];

impl Run {
    /// The sizes of a model that came from a folder; none where no file says them, as of a run that has not ended on another machine.
    fn model_fields(&self) -> Option<BTreeMap<String, Value>> {
        let folders = [Some(self.dir.clone()), self.model_folder()];
        let text = folders.into_iter().flatten().find_map(|dir| std::fs::read(dir.join(MODEL_FILE)).ok())?;
        serde_json::from_slice(&text).ok()
    }

    /// How many blocks the model has: its layers, the embedding and the head. None where nothing says it.
    pub(crate) fn blocks(&self) -> Option<usize> {
        let layers = match self.model_folder() {
            None => self.setting("model.layers")?.parse().ok()?,
            Some(_) => {
                let fields = self.model_fields()?;
                let layers = ["num_hidden_layers", "n_layer"].iter().find_map(|name| fields.get(*name))?;
                usize::try_from(layers.as_u64()?).ok()?
            }
        };
        layers.checked_add(2)
    }

    /// The folder of a model that was not new.
    fn model_folder(&self) -> Option<PathBuf> {
        let given: Option<String> = self.setting(PATH).and_then(|path| serde_json::from_str(path).ok());
        given.filter(|path| !path.is_empty()).map(PathBuf::from)
    }

    /// The first size of the models that both files say differently, as a setting.
    fn differing_field(&self, other: &Self) -> Option<Difference> {
        let (own, others) = (self.model_fields()?, other.model_fields()?);
        let differ =
            |name: &&&str| matches!((own.get(**name), others.get(**name)), (Some(a), Some(b)) if a != b);
        let name = MODEL_FIELDS.iter().find(differ)?;
        let value = |fields: &BTreeMap<String, Value>| fields.get(*name).map(Value::to_string);
        Some(Difference { own: value(&own), other: value(&others), name: (*name).to_owned() })
    }

    /// Checks that another run trained the same model, on targets of the same kind.
    ///
    /// # Errors
    /// If not: it says what differs.
    pub fn check_compares(&self, other: &Self) -> Result<()> {
        let differ =
            |why: String| Err(Error::NotComparable { run: self.dir.clone(), other: other.dir.clone(), why });
        if self.unit() != other.unit() {
            return differ(format!("it counts {}, not {}", other.unit(), self.unit()));
        }
        if let Some(run) = [self, other].into_iter().find(|run| run.settings.is_empty()) {
            let folder = run.dir.display();
            return differ(format!("{folder} has no config.toml that says which model it trained"));
        }
        // Of a model from a folder the file there says what the settings do not.
        let has_folder = [self, other].into_iter().any(|run| run.model_folder().is_some());
        let has_files = self.model_fields().is_some() && other.model_fields().is_some();
        let counts =
            |found: &Difference| found.is_of_model() && !(has_folder && (has_files || found.name == LENGTH));
        let mut model: Vec<Difference> = self.differences(other).into_iter().filter(counts).collect();
        if model.is_empty() {
            model.extend(self.differing_field(other));
        }
        if model.is_empty() {
            return Ok(());
        }
        // Two folders say more than the first size that differs.
        let paths = self.differences(other).into_iter().find(|found| found.name == PATH);
        model.splice(0..0, paths);
        let Some(first) = model.first() else { return Ok(()) };
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        let more = match model.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        differ(format!(
            "it trained a different model, with {} = {}, not {}{more}",
            first.name,
            value(&first.other),
            value(&first.own)
        ))
    }

    /// What differs: the number of ranks and the mesh, and settings in the order of the configuration.
    pub fn differences(&self, other: &Self) -> Vec<Difference> {
        let names = self.settings.iter().map(|setting| &setting.name);
        let further = other.settings.iter().map(|setting| &setting.name);
        let further = further.filter(|name| self.setting(name).is_none());
        let difference = |name: &String| {
            let value = |run: &Self| run.setting(name).map(str::to_owned);
            Difference { name: name.clone(), own: value(self), other: value(other) }
        };
        let of_runs = |name: &str, value: fn(&Self) -> Option<String>| Difference {
            name: name.to_owned(),
            own: value(self),
            other: value(other),
        };
        let started = [
            of_runs("ranks", |run| run.ranks().map(|ranks| ranks.to_string())),
            of_runs("mesh", |run| Some(run.mesh_text()).filter(|text| !text.is_empty())),
        ];
        let all = started.into_iter().chain(names.chain(further).map(difference));
        all.filter(|found| found.own != found.other).collect()
    }
}

/// A setting that two runs have differently.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Difference {
    /// The setting's name.
    pub name: String,
    /// Its value in the run.
    pub own: Option<String>,
    /// Its value in the other one.
    pub other: Option<String>,
}

impl Difference {
    fn is_of_model(&self) -> bool {
        self.name.starts_with(MODEL) && !FREE.contains(&self.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::run::settings_of;

    fn run(name: &str, config: &str) -> Run {
        let mut run = Run::with_records(Path::new(name), Vec::new(), 0);
        run.settings = settings_of(config);
        run
    }

    #[test]
    fn runs_of_one_model_compare() {
        let config = "train.steps = 3\n[model]\nwidth = 8\npath = \"\"\nlayers = 2\n";
        let first = run("a", config);
        let other = run("b", &config.replace("steps = 3", "seed = 4").replace("path = \"\"", "path = \"x\""));
        first.check_compares(&other).unwrap();
        let found = first.differences(&other);
        let names: Vec<&str> = found.iter().map(|difference| difference.name.as_str()).collect();
        assert_eq!(names, ["train.steps", "model.path", "train.seed"]);
        assert_eq!((found[2].own.as_deref(), found[2].other.as_deref()), (None, Some("4")));
        let wider =
            run("b", &config.replace("width = 8\n", "width = 16\n").replace("layers = 2", "layers = 3"));
        let message = first.check_compares(&wider).unwrap_err().to_string();
        assert_eq!(
            message,
            "b cannot be compared with a: it trained a different model, with model.width = 16, not 8 (and 1 more)"
        );
    }

    #[test]
    fn how_a_model_begins_and_how_long_rows_of_one_from_a_folder_are_make_no_other_model() {
        let config = "[model]\npath = \"\"\npretrained = true\nresize_embeddings = false\nsequence_length = 64\ninitializer_range = 0.02\n";
        let begins = config.replace("pretrained = true", "pretrained = false");
        let begins =
            begins.replace("resize_embeddings = false", "resize_embeddings = true").replace("0.02", "0.01");
        run("a", config).check_compares(&run("b", &begins)).unwrap();
        let longer = config.replace("= 64", "= 128");
        let message = run("a", config).check_compares(&run("b", &longer)).unwrap_err().to_string();
        assert!(message.contains("model.sequence_length = 128, not 64"), "{message}");
        let [short, long] = [config, &longer].map(|config| config.replace("path = \"\"", "path = \"x\""));
        run("a", &short).check_compares(&run("b", &long)).unwrap();
    }

    #[test]
    fn runs_of_models_from_folders_compare_by_their_sizes() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str, fields: &str| {
            let dir = folder.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(dir.join(MODEL_FILE), fields).unwrap();
            let mut run = Run::with_records(&dir, Vec::new(), 0);
            run.settings = settings_of(&format!("[model]\nwidth = 128\npath = \"{name}\"\n"));
            run
        };
        let small = of("small", r#"{"model_type": "llama", "hidden_size": 16, "torch_dtype": "bfloat16"}"#);
        let again = of("again", r#"{"model_type": "llama", "hidden_size": 16, "torch_dtype": "float32"}"#);
        let large = of("large", r#"{"model_type": "llama", "hidden_size": 32}"#);
        small.check_compares(&again).unwrap();
        // Settings for a new model say nothing of it.
        let mut other = again.clone();
        other.settings = settings_of("[model]\nwidth = 64\npath = \"again\"\n");
        small.check_compares(&other).unwrap();
        // Adapters have no such file of their own.
        let adapters = of("adapters", "");
        std::fs::remove_file(adapters.dir.join(MODEL_FILE)).unwrap();
        small.check_compares(&adapters).unwrap();
        let mut adapters = adapters;
        adapters.settings =
            settings_of(&format!("[model]\nwidth = 128\npath = \"{}\"\n", large.dir.display()));
        assert!(small.check_compares(&adapters).is_err());
        let message = small.check_compares(&large).unwrap_err().to_string();
        let said = r#"a different model, with model.path = "large", not "small" (and 1 more)"#;
        assert!(message.ends_with(said), "{message}");
    }
}
