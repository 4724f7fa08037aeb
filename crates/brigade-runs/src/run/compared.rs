//! Whether two runs have anything to compare.

use super::Run;
use crate::error::{Error, Result};

/// What decides the model that a run trains.
const MODEL: &str = "model.";

/// Settings of the model that do not change what its losses mean.
const FREE: [&str; 2] = ["model.path", "model.dropout"];

impl Run {
    /// Checks that another run trained the same model, on targets of the same kind.
    ///
    /// # Errors
    /// If not: it says what differs.
    pub fn check_compares(&self, other: &Self) -> Result<()> {
        let differ =
            |why: String| Err(Error::NotComparable { run: self.dir.clone(), other: other.dir.clone(), why });
        if self.unit() != other.unit() {
            return differ(format!("it counts {}, not {}", other.unit(), self.unit()));
        }
        let model: Vec<Difference> =
            self.differences(other).into_iter().filter(Difference::is_of_model).collect();
        let Some(first) = model.first() else { return Ok(()) };
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        let more = match model.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        differ(format!(
            "it trained a different model, with {} = {}, not {}{more}",
            first.name,
            value(&first.other),
            value(&first.own)
        ))
    }

    /// The settings that differ, in the order of the configuration.
    pub fn differences(&self, other: &Self) -> Vec<Difference> {
        let names = self.settings.iter().map(|setting| &setting.name);
        let further = other.settings.iter().map(|setting| &setting.name);
        let further = further.filter(|name| self.setting(name).is_none());
        let difference = |name: &String| {
            let value = |run: &Self| run.setting(name).map(str::to_owned);
            Difference { name: name.clone(), own: value(self), other: value(other) }
        };
        names.chain(further).map(difference).filter(|found| found.own != found.other).collect()
    }
}

/// A setting that two runs have differently.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Difference {
    /// The setting's name.
    pub name: String,
    /// Its value in the run.
    pub own: Option<String>,
    /// Its value in the other one.
    pub other: Option<String>,
}

impl Difference {
    fn is_of_model(&self) -> bool {
        self.name.starts_with(MODEL) && !FREE.contains(&self.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::run::settings_of;

    fn run(name: &str, config: &str) -> Run {
        let mut run = Run::with_records(Path::new(name), Vec::new(), 0);
        run.settings = settings_of(config);
        run
    }

    #[test]
    fn runs_of_one_model_compare() {
        let config = "train.steps = 3\n[model]\nwidth = 8\npath = \"\"\nlayers = 2\n";
        let first = run("a", config);
        let other = run("b", &config.replace("steps = 3", "seed = 4").replace("path = \"\"", "path = \"x\""));
        first.check_compares(&other).unwrap();
        let found = first.differences(&other);
        let names: Vec<&str> = found.iter().map(|difference| difference.name.as_str()).collect();
        assert_eq!(names, ["train.steps", "model.path", "train.seed"]);
        assert_eq!((found[2].own.as_deref(), found[2].other.as_deref()), (None, Some("4")));
        let wider =
            run("b", &config.replace("width = 8\n", "width = 16\n").replace("layers = 2", "layers = 3"));
        let message = first.check_compares(&wider).unwrap_err().to_string();
        assert_eq!(
            message,
            "b cannot be compared with a: it trained a different model, with model.width = 16, not 8 (and 1 more)"
        );
    }
}
