//! What a run watches from validation to validation: whether it has stopped improving, and when it was best.

use brigade_report::counted;
use brigade_sorted::{SortedMap, SortedSet};

use crate::settings::{LOSS_METRIC, MetricMode, SettingError, Settings};
use crate::training_setup::ValidationReport;

/// A metric of the validations, and its best value so far. What was found is kept in the run's progress under names that contain
/// the metric, so that it continues after a resume, but not with another metric's values.
pub(super) struct Watch {
    metric: String,
    is_min: bool,
    /// By how much a value must be better to count.
    min_delta: f64,
    /// Names the counters.
    key: String,
}

impl Watch {
    fn new(what: &str, metric: &str, mode: MetricMode, min_delta: f64) -> Self {
        let is_min = mode.is_min(metric);
        let key = format!("{what}/{metric}/{}", if is_min { "min" } else { "max" });
        Self { metric: metric.to_owned(), is_min, min_delta, key }
    }

    /// As in `a lower loss`.
    fn better(&self) -> String {
        format!("a {} {}", if self.is_min { "lower" } else { "higher" }, self.metric)
    }

    /// Names the best value so far, as its bits: counters are whole numbers.
    fn value_key(&self) -> String {
        format!("{}_bits", self.key)
    }

    /// Whether a validation is better than all before; if so, its value is the best.
    fn improves(&self, found: &ValidationReport, watched: &mut SortedMap<String, u64>) -> bool {
        let value = match self.metric.as_str() {
            LOSS_METRIC => found.loss,
            metric => found.metrics.get(metric).copied().unwrap_or(f64::NAN),
        };
        let bits = self.value_key();
        let best = watched.get(&bits).copied().map(f64::from_bits);
        let better = match best {
            None => !value.is_nan(),
            Some(best) if self.is_min => value < best - self.min_delta,
            Some(best) => value > best + self.min_delta,
        };
        if better {
            watched.insert(bits, value.to_bits());
        }
        better
    }
}

/// Which checkpoint is the best, and how good it is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Best {
    pub step: Option<u64>,
    /// The bits of its metric.
    pub value: Option<u64>,
}

/// Whether the weights are the best so far, by `checkpoint.best_metric`.
pub(super) struct BestCheckpoint(Watch);

impl BestCheckpoint {
    /// What it does, for the first lines of a run.
    pub fn describe(&self) -> String {
        format!("after each validation with {}, a checkpoint is saved as the best", self.0.better())
    }

    pub fn is_new(&self, found: &ValidationReport, watched: &mut SortedMap<String, u64>) -> bool {
        self.0.improves(found, watched)
    }

    /// The bits of the best value so far.
    pub fn value(&self, watched: &SortedMap<String, u64>) -> Option<u64> {
        watched.get(&self.0.value_key()).copied()
    }

    /// Goes back to an earlier best value.
    pub fn set_value(&self, value: Option<u64>, watched: &mut SortedMap<String, u64>) {
        match value {
            Some(bits) => drop(watched.insert(self.0.value_key(), bits)),
            None => drop(watched.remove(&self.0.value_key())),
        }
    }
}

/// Ends a run after `train.early_stopping_patience` validations in a row without an improvement.
pub(super) struct EarlyStopping {
    watch: Watch,
    patience: u64,
}

impl EarlyStopping {
    /// What it does, for the first lines of a run.
    pub fn describe(&self) -> String {
        let (validations, better) = (counted(self.patience as usize, "validation"), self.watch.better());
        format!("early stopping: after {validations} in a row without {better}")
    }

    /// Counts a validation of the weights after the update of step `update`, if it is their first.
    pub fn count(&self, found: &ValidationReport, update: u64, watched: &mut SortedMap<String, u64>) {
        if watched.insert(format!("{}/update", self.watch.key), update) == Some(update) {
            return;
        }
        let key = self.count_key();
        let count = match self.watch.improves(found, watched) {
            true => 0,
            false => watched.get(&key).copied().unwrap_or_default() + 1,
        };
        watched.insert(key, count);
    }

    fn count_key(&self) -> String {
        format!("{}/without_improvement", self.watch.key)
    }

    /// Why the run is to end, if it is.
    pub fn reason(&self, watched: &SortedMap<String, u64>) -> Option<String> {
        let count = watched.get(&self.count_key()).copied().unwrap_or_default();
        (count >= self.patience).then(|| {
            let Watch { metric, min_delta, .. } = &self.watch;
            let by = if *min_delta > 0.0 { format!(" by more than {min_delta}") } else { String::new() };
            format!(
                "the validation {metric} did not improve{by} in {} (train.early_stopping_patience = {})",
                counted(count as usize, "validation"),
                self.patience
            )
        })
    }
}

/// What a run watches, as its settings say; `metrics` are the names of the model's, and `validates` whether there are data to
/// validate on.
pub(super) fn watches(
    settings: &Settings,
    metrics: &[String],
    validates: bool,
) -> Result<(Option<EarlyStopping>, Option<BestCheckpoint>), SettingError> {
    let (train, checkpoint) = (&settings.train, &settings.checkpoint);
    let known: SortedSet<&str> = metrics.iter().map(String::as_str).chain([LOSS_METRIC]).collect();
    let check = |option, metric: &str| match known.contains(metric) {
        true => Ok(()),
        false => {
            let names: Vec<&str> = known.iter().copied().collect();
            Err(SettingError::new(option, metric, format!("it must be one of: {}", names.join(", "))))
        }
    };
    let need = |option, given: String| {
        let missing = "it compares validations, and there are no data to validate on (data.validation_fraction or data.validation of \
                       `brigade train`, `Training::validate` in a program)";
        if validates { Ok(()) } else { Err(SettingError::new(option, given, missing)) }
    };
    let (mut early_stopping, mut best) = (None, None);
    let patience = train.early_stopping_patience;
    if patience > 0 {
        need("train.early_stopping_patience", patience.to_string())?;
        check("train.early_stopping_metric", &train.early_stopping_metric)?;
        let (metric, mode) = (&train.early_stopping_metric, train.early_stopping_mode);
        let watch = Watch::new("early_stopping", metric, mode, train.early_stopping_min_delta);
        early_stopping = Some(EarlyStopping { watch, patience });
    }
    if checkpoint.keep_best {
        need("checkpoint.keep_best", "true".into())?;
        check("checkpoint.best_metric", &checkpoint.best_metric)?;
        let watch = Watch::new("best", &checkpoint.best_metric, checkpoint.best_mode, 0.0);
        best = Some(BestCheckpoint(watch));
    }
    Ok((early_stopping, best))
}

/// Refuses early stopping without validations between steps, which [`Session::train`](crate::Session::train) would never make.
pub(super) fn check_validations(settings: &Settings) -> Result<(), SettingError> {
    let (patience, every) = (settings.train.early_stopping_patience, settings.train.validate_every);
    if patience > 0 && every == 0 {
        let missing = "it compares validations, and train.validate_every = 0 makes none before the end; set train.validate_every \
                       to the number of steps between validations";
        return Err(SettingError::new("train.early_stopping_patience", patience, missing));
    }
    Ok(())
}

/// Refuses to end with the best weights where nothing says which they are.
pub(super) fn check_load_best(settings: &Settings, has_hooks: bool) -> Result<(), SettingError> {
    let checkpoint = &settings.checkpoint;
    if checkpoint.load_best_at_end && !checkpoint.keep_best && !has_hooks {
        let missing = "nothing decides which checkpoint is the best; set checkpoint.keep_best = true, or add a hook that \
                       answers `Control::SaveBest`";
        return Err(SettingError::new("checkpoint.load_best_at_end", true, missing));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(loss: f64, accuracy: f64) -> ValidationReport {
        let metrics = SortedMap::from([("accuracy".to_owned(), accuracy)]);
        ValidationReport { step: 1, loss, metrics, targets: 1, target_weight: 1.0 }
    }

    fn settings(change: impl FnOnce(&mut Settings)) -> Settings {
        let mut settings = Settings::default();
        settings.train.early_stopping_patience = 2;
        settings.checkpoint.keep_best = true;
        change(&mut settings);
        settings
    }

    /// After how many validations a run ends, and which of them were the best so far.
    fn run(settings: &Settings, validations: &[ValidationReport]) -> (Option<usize>, Vec<usize>) {
        let (patience, best) = watches(settings, &["accuracy".into()], true).unwrap();
        let (patience, best, mut watched) = (patience.unwrap(), best.unwrap(), SortedMap::new());
        let (mut end, mut bests) = (None, Vec::new());
        for (number, found) in validations.iter().enumerate() {
            let update = number as u64;
            patience.count(found, update, &mut watched);
            // Of the same weights no other counts.
            patience.count(found, update, &mut watched);
            bests.extend(best.is_new(found, &mut watched).then_some(number));
            if end.is_none() && patience.reason(&watched).is_some() {
                end = Some(number + 1);
            }
        }
        (end, bests)
    }

    #[test]
    fn losses_fall_and_metrics_rise() {
        let validations = [(3.0, 0.1), (2.0, 0.3), (2.5, 0.2), (1.9, 0.25), (2.0, 0.2), (2.1, 0.4)];
        let validations = validations.map(|(loss, accuracy)| found(loss, accuracy));
        assert_eq!(run(&settings(|_| {}), &validations), (Some(6), vec![0, 1, 3]));
        let by_accuracy = settings(|settings| {
            settings.train.early_stopping_metric = "accuracy".into();
            settings.checkpoint.best_metric = "accuracy".into();
        });
        assert_eq!(run(&by_accuracy, &validations), (Some(4), vec![0, 1, 5]));
        let turned = settings(|settings| {
            settings.train.early_stopping_mode = MetricMode::Max;
            settings.checkpoint.best_metric = "accuracy".into();
            settings.checkpoint.best_mode = MetricMode::Min;
        });
        assert_eq!(run(&turned, &validations), (Some(3), vec![0]));
        let coarse = settings(|settings| settings.train.early_stopping_min_delta = 0.5);
        assert_eq!(run(&coarse, &validations), (Some(4), vec![0, 1, 3]));
    }

    #[test]
    fn errors_and_losses_fall_by_default() {
        let falls = |name: &str| MetricMode::Auto.is_min(name);
        assert!(
            ["loss", "student_loss", "mean_absolute_error", "perplexity", "rmse", "valid/MAE", "token_ppl"]
                .into_iter()
                .all(falls)
        );
        assert!(
            !["accuracy", "lossless", "errors_found", "macro_f1", "wherewer", "mse_improvement"]
                .into_iter()
                .any(falls)
        );
    }

    #[test]
    fn what_is_not_a_number_is_no_improvement() {
        let validations = [f64::NAN, f64::NAN, 1.0].map(|loss| found(loss, 0.0));
        assert_eq!(run(&settings(|_| {}), &validations), (Some(2), vec![2]));
    }

    #[test]
    fn what_cannot_be_watched_is_named() {
        let message = |settings: &Settings, validates| {
            watches(settings, &["accuracy".into()], validates).err().unwrap().to_string()
        };
        let message_of = |change: fn(&mut Settings)| message(&settings(change), true);
        let said = "train.early_stopping_metric = f1 is not possible: it must be one of: accuracy, loss";
        assert_eq!(message_of(|settings| settings.train.early_stopping_metric = "f1".into()), said);
        let said = "checkpoint.best_metric = f1 is not possible: it must be one of: accuracy, loss";
        assert_eq!(message_of(|settings| settings.checkpoint.best_metric = "f1".into()), said);
        assert!(
            message(&settings(|_| {}), false)
                .starts_with("train.early_stopping_patience = 2 is not possible")
        );
        let only_best = settings(|settings| settings.train.early_stopping_patience = 0);
        assert!(message(&only_best, false).starts_with("checkpoint.keep_best = true is not possible"));
    }

    #[test]
    fn settings_that_would_have_no_effect_are_refused() {
        let never = settings(|settings| settings.train.validate_every = 0);
        let message = check_validations(&never).unwrap_err().to_string();
        let said = "train.early_stopping_patience = 2 is not possible: it compares validations, and train.validate_every = 0";
        assert!(message.starts_with(said), "{message}");
        check_validations(&settings(|settings| settings.train.validate_every = 1)).unwrap();
        check_validations(&Settings::default()).unwrap();

        let mut unknown = Settings::default();
        unknown.checkpoint.load_best_at_end = true;
        let message = check_load_best(&unknown, false).unwrap_err().to_string();
        let said = "checkpoint.load_best_at_end = true is not possible: nothing decides which checkpoint is the best";
        assert!(message.starts_with(said) && message.contains("checkpoint.keep_best"), "{message}");
        check_load_best(&unknown, true).unwrap();
        unknown.checkpoint.keep_best = true;
        check_load_best(&unknown, false).unwrap();
    }
}
