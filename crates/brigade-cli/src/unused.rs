//! Settings that are given, but have no effect.

use anyhow::Context;
use brigade::data::LongExamples;

use crate::config::Config;
use crate::data::tasks::TaskName;

/// Settings in `[model]` that count for models of all kinds.
const OF_ALL_MODELS: [&str; 5] = ["path", "pretrained", "resize_embeddings", "config", "sequence_length"];

impl Config {
    /// A note on each kind of settings that have other values than by default, and no effect on this model and data. `examples`: how many chats and completions the data have, or
    /// texts with labels; `are_windows`: whether rows are windows of all documents joined.
    pub fn notes_on_unused(&self, examples: u64, are_windows: bool) -> anyhow::Result<Vec<String>> {
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
                notes.push(without_effect(&given, &format!("{by} says what the model is")));
            }
        }
        let probability = self.task.mask_probability;
        if self.task.name != TaskName::MaskedLm && probability != defaults.task.mask_probability {
            notes.push(format!(
                "task.mask_probability = {probability} has no effect: only task.name (--task) = \"masked-lm\" masks tokens"
            ));
        }
        let has_labels = self.task.records(0, self.data.long, None).is_some();
        let learn = (self.data.learn != defaults.data.learn).then(|| "data.learn".to_owned());
        let template = self.data.template().map(|_| "data.chat_template".to_owned());
        let of_chats: Vec<_> = learn.into_iter().chain(template).collect();
        if !of_chats.is_empty() && (has_labels || examples == 0) {
            notes.push(without_effect(&of_chats, "the data have no chats and no completions"));
        }
        if are_windows {
            let (data, usual) = (&self.data, &defaults.data);
            let padding = (data.pad_to_multiple != usual.pad_to_multiple)
                .then(|| format!("data.pad_to_multiple = {}", data.pad_to_multiple));
            // Windows split what is long anyway.
            let long = (data.long == LongExamples::Refuse).then(|| "data.long = \"refuse\"".to_owned());
            let given: Vec<_> = long.into_iter().chain(padding).collect();
            if !given.is_empty() {
                notes.push(without_effect(
                    &given,
                    "rows are windows of all documents joined; data.layout = \"bfd\" or \"documents\" keeps documents whole",
                ));
            }
        }
        Ok(notes)
    }
}

fn without_effect(settings: &[String], why: &str) -> String {
    let have = if settings.len() == 1 { "has" } else { "have" };
    format!("{} {have} no effect: {why}", settings.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_without_effect_are_noted_once() {
        let notes = |sets: &[&str], examples| {
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            Config::read(&[], &sets).unwrap().notes_on_unused(examples, examples == 0).unwrap()
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
                "model.layers = 2, model.width = 64 have no effect: model.path (--model) a says what the model is",
                "task.mask_probability = 0.3 has no effect: only task.name (--task) = \"masked-lm\" masks tokens",
                "data.learn has no effect: the data have no chats and no completions",
            ]
        );
        let layout = ["data.long=refuse", "data.pad_to_multiple=8"];
        assert_eq!(notes(&layout, 5), [""; 0]);
        assert_eq!(notes(&["data.long=split"], 0), [""; 0]);
        let said = notes(&layout, 0);
        assert!(
            said[0].starts_with("data.long = \"refuse\", data.pad_to_multiple = 8 have no effect: rows are"),
            "{said:?}"
        );
        let labelled =
            ["model.path=a", "task.name=regression", "data.learn=all", "data.chat_template=a.jinja"];
        assert_eq!(
            notes(&labelled, 5),
            ["data.learn, data.chat_template have no effect: the data have no chats and no completions"]
        );
        let described = notes(&["model.config={model_type='llama'}", "model.heads=2"], 0);
        assert_eq!(described, ["model.heads = 2 has no effect: model.config says what the model is"]);
    }
}
