//! The labels that data have.

use std::collections::BTreeSet;

use anyhow::bail;
use brigade::data::{Columns, DataSource, NoProgress, PrepareOptions, cached_list};
use serde_json::Value;

use super::records::listed;
use crate::data::{DataSection, sources};

/// More labels than this are taken for something else.
const MOST: usize = 10_000;

/// The labels of all records to train on. The cache keeps them, so that a run reads the records once to find them, not once in each rank.
pub fn labels_of(data: &DataSection, columns: &Columns) -> anyhow::Result<Vec<String>> {
    let sources = sources(data, columns)?;
    let work = PrepareOptions::of(sources.clone(), data.cache_folder()?);
    cached_list(&work, "labels", &NoProgress, |works| labels_in(&sources, works))
}

/// The labels in the column `label` of all records to train on, where a text may have a list of them: names sorted; where they are whole numbers, the names that the data
/// say of them, or else `LABEL_0` and so on.
fn labels_in(sources: &[DataSource], works: &dyn Fn()) -> anyhow::Result<Vec<String>> {
    let (mut names, mut highest) = (BTreeSet::new(), None);
    for source in sources {
        for record in source.corpus.records(&source.columns)? {
            let record = record?;
            works();
            let label = record.fields.get("label").unwrap_or(&Value::Null);
            let each = if let Value::Array(several) = label {
                several.as_slice()
            } else {
                std::slice::from_ref(label)
            };
            for label in each {
                match (label, label.as_u64()) {
                    (Value::String(name), _) => _ = names.insert(name.clone()),
                    (_, Some(number)) => highest = highest.max(Some(number as usize)),
                    _ => return Err(record.place.error(not_a_label(label)).into()),
                }
            }
            if names.len().max(highest.unwrap_or(0)) > MOST {
                bail!(
                    "the data has more than {MOST} labels; are they numbers to predict (--task regression)?"
                );
            }
        }
    }
    let labels: Vec<String> = match highest {
        None => names.into_iter().collect(),
        Some(highest) if names.is_empty() => {
            match class_names(sources)?.filter(|names| names.len() > highest) {
                Some(names) => names,
                None => (0..=highest).map(|label| format!("LABEL_{label}")).collect(),
            }
        }
        Some(_) => bail!(
            "some labels in the data are names and some are numbers; list them in task.labels, in the order of their numbers"
        ),
    };
    if labels.len() < 2 {
        bail!("classification needs at least two labels, but the data has only {labels:?}");
    }
    Ok(labels)
}

/// The names that sources say of their labels' numbers, if all say the same, or say nothing.
fn class_names(sources: &[DataSource]) -> anyhow::Result<Option<Vec<String>>> {
    let (names, are_for_all) = names_of_numbers(sources)?;
    Ok(names.filter(|_| are_for_all))
}

/// The names that sources, and their files for validation, say of their labels' numbers, as the `ClassLabel` of `datasets` does; and whether all say them.
fn names_of_numbers(sources: &[DataSource]) -> anyhow::Result<(Option<Vec<String>>, bool)> {
    let (mut found, mut are_for_all) = (None::<Vec<String>>, true);
    for source in sources {
        for corpus in std::iter::once(&source.corpus).chain(&source.validation) {
            match (corpus.class_names(&source.columns, "label")?, &found) {
                (None, _) => are_for_all = false,
                (Some((names, _)), Some(found)) if names != *found => bail!(
                    "the numbers in the column `label` stand for {} in some of the data and for {} in others; write labels as names",
                    listed(found),
                    listed(&names)
                ),
                (Some((names, are_for_all_files)), _) => {
                    are_for_all &= are_for_all_files;
                    found = Some(names);
                }
            }
        }
    }
    Ok((found, are_for_all))
}

/// What the numbers of data mean to a model.
#[derive(Debug, Default, PartialEq)]
pub struct NumberedLabels {
    /// The model's output for each number, where it is not the number itself.
    pub outputs: Option<Vec<usize>>,
    /// What a user should know.
    pub note: Option<String>,
}

/// Compares the names that data say of their labels' numbers with a model's labels.
pub fn numbered_labels(sources: &[DataSource], labels: &[String]) -> anyhow::Result<NumberedLabels> {
    let (names, are_for_all) = names_of_numbers(sources)?;
    let numbered = names.map_or_else(|| Ok(NumberedLabels::default()), |names| matched(&names, labels))?;
    if numbered.outputs.is_some() && !are_for_all {
        bail!(
            "some of the data say which labels the numbers in the column `label` stand for, in another order than the model's {}, and some do not; write labels as names",
            listed(labels)
        );
    }
    Ok(numbered)
}

fn matched(names: &[String], labels: &[String]) -> anyhow::Result<NumberedLabels> {
    let are_numbered = labels.iter().enumerate().all(|(number, label)| *label == format!("LABEL_{number}"));
    let output = |name: &String| labels.iter().position(|label| label.eq_ignore_ascii_case(name));
    let outputs: Vec<Option<usize>> = names.iter().map(output).collect();
    let are_in_order = outputs.iter().enumerate().all(|(number, output)| *output == Some(number));
    match outputs.iter().flatten().count() {
        _ if are_numbered || are_in_order => Ok(NumberedLabels::default()),
        known if known == names.len() => {
            Ok(NumberedLabels { outputs: outputs.into_iter().collect(), note: None })
        }
        0 if names.len() <= labels.len() => Ok(NumberedLabels {
            outputs: None,
            note: Some(format!(
                "the data call their labels {}, the model {}: they are matched by their numbers",
                listed(names),
                listed(labels)
            )),
        }),
        _ => bail!(
            "the data call their labels {}, of which the model's {} have only some; write labels as names that the model has, or list all in task.labels, in the data's order",
            listed(names),
            listed(labels)
        ),
    }
}

/// What is wrong with a value.
pub fn not_a_label(value: &Value) -> String {
    format!("the label is {value}, but must be a name or a whole number, at least 0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_data_are_matched_by_what_they_stand_for() {
        let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let model = all(&["CONTRADICTION", "NEUTRAL", "ENTAILMENT"]);
        let outputs = |names: &[&str], labels: &[String]| matched(&all(names), labels).unwrap();
        assert_eq!(outputs(&["entailment", "neutral", "contradiction"], &model).outputs, Some(vec![2, 1, 0]));
        assert_eq!(outputs(&["contradiction", "neutral"], &model), NumberedLabels::default());
        assert_eq!(outputs(&["b", "a"], &all(&["LABEL_0", "LABEL_1"])), NumberedLabels::default());
        let NumberedLabels { outputs: same, note } =
            outputs(&["neg", "pos"], &all(&["NEGATIVE", "POSITIVE"]));
        assert!(same.is_none() && note.unwrap().contains(r#""neg", "pos", the model "NEGATIVE""#));
        let refused = matched(&all(&["neutral", "other"]), &model).unwrap_err().to_string();
        assert!(refused.contains("have only some"), "{refused}");
    }
}
