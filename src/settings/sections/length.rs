//! The length of a run, in steps or epochs.

use toml::{Table, Value};

use crate::settings::{SettingError, Settings, TrainSettings};

/// The largest integer of a TOML file.
const LARGEST: f64 = i64::MAX as f64;

impl TrainSettings {
    /// Checks that the length is given in steps or in epochs.
    pub(crate) fn check_length(&self) -> Result<(), SettingError> {
        let Self { steps, epochs, .. } = *self;
        if !(epochs.is_finite() && epochs >= 0.0) {
            let allowed = "it must be a number above 0, or 0 if train.steps gives the length of the run";
            return Err(SettingError::new("train.epochs (--epochs)", epochs, allowed));
        }
        match (steps, epochs > 0.0) {
            (0, false) => Err(SettingError::new("train.steps (--steps)", steps, "it must be at least 1")),
            (1.., true) => {
                let allowed = format!(
                    "train.epochs (--epochs) = {epochs} also gives the length of the run; set only one of the two, and the \
                    other to 0"
                );
                Err(SettingError::new("train.steps (--steps)", steps, allowed))
            }
            _ => Ok(()),
        }
    }
}

impl Settings {
    /// The steps of a run over this many samples; with epochs, up to the end of an update, or an outer step.
    pub(crate) fn total_steps(&self, samples: usize) -> Result<u64, SettingError> {
        let TrainSettings { steps, epochs, global_batch_size, .. } = self.train;
        let (together, _) = self.steps_together();
        if epochs == 0.0 {
            return Ok(steps);
        }
        let wrong = |allowed: &str| Err(SettingError::new("train.epochs (--epochs)", epochs, allowed));
        if samples == 0 {
            return wrong("there is no data to count epochs of; set train.steps");
        }
        let parts = (epochs * samples as f64 / (global_batch_size as f64 * together as f64)).ceil().max(1.0);
        if parts * together as f64 >= LARGEST {
            return wrong("a run of that many steps would never end");
        }
        Ok(parts as u64 * together)
    }
}

/// Which of `train.steps` and `train.epochs` a layer of a configuration sets to more than 0. It replaces the other one of the layers
/// below.
#[derive(Default, Clone, Copy)]
pub(crate) struct GivenLength {
    steps: bool,
    epochs: bool,
}

impl GivenLength {
    pub fn of(layer: &Table) -> Self {
        let given = |key: &str| match layer.get("train").and_then(|train| train.get(key)) {
            Some(Value::Integer(number)) => *number > 0,
            Some(Value::Float(number)) => *number > 0.0,
            _ => false,
        };
        Self { steps: given("steps"), epochs: given("epochs") }
    }

    /// What two layers of one origin give.
    pub fn and(self, other: Self) -> Self {
        Self { steps: self.steps || other.steps, epochs: self.epochs || other.epochs }
    }

    /// Takes the one that is not given out of a configuration; none if both are.
    pub fn replace(self, config: &mut Table) {
        let (key, none) = match self {
            Self { steps: true, epochs: false } => ("epochs", Value::Float(0.0)),
            Self { steps: false, epochs: true } => ("steps", Value::Integer(0)),
            _ => return,
        };
        if let Some(slot) = config.get_mut("train").and_then(|train| train.get_mut(key)) {
            *slot = none;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::settings::{merge_config, parse_defaults};

    fn settings(steps: u64, epochs: f64) -> Settings {
        let mut settings = Settings::default();
        (settings.train.steps, settings.train.epochs, settings.train.global_batch_size) = (steps, epochs, 8);
        settings
    }

    #[test]
    fn epochs_are_steps_up_to_the_next_whole_update() {
        let steps = |epochs, samples| settings(0, epochs).total_steps(samples).unwrap();
        assert_eq!((steps(1.0, 64), steps(2.0, 65), steps(0.5, 64), steps(1e-9, 64)), (8, 17, 4, 1));
        let mut accumulating = settings(0, 1.0);
        accumulating.train.sync_every = 3;
        assert_eq!(accumulating.total_steps(64).unwrap(), 9);
        assert_eq!(settings(5, 0.0).total_steps(64).unwrap(), 5);
        for (epochs, samples, said) in [(1.0, 0, "no data"), (1e300, 64, "never end")] {
            let message = settings(0, epochs).total_steps(samples).unwrap_err().to_string();
            assert!(message.starts_with("train.epochs (--epochs) = ") && message.contains(said), "{message}");
        }
    }

    #[test]
    fn a_run_has_one_length() {
        let message = |steps, epochs| settings(steps, epochs).train.check_length().unwrap_err().to_string();
        let both = message(5, 1.5);
        assert!(
            both.contains("train.steps (--steps) = 5") && both.contains("train.epochs (--epochs) = 1.5"),
            "{both}"
        );
        assert!(message(0, 0.0).contains("at least 1"));
        for wrong in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(message(0, wrong).starts_with("train.epochs (--epochs) = "), "{wrong}");
        }
        settings(5, 0.0).train.check_length().unwrap();
        settings(0, 1.5).train.check_length().unwrap();
    }

    #[test]
    fn the_length_of_a_layer_replaces_that_of_the_layers_below() {
        let length = |defaults: &str, sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
            let defaults: Settings = parse_defaults(defaults).unwrap();
            let settings: Settings = merge_config(&defaults, &[], &sets).unwrap();
            (settings.train.steps, settings.train.epochs)
        };
        assert_eq!(length("", &[]), (100, 0.0));
        assert_eq!(length("train.epochs = 2", &[]), (0, 2.0));
        assert_eq!(length("train.epochs = 2", &["train.steps=7"]), (7, 0.0));
        assert_eq!(length("train.steps = 7", &["train.epochs=0.5"]), (0, 0.5));
        assert_eq!(length("train = { steps = 7, epochs = 1 }", &["train.seed=3"]), (7, 1.0), "refused later");
        assert_eq!(length("train.steps = 7", &["train.epochs=0"]), (7, 0.0));
        assert_eq!(length("", &["train.epochs=2", "train.steps=7"]), (7, 2.0), "refused later, too");
        assert_eq!(length("", &["train.epochs=2", "train.steps=0"]), (0, 2.0));
    }
}
