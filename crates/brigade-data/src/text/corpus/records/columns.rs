//! Which columns of a record are read, and what they are called in files.

use brigade_sorted::SortedMap;
use serde_json::{Map, Value};

use super::record::{Record, RecordLocation};
use crate::{Error, Result};

/// The columns to read: each has a name by which it is asked for, and may have another in files.
///
/// ```
/// use brigade_data::Columns;
///
/// # fn main() -> brigade_data::Result<()> {
/// // A `text`, which is `review` in the files, and a `label`; perhaps also an `id`.
/// let columns = Columns::new(&["text", "label"], &["id"]).renamed(&[("text".into(), "review".into())].into())?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    columns: Vec<Column>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Column {
    name: String,
    in_files: String,
    required: bool,
}

impl Columns {
    /// Every record has the columns `required`; those of `optional` may be missing.
    pub fn new(required: &[&str], optional: &[&str]) -> Self {
        let column = |name: &str, required| Column { name: name.into(), in_files: name.into(), required };
        let required = required.iter().map(|name| column(name, true));
        Self { columns: required.chain(optional.iter().map(|name| column(name, false))).collect() }
    }

    /// The same columns under other names in files: `names` has the name in files of each that is called otherwise there, as
    /// `data.columns` gives it. A column that is named so must be there.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if a name is not one of these columns.
    pub fn renamed(mut self, names: &SortedMap<String, String>) -> Result<Self> {
        for (name, in_files) in names {
            let Some(column) = self.columns.iter_mut().find(|column| column.name == *name) else {
                let known: Vec<&str> = self.columns.iter().map(|column| column.name.as_str()).collect();
                return Err(Error::InvalidSetting {
                    option: "data.columns",
                    given: format!("{{ {name} = {in_files:?} }}"),
                    allowed: format!("the columns that can be mapped are {}", known.join(", ")),
                });
            };
            column.in_files.clone_from(in_files);
            column.required = true;
        }
        Ok(self)
    }

    /// Whether records may be of several kinds, and columns have their own names in files.
    pub(super) fn are_optional(&self) -> bool {
        self.columns.iter().all(|column| !column.required)
    }

    /// What a column is called in files.
    #[cfg(feature = "parquet")]
    pub(super) fn in_files(&self, name: &str) -> Option<&str> {
        self.columns.iter().find(|column| column.name == name).map(|column| column.in_files.as_str())
    }

    /// Whether a column of files is one of these.
    pub(super) fn has(&self, in_files: &str) -> bool {
        self.columns.iter().any(|column| column.in_files == in_files)
    }

    /// The names of the columns in files that every record has.
    #[cfg(feature = "parquet")]
    pub(super) fn required(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().filter(|column| column.required).map(|column| column.in_files.as_str())
    }

    /// The record with these columns of `fields`, which have their names in files. There are also `others`, which are not read.
    pub(super) fn pick(
        &self,
        mut fields: Map<String, Value>,
        place: RecordLocation,
        others: &[String],
    ) -> Result<Record> {
        let mut picked = Map::new();
        for Column { name, in_files, required } in &self.columns {
            match fields.remove(in_files) {
                Some(value) => drop(picked.insert(name.clone(), value)),
                None if *required => {
                    let picked = self.columns.iter().filter(|column| picked.contains_key(&column.name));
                    let picked = picked.map(|column| &column.in_files);
                    let mut there: Vec<&String> = fields.keys().chain(picked).chain(others).collect();
                    there.sort_unstable();
                    return Err(place.error(missing(in_files, &there)));
                }
                None => {}
            }
        }
        Ok(Record { fields: picked, place, source: None })
    }
}

/// Says that there is no such column, and which there are.
pub(super) fn missing(column: &str, there: &[impl AsRef<str>]) -> String {
    let there: Vec<&str> = there.iter().map(AsRef::as_ref).collect();
    let there = if there.is_empty() { "no columns".into() } else { there.join(", ") };
    format!("there is no column `{column}`; there are: {there}. data.columns says which columns are read")
}

impl Default for Columns {
    /// `text`, and perhaps a `prompt`.
    fn default() -> Self {
        Self::new(&["text"], &["prompt"])
    }
}
