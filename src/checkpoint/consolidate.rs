//! The weights of a checkpoint as files, without its run.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context;
use brigade_checkpoint::{Checkpoint, StoredParameter};
use brigade_models::{MappedParameter, Stored, WeightsError, WeightsFormat, WeightsWriter, existing_weights};
use brigade_sorted::SortedMap;

use super::RunDescription;
use super::models::FIRST_MODEL;
use super::progress::RunProgress;
use crate::folder::added_weights_file;

/// Writes the weights of a run's checkpoint into files, as the run itself does when it finishes: those of the first model into
/// `to`, in this format and where that is larger in several files with an index, and those of each additional model ([`Trainer::add_model`](crate::Trainer::add_model)) into a file beside it with the model's name
/// at the end of its own (`model-critic.safetensors` for `model.safetensors`). No more than one parameter is in memory, and no
/// file appears before all are whole. Existing files are replaced only if `replaces` says so. Gives the files, each with its number
/// of parameters.
///
/// ```no_run
/// use brigade::checkpoints::{Checkpoint, open_storage};
/// # fn main() -> anyhow::Result<()> {
/// let checkpoint = Checkpoint::open(open_storage("runs/a/checkpoints")?, 50)?;
/// let format = brigade::models::WeightsFormat::default();
/// for (file, parameters) in brigade::consolidate(&checkpoint, "step-50.safetensors".as_ref(), format, false)? {
///     println!("{}: {parameters} parameters", file.display());
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If the checkpoint does not describe its run, or is damaged, a file cannot be written, or one is there that is not to be replaced
/// ([`WeightsError::Io`] with [`ErrorKind::AlreadyExists`]).
pub fn consolidate(
    checkpoint: &Checkpoint,
    to: &Path,
    format: WeightsFormat,
    replaces: bool,
) -> anyhow::Result<Vec<(PathBuf, usize)>> {
    let manifest = checkpoint.manifest();
    let run: RunDescription = serde_json::from_value(manifest.state.settings.clone())
        .with_context(|| format!("the description of the run in the checkpoint of step {}", manifest.step))?;
    let mut files = Vec::new();
    for (model, parameters) in by_model(checkpoint) {
        let (path, names, most) = match model.as_str() {
            FIRST_MODEL => (to.to_owned(), Some(&run.file_names), format.max_shard_size),
            further => (
                added_weights_file(to, further),
                run.further.get(further),
                WeightsFormat::ONE_FILE.max_shard_size,
            ),
        };
        if let Some(path) = existing_weights(&path).filter(|_| !replaces) {
            return Err(WeightsError::Io { path, source: ErrorKind::AlreadyExists.into() }.into());
        }
        let format = WeightsFormat { max_shard_size: most, ..format };
        let is_held = |name: &String| names.is_none_or(|names| names.contains_key(name));
        let parameters: Vec<_> = parameters.into_iter().filter(|(name, _)| is_held(name)).collect();
        let described = parameters.iter().map(|(name, saved)| {
            let stored = names.and_then(|names| names.get(name)).cloned();
            let stored = stored.unwrap_or_else(|| Stored::tensor(name));
            MappedParameter { name: name.clone(), shape: saved.parameter.shape.clone(), stored }
        });
        files.push((path, format, described.collect::<Vec<_>>(), parameters));
    }
    let mut written = Vec::new();
    for (path, format, described, parameters) in &files {
        let read = |index: usize| Ok(parameters[index].1.read()?);
        written.push(WeightsWriter::filled(path, described, *format, read)?);
    }
    let mut finished = Vec::new();
    for (writer, (_, _, described, _)) in written.into_iter().zip(&files) {
        let new = writer.files().clone();
        if replaces {
            writer.finish()?;
            new.remove_earlier()?;
        } else {
            writer.finish_new()?;
        }
        finished.push((new.main(), described.len()));
    }
    Ok(finished)
}

/// The parameters of each model under their names in it, the first model first.
fn by_model(checkpoint: &Checkpoint) -> SortedMap<String, Vec<(String, StoredParameter<'_>)>> {
    let further = RunProgress::from_counters(0, 0, &checkpoint.manifest().state.counters).added;
    let mut models: SortedMap<String, Vec<_>> = SortedMap::new();
    for saved in checkpoint.parameters() {
        let name = &saved.parameter.name;
        let own = |model: &String| Some((model.clone(), name.strip_prefix(model)?.strip_prefix('/')?));
        let (model, own) = further.keys().find_map(own).unwrap_or_else(|| (FIRST_MODEL.into(), name));
        models.entry(model).or_default().push((own.to_owned(), saved));
    }
    models
}
