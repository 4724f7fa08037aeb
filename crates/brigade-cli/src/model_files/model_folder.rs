//! The folder of a model: one that is given, or that of a model on the hub.

use std::path::{Path, PathBuf};

use anyhow::Context;
use brigade::report::{ByteProgress, ConsoleMode};
use brigade_hf::HfError;
use brigade_hf::hub::{Hub, ModelFolder, ModelName, Progress};

/// What finds the folder of a model that was given.
pub type FindFolder = fn(&Path) -> anyhow::Result<PathBuf>;

/// The folder, as an absolute path. Where there is none, `organization/name` is a model on the hub, which is downloaded if it is not in the cache.
pub fn model_folder(given: &Path) -> anyhow::Result<PathBuf> {
    folder(given, Hub::folder)
}

/// The same for a dry run: of a model on the hub, the weights need not be in the folder.
pub fn folder_without_weights(given: &Path) -> anyhow::Result<PathBuf> {
    folder(given, Hub::folder_without_weights)
}

/// The same for who reads the configuration alone: of a model on the hub, nothing else need be in the folder.
pub fn configuration_folder(given: &Path) -> anyhow::Result<PathBuf> {
    let folder = folder(given, |hub, name, progress| hub.configuration(name, progress).map(Into::into))?;
    anyhow::ensure!(
        folder.join("config.json").is_file(),
        "{} has adapters alone, without the config.json of their model: name that model, with the rank of the adapters (--lora-rank)",
        given.display()
    );
    Ok(folder)
}

/// The name of a model on the hub, where this is no folder.
pub fn hub_name(given: &Path) -> Option<ModelName> {
    let name = given.to_str().filter(|text| text.contains('/') && !given.exists());
    name?.parse().ok()
}

/// How names begin that the hub had before it had organizations, with the organizations that have them now.
const OLD_NAMES: [(&str, &str); 3] =
    [("gpt2", "openai-community/"), ("bert-", "google-bert/"), ("roberta-", "FacebookAI/")];

/// A model that a file names by a word, as the hub's models were before it had organizations: its folder in the cache, or else the name that the hub has for it now.
pub fn of_old_name(name: &str) -> Option<String> {
    let word = name.split('@').next().unwrap_or_default();
    if word.is_empty() || word.contains('/') || Path::new(word).exists() {
        return None;
    }
    let cached = || Hub::from_env().ok()?.cached(&name.parse().ok()?);
    let old = || OLD_NAMES.iter().find(|(begin, _)| word.starts_with(begin));
    cached()
        .map(|folder| folder.to_string_lossy().into_owned())
        .or_else(|| old().map(|(_, organization)| format!("{organization}{name}")))
}

/// What the name of a model on the hub looks like, for a path that is no folder.
pub fn hub_hint(missing: &Path) -> String {
    let name = missing.file_name().unwrap_or_default().to_string_lossy();
    let organization =
        OLD_NAMES.iter().find(|(begin, _)| name.starts_with(begin)).map(|(_, organization)| organization);
    let example = match organization {
        Some(organization) => format!("{organization}{name}"),
        None => "openai-community/gpt2".to_owned(),
    };
    format!(", and a model on the hub is given as organization/name, such as {example}")
}

/// What takes a model, or a part of it, from the cache or the hub.
type Find = fn(&Hub, &ModelName, &mut dyn FnMut(Progress<'_>)) -> Result<ModelFolder, HfError>;

fn folder(given: &Path, find: Find) -> anyhow::Result<PathBuf> {
    let Some(name) = hub_name(given) else {
        return std::path::absolute(given).with_context(|| format!("the path {given:?}"));
    };
    let mut file: Option<(String, u64, ByteProgress)> = None;
    let mut show = |now: Progress<'_>| match &mut file {
        Some((name, bytes, bar)) if name == now.file => {
            bar.advance(now.bytes.saturating_sub(*bytes));
            *bytes = now.bytes;
        }
        shown => {
            let bar = ByteProgress::start(ConsoleMode::Auto, now.of, format!("downloading {}", now.file));
            bar.advance(now.bytes);
            if let Some((_, _, bar)) = shown.replace((now.file.to_owned(), now.bytes, bar)) {
                bar.finish();
            }
        }
    };
    let found = find(&Hub::from_env()?, &name, &mut show);
    if let Some((_, _, bar)) = file {
        bar.finish();
    }
    let found = found.with_context(|| format!("--model {name}: it is neither a folder nor a known model"))?;
    if let Some(note) = found.note {
        brigade::print_stderr(format_args!("note: {note}"));
    }
    Ok(found.path)
}
