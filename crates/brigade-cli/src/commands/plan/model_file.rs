//! What stands in the folder or file that `--model` gives.

use std::path::Path;

use brigade::plan::model::{ModelShape, is_only_for_plans};

use super::configured::classifier;
use crate::config::Config;
use crate::model_files::model_folder::{configuration_folder, hub_name};

/// The configuration in a TOML; none in a folder or a config.json. Of what training refuses to read, the model is planned alone.
pub fn config_in(path: &Path) -> Option<Config> {
    let is_toml = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("toml"));
    let read = is_toml.then(|| Config::read(&[path], &[]))?;
    if let Err(error) = &read
        && !is_only_for_plans(path)
    {
        brigade::print_stderr(format_args!(
            "note: training would refuse this file, of which only the model is planned: {error:#}"
        ));
    }
    read.ok()
}

/// The model of a folder or file. A configuration may name one on the hub.
pub fn shape(path: &Path, config: Option<&Config>) -> anyhow::Result<ModelShape> {
    if let Some(classifier) = config.and_then(classifier) {
        return Ok(classifier);
    }
    let named = config.map(|config| &config.model).filter(|model| !model.is_new()).map(|model| &model.path);
    Ok(match named {
        Some(named) if !named.exists() && hub_name(named).is_some() => {
            ModelShape::read(&configuration_folder(named)?)?
        }
        _ => ModelShape::read(path)?,
    })
}

/// Tokens of a sequence as training has them, if the file itself says how many.
pub fn length_in(file: &toml::Table, config: Option<&Config>) -> Option<usize> {
    let given = number_in(file, "model", "sequence_length")?;
    Some(config.map_or(given, |config| config.model.row_length())).filter(|length| *length > 0)
}

/// The number that a TOML file itself gives a setting.
pub fn number_in(file: &toml::Table, section: &str, name: &str) -> Option<usize> {
    usize::try_from(file.get(section)?.get(name)?.as_integer()?).ok()
}

/// What stands in a TOML file; nothing for a folder or a config.json.
pub fn table_in(path: &Path) -> toml::Table {
    std::fs::read_to_string(path).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}
