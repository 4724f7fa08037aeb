//! The settings of a run: everything that is not particular to the model or the data.
//!
//! The same structure is read from TOML files, overridden by `--set` and flags, written into the run's folder once resolved,
//! and compared between ranks.

mod changes;
mod flags;
mod layers;
mod nearest;
mod plan;
mod sections;
mod sizes;
mod typed;
mod unused;
mod wrong_value;

use std::path::Path;

pub use brigade_comm::{Encryption, Transport};
use brigade_core::plan::{ScheduleError, SplitError};
use brigade_core::{Activation, LrSchedulerKind, Model, ParameterCounts, ParameterGroup};
use burn::tensor::Device;
use serde::{Deserialize, Serialize};

pub(crate) use changes::{changes, fixed_differences};
pub use flags::{MicroBatchSize, Resume, StandardFlags, parse_transport, parse_whole_number};
pub use layers::{ConfigError, config_to_toml, merge_config, parse_defaults};
pub(crate) use layers::{Layer, is_section, merge_layers, parse_value};
pub use nearest::{Suggestion, setting_of_flag};
pub use plan::RunPlan;
pub(crate) use sections::backend::resolve_auto;
pub use sections::backend::{Backend, CollectivesBackend, ComputeDtype, SumOrder};
pub use sections::checkpoint::{CHECKPOINT_FOLDER, CheckpointSettings, OnFailedSave, OnNonFinite};
pub use sections::comm::CommSettings;
pub(crate) use sections::metric_mode::LOSS as LOSS_METRIC;
pub use sections::metric_mode::MetricMode;
pub use sections::optimizer::{OptimizerGroup, OptimizerSettings};
pub use sections::output::OutputSettings;
pub use sections::parallelism::{
    Balance, ComputeSettings, MeshSettings, PipelineSettings, TiedGradients, ZeroSettings,
};
pub use sections::profile::ProfileSettings;
pub use sections::strategy::{StrategyName, StrategySettings};

/// The resolved configuration of a run, in its folder.
pub const CONFIG_FILE: &str = "config.toml";

/// An invalid setting: what was given, what is allowed, and the option's full name.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SettingError {
    /// A value that is out of range, or does not fit other settings.
    #[error("{option} = {given} is not possible: {allowed}")]
    Value {
        /// Full name of the option, with its flag if it has one.
        option: &'static str,
        /// What was given.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// An option without another one that it needs.
    #[error("{option} needs {needed}")]
    Missing {
        /// The option as it was given.
        option: &'static str,
        /// The other one.
        needed: &'static str,
    },
    /// The pipeline schedule is impossible.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The model cannot be split into these stages.
    #[error(transparent)]
    Split(#[from] SplitError),
}

impl SettingError {
    pub(crate) fn new(option: &'static str, given: impl ToString, allowed: impl Into<String>) -> Self {
        Self::Value { option, given: given.to_string(), allowed: allowed.into() }
    }
}

/// All settings of training.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Length, batch and seed of the run.
    pub train: TrainSettings,
    /// The optimizer.
    pub optimizer: OptimizerSettings,
    /// The learning-rate schedule.
    pub schedule: ScheduleSettings,
    /// The device mesh.
    pub mesh: MeshSettings,
    /// How ranks with different micro-batches train together.
    pub strategy: StrategySettings,
    /// What is sharded over the data-parallel ranks.
    pub zero: ZeroSettings,
    /// The pipeline schedule and stages.
    pub pipeline: PipelineSettings,
    /// Backend, number types and activation checkpointing.
    pub compute: ComputeSettings,
    /// When checkpoints are saved, and where.
    pub checkpoint: CheckpointSettings,
    /// Communication between ranks.
    pub comm: CommSettings,
    /// Where results go.
    pub output: OutputSettings,
    /// The steps that a timeline is written for.
    pub profile: ProfileSettings,
}

/// `[train]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainSettings {
    /// Length of the run in steps, which are passes over a global batch; 0 if `epochs` gives it.
    pub steps: u64,
    /// Length of the run in epochs, which are passes over the data, up to the end of the last step; fractions are allowed. 0 if
    /// `steps` gives it. Setting one of the two cancels the other's default.
    pub epochs: f64,
    /// Seed of the initial weights and of the order of data.
    pub seed: u64,
    /// Sequences (or samples) that a rank puts through the model at once.
    pub micro_batch_size: usize,
    /// Sequences (or samples) per step, over all ranks; ranks accumulate gradients over micro-batches to
    /// reach it.
    pub global_batch_size: usize,
    /// Steps from one update to the next. Steps without an update only add up gradients, as in PyTorch's `no_sync`: data-parallel
    /// ranks reduce nothing (ZeRO-2 and 3 do, unless `zero.reduce_every` is `step`; ZeRO-3 gathers parameters), and metrics,
    /// validation, checkpoints and preemption wait for the update.
    pub sync_every: usize,
    /// Gradients are clipped to this global norm; 0 turns clipping off.
    pub gradient_clipping: f64,
    /// Threads of each rank that read samples for coming steps; 0 reads on the rank's own thread, which waits for it. The order of
    /// samples does not depend on it.
    pub readers: usize,
    /// How many steps ahead they read.
    pub read_ahead: usize,
    /// Steps between validations; 0 validates only at the end.
    pub validate_every: u64,
    /// At most this many sequences (or samples) are read per validation, evenly spread over all of them; 0 reads all.
    pub validation_samples: usize,
    /// Ends the run after this many validations in a row without an improvement on the best before; 0 turns this off.
    pub early_stopping_patience: u64,
    /// What early stopping compares: `loss`, or the name of a metric.
    pub early_stopping_metric: String,
    /// `min` (lower is better), `max` (higher is better) or `auto`: `min` if the metric's name ends in `loss`, `error` or `perplexity`, or is one of their abbreviations (`mse`, `ppl` and so on), else `max`.
    pub early_stopping_mode: MetricMode,
    /// How much better than the best before a validation must be.
    pub early_stopping_min_delta: f64,
    /// What to do when loss or gradient norm is not finite: `stop`, `skip` (the step), or `rollback` (to the newest
    /// checkpoint, and past the bad batch).
    pub on_nonfinite: OnNonFinite,
    /// The most steps of a run that may be skipped or rolled back; 0 sets no limit.
    pub nonfinite_limit: u64,
    /// Whether each block's forward is run twice and the outputs compared: a block that is not a function of its input, parameters
    /// and context is an error that names it. Samples are read twice as well, to find datasets that give other values the second
    /// time. On CPUs, debug builds always do both for the first micro-batch. On GPUs, blocks must use operations with a fixed
    /// summation order.
    pub check_blocks: bool,
    /// Parameters that are not trained: patterns of names (`block.path`) in which `*` stands for any text, and `0-7` between dots for one of these
    /// numbers, as in `["embed*", "layers.0-7.*"]`.
    pub freeze: Vec<String>,
}

impl TrainSettings {
    /// Groups for the frozen parameters.
    fn frozen_groups(&self) -> impl Iterator<Item = ParameterGroup> {
        let frozen = |pattern: &String| ParameterGroup {
            setting: "train.freeze",
            frozen: true,
            ..ParameterGroup::matching(pattern)
        };
        self.freeze.iter().map(frozen)
    }
}

impl Settings {
    /// Where the checkpoints of the run in the folder `out` of this machine are: a path or a URL.
    pub fn checkpoint_location(&self, out: &Path) -> String {
        match (self.checkpoint.dir.as_str(), self.output.url()) {
            ("", None) => out.join(CHECKPOINT_FOLDER).to_string_lossy().into_owned(),
            ("", Some(url)) => format!("{url}/{CHECKPOINT_FOLDER}"),
            (given, _) => given.to_owned(),
        }
    }

    /// Whether parameters are frozen by name: `train.freeze`, or a group of `optimizer.groups`.
    pub fn freezes(&self) -> bool {
        !self.train.freeze.is_empty() || self.optimizer.groups.iter().any(|group| group.frozen)
    }

    /// Groups of parameters: the frozen ones, then these.
    ///
    /// # Errors
    /// As [`OptimizerSettings::parameter_groups`].
    pub(crate) fn parameter_groups(
        &self,
        groups: &[OptimizerGroup],
    ) -> Result<Vec<ParameterGroup>, SettingError> {
        Ok(self.train.frozen_groups().chain(self.optimizer.parameter_groups(groups)?).collect())
    }

    /// Checks that `train.freeze` and `optimizer.groups` fit a model, before ranks begin; `model` makes it, without values, on the device it is given.
    ///
    /// # Errors
    /// If a pattern or a number is wrong, no parameter belongs to a group, or `model` fails.
    pub fn check_groups<I: Activation, O: Activation, T>(
        &self,
        model: impl FnOnce(&Device) -> anyhow::Result<Model<I, O, T>>,
    ) -> anyhow::Result<()> {
        let groups = self.parameter_groups(&self.optimizer.groups)?;
        if !groups.is_empty() {
            model(&brigade_cpu::device())?.chain().check_groups(&groups)?;
        }
        Ok(())
    }

    /// How many parameters of each block of a model are trained, and how many are not; `model` makes it, without values, on the device it is given.
    ///
    /// # Errors
    /// As [`check_groups`](Self::check_groups).
    pub fn parameter_counts<I: Activation, O: Activation, T>(
        &self,
        model: impl FnOnce(&Device) -> anyhow::Result<Model<I, O, T>>,
    ) -> anyhow::Result<Vec<ParameterCounts>> {
        let mut model = model(&brigade_cpu::device())?;
        model.freeze(&self.parameter_groups(&self.optimizer.groups)?)?;
        Ok(model.chain().parameter_counts())
    }
}

impl Default for TrainSettings {
    fn default() -> Self {
        Self {
            steps: 100,
            epochs: 0.0,
            seed: 0,
            micro_batch_size: 4,
            global_batch_size: 8,
            sync_every: 1,
            gradient_clipping: 1.0,
            readers: 1,
            read_ahead: 4,
            validate_every: 0,
            validation_samples: 0,
            early_stopping_patience: 0,
            early_stopping_metric: LOSS_METRIC.into(),
            early_stopping_mode: MetricMode::Auto,
            early_stopping_min_delta: 0.0,
            on_nonfinite: OnNonFinite::Stop,
            nonfinite_limit: 10,
            check_blocks: false,
            freeze: Vec::new(),
        }
    }
}

/// `[schedule]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSettings {
    /// `constant`, `linear`, `cosine` or `wsd`.
    pub name: LrSchedulerKind,
    /// Warm-up steps, over which the learning rate rises to its peak.
    pub warmup_steps: u64,
    /// The same in tokens (or samples); at most one of the two may be set.
    pub warmup_tokens: u64,
    /// Lowest learning rate, as a fraction of the peak.
    pub min_ratio: f64,
    /// Steps of the decay at the end (`wsd`); 0: a tenth of all steps.
    pub decay_steps: u64,
}

impl Default for ScheduleSettings {
    fn default() -> Self {
        Self {
            name: LrSchedulerKind::Cosine,
            warmup_steps: 0,
            warmup_tokens: 0,
            min_ratio: 0.1,
            decay_steps: 0,
        }
    }
}
