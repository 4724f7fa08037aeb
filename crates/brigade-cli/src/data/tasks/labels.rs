//! The labels that data have.

use std::collections::BTreeSet;

use anyhow::bail;
use brigade::data::{Columns, DataSource, NoProgress, PrepareOptions, cached_list};
use serde_json::Value;

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

/// The names that all sources say of their labels' numbers, if they are the same.
fn class_names(sources: &[DataSource]) -> anyhow::Result<Option<Vec<String>>> {
    let mut each = sources.iter().map(|source| source.corpus.class_names(&source.columns, "label"));
    let Some(first) = each.next().transpose()?.flatten() else { return Ok(None) };
    for names in each {
        if names?.as_ref() != Some(&first) {
            return Ok(None);
        }
    }
    Ok(Some(first))
}

/// What is wrong with a value.
pub fn not_a_label(value: &Value) -> String {
    format!("the label is {value}, but must be a name or a whole number, at least 0")
}
