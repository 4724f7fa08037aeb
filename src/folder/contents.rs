//! The files in a run's folder.
//!
//! A run first creates its folder if needed, locks it, and may be refused; nothing in it changes before that. Earlier results
//! are replaced only when all ranks are ready to train.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use brigade_files::write_atomic;
use rustix::fs::{Access, access};

use crate::settings::{CHECKPOINT_FOLDER, CONFIG_FILE, config_to_toml, fixed_differences};

/// The weights at the end of a run.
pub const WEIGHTS_FILE: &str = "model.safetensors";

/// What says where the weights are if they are in several files.
pub const WEIGHTS_INDEX_FILE: &str = "model.safetensors.index.json";

/// The adapters at the end of a run that trains no other weights, as `peft` names their file.
pub const ADAPTERS_FILE: &str = "adapter_model.safetensors";

/// What else `peft` reads about adapters: their rank, layers and model.
pub const ADAPTERS_CONFIG_FILE: &str = "adapter_config.json";

/// The labels of a classifier whose adapters are trained, as `config.json` has them: that of the model that the adapters belong to does not know them.
pub const ADAPTERS_LABELS_FILE: &str = "labels.json";

/// What lies beside a `tokenizer.json`: what it means, and the same tokenizer in other programs' formats (llama.cpp reads `tokenizer.model`).
pub const TOKENIZER_COMPANIONS: [&str; 8] = [
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
];

/// Where the further templates of chats are that such a tokenizer may have beside `chat_template.jinja`, each `NAME.jinja`.
pub(crate) const TEMPLATES_FOLDER: &str = "additional_chat_templates";

/// What else says which model a folder has: beside another model's weights, other programs would take it for theirs.
const ABOUT_THE_MODEL: [&str; 3] = ["config.json", "generation_config.json", "tokenizer.json"];

/// What a finished run has one of.
pub(crate) const RESULTS: [&str; 3] = [WEIGHTS_FILE, WEIGHTS_INDEX_FILE, ADAPTERS_FILE];

/// The weights file of an additional model, beside that of the first one: `model-critic.safetensors` beside
/// `model.safetensors`.
pub(crate) fn added_weights_file(first: &Path, model: &str) -> PathBuf {
    let mut name = first.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{model}"));
    if let Some(extension) = first.extension() {
        name.push(".");
        name.push(extension);
    }
    first.with_file_name(name)
}

/// Where the folders of runs are that are given none.
const RUNS_FOLDER: &str = "runs";

/// Creates the folder of a run if needed. An empty `dir` stands for a new folder `runs/<name>-<number>`.
pub(crate) fn create_folder(dir: &Path, name: &str) -> anyhow::Result<PathBuf> {
    if dir.as_os_str().is_empty() {
        return next_folder(name);
    }
    match std::fs::create_dir_all(dir) {
        Err(_) if dir.is_file() => bail!("--out {} is a file; give a folder", dir.display()),
        made => made.with_context(|| format!("--out {}", dir.display())).map(|()| dir.to_owned()),
    }
}

/// Refuses a folder that could not be made, or not written to.
pub(crate) fn refuse_unwritable(dir: &Path) -> anyhow::Result<()> {
    if dir.is_file() {
        bail!("--out {} is a file; give a folder", dir.display());
    }
    let dir = if dir.as_os_str().is_empty() { Path::new(RUNS_FOLDER) } else { dir };
    let there = dir.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
    access(there, Access::WRITE_OK | Access::EXEC_OK)
        .with_context(|| format!("--out {}: cannot write to {}", dir.display(), there.display()))
}

/// Refuses a folder with a finished run or a run of another configuration, where `--resume auto` found no checkpoint.
pub(crate) fn refuse_other(dir: &Path, config: &str) -> anyhow::Result<()> {
    let before = std::fs::read_to_string(dir.join(CONFIG_FILE)).ok();
    let before = before.and_then(|text| text.parse::<toml::Table>().ok());
    let before = before.and_then(|table| serde_json::to_value(table).ok());
    let differences =
        before.map(|before| fixed_differences(&before, config)).transpose()?.unwrap_or_default();
    if !differences.is_empty() || RESULTS.into_iter().any(|file| dir.join(file).exists()) {
        let what = match differences.is_empty() {
            false => format!("a run of another configuration ({})", differences.join("; ")),
            true => "a finished run".to_owned(),
        };
        bail!(
            "--out {} holds {what} and no checkpoint to resume from; give another folder, or --overwrite",
            dir.display()
        );
    }
    Ok(())
}

/// Writes the run's configuration into its folder, without the name of the folder itself, so that the file can be used for a
/// run elsewhere.
pub(crate) fn write_config(dir: &Path, config: &str) -> anyhow::Result<()> {
    let file = dir.join(CONFIG_FILE);
    write_atomic(&file, portable(config).as_bytes())
        .with_context(|| format!("cannot write {}", file.display()))
}

/// Removes the models of an earlier run: their weights, and what says how they are to be read; but no file of these names.
pub(crate) fn remove_models(dir: &Path, but: &[&str]) -> anyhow::Result<()> {
    // First the index: without it, no file of several is taken for weights.
    match std::fs::remove_file(dir.join(WEIGHTS_INDEX_FILE)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {WEIGHTS_INDEX_FILE}"));
        }
        _ => {}
    }
    let mut names = names_in(dir)?;
    if dir.join(TEMPLATES_FOLDER).is_dir() {
        let templates = names_in(&dir.join(TEMPLATES_FOLDER))?.into_iter();
        names.extend(templates.map(|name| format!("{TEMPLATES_FOLDER}/{name}")));
    }
    for name in names.iter().filter(|name| is_of_a_model(name) && !but.contains(&name.as_str())) {
        let file = dir.join(name);
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", file.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The names in a folder that are text.
fn names_in(folder: &Path) -> anyhow::Result<Vec<String>> {
    let wrong = || format!("cannot read {}", folder.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(wrong)? {
        names.extend(entry.with_context(wrong)?.file_name().into_string().ok());
    }
    Ok(names)
}

/// Whether a file in a run's folder has the weights of one of its models, or says how they are to be read.
fn is_of_a_model(name: &str) -> bool {
    let about = [ADAPTERS_CONFIG_FILE, ADAPTERS_LABELS_FILE].into_iter().chain(ABOUT_THE_MODEL);
    let mut all = about.chain(TOKENIZER_COMPANIONS);
    let template = || name.strip_prefix(TEMPLATES_FOLDER)?.strip_suffix(".jinja");
    is_weights(name) || all.any(|file| file == name) || template().is_some()
}

/// Whether a file of this name has weights, or says in which files they are.
pub(crate) fn is_weights(name: &str) -> bool {
    let added = || name.strip_prefix("model-")?.strip_suffix(".safetensors");
    RESULTS.contains(&name) || added().is_some()
}

/// Whether a run writes a file of this name into its folder or one of those in it, and so one that replaces it removes it.
pub(crate) fn is_of_a_run(name: &str) -> bool {
    let others = [brigade_report::METRICS_FILE, brigade_report::HISTORY_FILE, CONFIG_FILE];
    let is_in_folder = || name.contains('/');
    is_of_a_model(name)
        || others.contains(&name)
        || name.starts_with("events.out.tfevents.")
        || is_in_folder()
}

/// The configuration without the folder of its results.
fn portable(config: &str) -> String {
    let Ok(mut table) = config.parse::<toml::Table>() else { return config.to_owned() };
    if let Some(output) = table.get_mut("output").and_then(toml::Value::as_table_mut) {
        output.remove("dir");
    }
    config_to_toml(&table).unwrap_or_else(|_| config.to_owned())
}

/// Refuses a folder that holds another run's results or configuration.
pub(crate) fn refuse_earlier(dir: &Path, config: &str) -> anyhow::Result<()> {
    let results = RESULTS
        .into_iter()
        .chain([brigade_report::METRICS_FILE, CHECKPOINT_FOLDER])
        .find(|file| dir.join(file).exists() && (*file != CHECKPOINT_FOLDER || holds_checkpoints(dir)));
    let other = std::fs::read_to_string(dir.join(CONFIG_FILE)).is_ok_and(|text| text != portable(config));
    let what = match results {
        Some(file) => format!("results of an earlier run ({file})"),
        None if other => format!("a {CONFIG_FILE} that is not this run's"),
        None => return Ok(()),
    };
    bail!(
        "--out {} holds {what}; give another folder, --resume auto to continue it, or --overwrite to replace it",
        dir.display()
    )
}

/// Refuses a URL below which another run's results are, as these names of files say.
pub(crate) fn refuse_earlier_names(dir: &Path, names: &[String]) -> anyhow::Result<()> {
    let results = RESULTS.into_iter().chain([brigade_report::METRICS_FILE]);
    match first_of(results, names) {
        Some(file) => bail!(
            "--out {} holds results of an earlier run ({file}); give another folder, --resume auto to continue it, or --overwrite to replace it",
            dir.display()
        ),
        None => Ok(()),
    }
}

/// Refuses a URL below which a finished run is, where `--resume auto` found no checkpoint.
pub(crate) fn refuse_results_without_checkpoint(dir: &Path, names: &[String]) -> anyhow::Result<()> {
    match first_of(RESULTS, names) {
        Some(file) => bail!(
            "--out {} holds a finished run ({file}) and no checkpoint to resume from; give another folder, or --overwrite",
            dir.display()
        ),
        None => Ok(()),
    }
}

fn first_of<'a>(files: impl IntoIterator<Item = &'a str>, names: &[String]) -> Option<&'a str> {
    files.into_iter().find(|file| names.iter().any(|name| name == file))
}

/// The last step that the metrics in a run's folder are of.
pub(crate) fn last_step(dir: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(dir.join(brigade_report::METRICS_FILE)).ok()?;
    text.lines().rev().find_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()?["step"].as_u64())
}

/// Whether the folder of checkpoints holds more than the leftovers of a process that died while saving.
fn holds_checkpoints(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir.join(CHECKPOINT_FOLDER)) else { return true };
    entries.flatten().any(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
}

/// Creates `runs/<name>-1`, or the first number that is free. `create_dir` fails if the folder is there, so two runs never
/// share one.
fn next_folder(name: &str) -> anyhow::Result<PathBuf> {
    let runs = Path::new(RUNS_FOLDER);
    std::fs::create_dir_all(runs).with_context(|| format!("cannot create the folder {}", runs.display()))?;
    for number in 1..100_000 {
        let dir = runs.join(format!("{name}-{number}"));
        match std::fs::create_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot create the folder {}", dir.display()));
            }
        }
    }
    bail!("runs/ holds 100000 folders of {name}; remove some or give --out")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_another_run_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("a");
        let text = |file: &str| std::fs::read_to_string(dir.join(file)).unwrap();
        assert_eq!(create_folder(&dir, "x").unwrap(), dir);
        write_config(&dir, "a = 1\n[output]\ndir = \"x\"\n").unwrap();
        assert_eq!(text(CONFIG_FILE), "a = 1\n\n[output]\n");
        let error = refuse_earlier(&dir, "a = 3").unwrap_err().to_string();
        assert!(error.contains("holds a config.toml that is not this run's"), "{error}");
        write_config(&dir, "a = 2").unwrap();
        refuse_earlier(&dir, "a = 2").unwrap();
        std::fs::write(dir.join(WEIGHTS_FILE), "weights").unwrap();
        for error in [refuse_earlier(&dir, "a = 2"), refuse_other(&dir, "a = 2")] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains("--overwrite"), "{error}");
        }
        assert_eq!(text(WEIGHTS_FILE), "weights");
        let critic = added_weights_file(&dir.join(WEIGHTS_FILE), "critic");
        assert_eq!(critic, dir.join("model-critic.safetensors"));
        std::fs::write(&critic, "weights").unwrap();
        std::fs::write(dir.join("other.safetensors"), "not of this run").unwrap();
        std::fs::write(dir.join(ADAPTERS_FILE), "adapters").unwrap();
        std::fs::write(dir.join(ADAPTERS_CONFIG_FILE), "{}").unwrap();
        remove_models(&dir, &[ADAPTERS_CONFIG_FILE]).unwrap();
        assert!(!critic.exists() && !dir.join(ADAPTERS_FILE).exists());
        assert!(dir.join(ADAPTERS_CONFIG_FILE).exists(), "it is the new run's");
        let (config, template) = (dir.join("config.json"), dir.join("chat_template.jinja"));
        let [kept, other] = ["tool_use", "rag"].map(|name| format!("{TEMPLATES_FOLDER}/{name}.jinja"));
        std::fs::create_dir(dir.join(TEMPLATES_FOLDER)).unwrap();
        for file in [&config, &template, &dir.join(&kept), &dir.join(&other)] {
            std::fs::write(file, "{}").unwrap();
        }
        remove_models(&dir, &["config.json", &kept]).unwrap();
        assert!(dir.join(&kept).exists() && !dir.join(&other).exists());
        assert!(!dir.join(ADAPTERS_CONFIG_FILE).exists());
        assert!(config.exists() && !template.exists(), "the other model's template");
        assert_eq!(text("other.safetensors"), "not of this run");
        for (name, own) in [("metrics.jsonl", true), ("config.json", true), ("README.md", false)] {
            assert_eq!(is_of_a_run(name), own, "{name}");
        }
        refuse_other(&dir, "a = 2").unwrap();
        write_config(&dir, "[model]\nwidth = 64\n[train]\nseed = 1").unwrap();
        let error = refuse_other(&dir, "[model]\nwidth = 32\n[train]\nseed = 2").unwrap_err().to_string();
        assert!(
            error.contains("another configuration (model.width was 64, now 32; train.seed was 1, now 2)"),
            "{error}"
        );
    }
}
