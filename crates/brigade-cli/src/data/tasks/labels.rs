//! The labels that data have.

use std::collections::BTreeSet;

use anyhow::bail;
use brigade::data::{Columns, Corpus, DataSource, NoProgress, PrepareOptions, cached_list};
use serde_json::Value;

use super::records::{listed, usual_numbers};
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
                let number = whole_number(label).and_then(|number| usize::try_from(number).ok());
                match (label, number) {
                    (Value::String(name), _) => _ = names.insert(name.clone()),
                    (_, Some(number)) => highest = highest.max(Some(number)),
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

/// The names that all files to train on say of their labels' numbers, if they do: the cache knows nothing of other files.
fn class_names(sources: &[DataSource]) -> anyhow::Result<Option<Vec<String>>> {
    let (names, are_for_all) =
        names_of_numbers(sources.iter().map(|source| (&source.corpus, &source.columns)))?;
    Ok(names.filter(|_| are_for_all))
}

/// The names that files say of their labels' numbers, as the `ClassLabel` of `datasets` does; and whether all say them.
fn names_of_numbers<'a>(
    files: impl Iterator<Item = (&'a Corpus, &'a Columns)>,
) -> anyhow::Result<(Option<Vec<String>>, bool)> {
    let (mut found, mut are_for_all) = (None::<Vec<String>>, true);
    for (corpus, columns) in files {
        match (corpus.class_names(columns, "label")?, &found) {
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
    Ok((found, are_for_all))
}

/// What the numbers of data mean to a model.
#[derive(Debug, Default, PartialEq)]
pub struct NumberedLabels {
    /// The model's output for each number, where it is not the usual one.
    pub outputs: Option<Vec<usize>>,
    /// What a user should know.
    pub note: Option<String>,
}

/// Compares the names that data say of their labels' numbers with a model's labels.
pub fn numbered_labels(sources: &[DataSource], labels: &[String]) -> anyhow::Result<NumberedLabels> {
    let files = sources.iter().flat_map(|source| {
        std::iter::once(&source.corpus).chain(&source.validation).map(|corpus| (corpus, &source.columns))
    });
    let (names, are_for_all) = names_of_numbers(files)?;
    let numbered = names.map_or_else(|| Ok(NumberedLabels::default()), |names| matched(&names, labels))?;
    if numbered.outputs.is_some() && !are_for_all {
        bail!(
            "some of the data say which of the model's labels {} the numbers in the column `label` stand for, and some, which may mean others, do not; write labels as names",
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
    let are_places = usual_numbers(labels).into_iter().eq((0..).zip(0..labels.len()));
    match outputs.iter().flatten().count() {
        _ if are_numbered || (are_in_order && are_places) => Ok(NumberedLabels::default()),
        known if known == names.len() => {
            Ok(NumberedLabels { outputs: outputs.into_iter().collect(), note: None })
        }
        0 if names.len() <= labels.len() => Ok(NumberedLabels {
            outputs: (!are_places).then(|| (0..names.len()).collect()),
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

/// The number of a label, which some tables have as a float.
pub fn whole_number(value: &Value) -> Option<i64> {
    let integral =
        |number: f64| (number.fract() == 0.0 && number.abs() < MAX_INTEGRAL).then_some(number as i64);
    value.as_i64().or_else(|| value.as_f64().and_then(integral))
}

/// Below it, a float has the value of exactly one whole number: 2^53.
const MAX_INTEGRAL: f64 = 9_007_199_254_740_992.0;

/// What is wrong with a value.
pub fn not_a_label(value: &Value) -> String {
    format!(
        "the label is {value}, but must be a name or a whole number, at least 0 unless a label is called so"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_labels_follow_from_the_files_to_train_on_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.jsonl");
        std::fs::write(&path, "{\"text\":\"a\",\"label\":0}\n{\"text\":\"b\",\"label\":1}\n").unwrap();
        let corpus = |path: &std::path::Path| Corpus::from_sources(&[path.display().to_string()]);
        let source = DataSource {
            columns: Columns::new(&["text", "label"], &[]),
            // Reading it would be an error.
            validation: Some(corpus(&folder.path().join("missing.arrow"))),
            ..DataSource::new(corpus(&path))
        };
        assert_eq!(labels_in(&[source], &|| ()).unwrap(), ["LABEL_0", "LABEL_1"]);
    }

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
        let ratings = all(&["1", "2", "3"]);
        let numbered = outputs(&["1", "2", "3"], &ratings);
        assert_eq!(numbered, NumberedLabels { outputs: Some(vec![0, 1, 2]), note: None });
        assert_eq!(outputs(&["one star", "two stars"], &ratings).outputs, Some(vec![0, 1]));
        assert_eq!(outputs(&["0", "1"], &all(&["0", "1"])), NumberedLabels::default());
        let refused = matched(&all(&["neutral", "other"]), &model).unwrap_err().to_string();
        assert!(refused.contains("have only some"), "{refused}");
    }
}
