//! A configuration as a list of settings.

use serde::Serialize;

/// One setting of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The name, with its sections (`train.steps`).
    pub name: String,
    /// The value as TOML.
    pub value: String,
}

/// The settings of a configuration in its order; none if the text is not TOML.
pub fn settings_of(config: &str) -> Vec<Setting> {
    let mut settings = Vec::new();
    if let Ok(table) = config.parse::<toml::Table>() {
        add(&mut settings, "", &table);
    }
    settings
}

fn add(settings: &mut Vec<Setting>, section: &str, table: &toml::Table) {
    for (name, value) in table {
        let name = if section.is_empty() { name.clone() } else { format!("{section}.{name}") };
        match value {
            toml::Value::Table(table) => add(settings, &name, table),
            value => settings.push(Setting { name, value: value.to_string() }),
        }
    }
}
