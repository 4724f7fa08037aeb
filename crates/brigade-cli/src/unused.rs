//! Settings that are given, but have no effect.

use anyhow::Context;

use crate::config::Config;
use crate::data::tasks::TaskName;

/// Settings in `[model]` that count for models of all kinds.
const OF_ALL_MODELS: [&str; 5] = ["path", "pretrained", "resize_embeddings", "config", "sequence_length"];

impl Config {
    /// A note on each kind of settings that have other values than by default, and no effect on this model and data. `examples`: how many chats and completions the data have, or
    /// texts with labels.
    pub fn notes_on_unused(&self, examples: u64) -> anyhow::Result<Vec<String>> {
        let defaults = Self::read(&[], &[])?;
        let mut notes = Vec::new();
        if !self.model.is_new() || !self.model.config.is_empty() {
            let table = |config: &Self| toml::Table::try_from(&config.model).context("[model]");
            let (own, usual) = (table(self)?, table(&defaults)?);
            let mut given: Vec<_> = own
                .iter()
                .filter(|(key, value)| {
                    !OF_ALL_MODELS.contains(&key.as_str()) && usual.get(*key) != Some(*value)
                })
                .map(|(key, value)| format!("model.{key} = {value}"))
                .collect();
            // Features of other crates decide in which order a table has its keys.
            given.sort();
            if !given.is_empty() {
                let by = if self.model.is_new() { "model.config".to_owned() } else { self.model.given() };
                notes.push(format!("no effect of {}: {by} says what the model is", given.join(", ")));
            }
        }
        let probability = self.task.mask_probability;
        if self.task.name != TaskName::MaskedLm && probability != defaults.task.mask_probability {
            notes.push(format!(
                "no effect of task.mask_probability = {probability}: tokens are masked for task.name (--task) = \"masked-lm\" alone"
            ));
        }
        let has_labels = self.task.records(0, self.data.long).is_some();
        if self.data.learn != defaults.data.learn && (has_labels || examples == 0) {
            notes.push("no effect of data.learn: the data have no chats and no completions".to_owned());
        }
        Ok(notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_without_effect_are_noted_once() {
        let notes = |sets: &[&str], examples| {
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            Config::read(&[], &sets).unwrap().notes_on_unused(examples).unwrap()
        };
        assert_eq!(
            notes(&["model.layers=2", "task.name=masked-lm", "task.mask_probability=0.3"], 0),
            [""; 0]
        );
        assert_eq!(notes(&["model.path=a", "model.sequence_length=64", "data.learn=all"], 5), [""; 0]);
        assert_eq!(
            notes(
                &[
                    "model.path=a",
                    "model.layers=2",
                    "model.width=64",
                    "task.mask_probability=0.3",
                    "data.learn=all"
                ],
                0
            ),
            [
                "no effect of model.layers = 2, model.width = 64: model.path (--model) a says what the model is",
                "no effect of task.mask_probability = 0.3: tokens are masked for task.name (--task) = \"masked-lm\" alone",
                "no effect of data.learn: the data have no chats and no completions",
            ]
        );
        let labelled = ["model.path=a", "task.name=regression", "data.learn=all"];
        assert_eq!(
            notes(&labelled, 5),
            ["no effect of data.learn: the data have no chats and no completions"]
        );
        let described = notes(&["model.config={model_type='llama'}", "model.heads=2"], 0);
        assert_eq!(described, ["no effect of model.heads = 2: model.config says what the model is"]);
    }
}
