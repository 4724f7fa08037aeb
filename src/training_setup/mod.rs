//! What a run needs besides the model: data, metrics, hooks, files.

mod control;
mod data;
mod update;

use std::sync::Arc;

use anyhow::{Context, ensure};
use brigade_core::{Activation, Batch, Model, StepReport, with_seed};
use brigade_data::SourceShare;
use brigade_models::WeightsMapping;
use brigade_sorted::{SortedMap, SortedSet};
use burn::tensor::{Device, Tensor};

use crate::dataset::Dataset;
use crate::folder::WEIGHTS_FILE;
use crate::settings::{RunPlan, SettingError, Settings};

pub(crate) use control::{AgreedAnswers, HookAnswers, Hooks};
pub use control::{Control, HookAnswer};
pub(crate) use data::{Ahead, Data, Order, Reader, check_read_again};
pub(crate) use update::OwnUpdate;

/// A metric: from the model's output and a batch's target to a sum over the valid targets, shape `[1]`.
type Metric<O, T> = Box<dyn Fn(O, T) -> Tensor<1> + Send + Sync>;

/// A micro-batch of so many samples, on a device.
type MicroBatch<I, T> = Box<dyn Fn(usize, &Device) -> Batch<I, T>>;

/// A metric as a function of others, by name.
pub type DerivedMetric = Box<dyn Fn(&SortedMap<String, f64>) -> f64 + Send + Sync>;

/// Metrics that follow from others.
#[derive(Default)]
pub(crate) struct DerivedMetrics(Vec<(String, DerivedMetric)>);

impl DerivedMetrics {
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.0.iter().map(|(name, _)| name)
    }

    /// Adds those that follow from these.
    pub fn add_to(&self, metrics: &mut SortedMap<String, f64>) {
        for (name, value) in &self.0 {
            metrics.insert(name.clone(), value(metrics));
        }
    }
}

/// What is reported of a run's data.
pub(crate) struct Reported<'a> {
    /// What the targets are called.
    pub unit: String,
    pub flops_per_target: Option<f64>,
    pub files: &'a [(String, Vec<u8>)],
}

/// What [`Session::train`](crate::Session::train) and [`Session::prepare`](crate::Session::prepare) need besides the model: the
/// data, and what to do during the run. The types are the model's: its input, its output, and the target.
///
/// ```no_run
/// # use brigade::{Chain, Control, Training, samples};
/// # use burn::prelude::*;
/// # fn data(_: &[usize], device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
/// #     (Tensor::zeros([1, 1], device), Tensor::zeros([1], device))
/// # }
/// # fn main() -> std::process::ExitCode {
/// # brigade::launch("", |session| {
/// # let model = Chain::<Tensor<2>, Tensor<2>>::new()
/// #     .loss(|output: Tensor<2>, _: Tensor<1, Int>| output.sum());
/// let training = Training::on(samples(50_000, data))
///     .validate(samples(10_000, data))
///     .metric("accuracy", |output: Tensor<2>, target| {
///         output.argmax(1).reshape([-1]).equal(target).float().sum()
///     })
///     .on_step(|step| {
///         if step.step % 100 == 0 {
///             println!("step {}: loss {}", step.step, step.loss);
///         }
///     })
///     .on_validation(|found| match found.metrics["accuracy"] {
///         accuracy if accuracy > 0.99 => Control::Stop,
///         _ => Control::Continue,
///     });
/// session.train(model, training)?;
/// # Ok(())
/// # })
/// # }
/// ```
///
/// # Hooks
///
/// Hooks are only called on rank 0, and all ranks follow its answers. So a hook is called equally often on any mesh, and its
/// decision applies everywhere. It must not communicate with other ranks. An error that it returns ends the run on all ranks.
pub struct Training<I, O, T> {
    pub(crate) train: Option<Arc<dyn Data<I, T>>>,
    pub(crate) validation: Option<Arc<dyn Data<I, T>>>,
    measured_on: Option<MicroBatch<I, T>>,
    /// What targets are called, and how many a sample has, if the program says so.
    counted_in: Option<(String, usize)>,
    metrics: Vec<(String, Metric<O, T>)>,
    pub(crate) derived: DerivedMetrics,
    pub(crate) hooks: Hooks,
    pub(crate) mapping: WeightsMapping,
    pub(crate) flops_per_target: Option<f64>,
    pub(crate) files: Vec<(String, Vec<u8>)>,
    pub(crate) weights: WeightsFile,
    pub(crate) update: OwnUpdate,
}

/// The file of weights that is written at the end.
#[derive(Clone, Copy)]
pub(crate) struct WeightsFile {
    pub name: &'static str,
    /// Whether a parameter is in it.
    pub holds: fn(&str) -> bool,
}

/// What a validation found, on all ranks together.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidationReport {
    /// The step after which it was made.
    pub step: u64,
    /// Mean loss over the valid targets.
    pub loss: f64,
    /// The metrics, by name: means over the same targets.
    pub metrics: SortedMap<String, f64>,
    /// Valid targets.
    pub targets: u64,
    /// The sum of their weights, which the means are divided by: their number if none has a weight.
    pub target_weight: f64,
}

impl<I: Activation, O: Activation, T: 'static> Training<I, O, T> {
    /// Trains on this data. Data that is also used elsewhere can be given as an [`Arc`].
    pub fn on(data: impl Dataset<Input = I, Target = T>) -> Self {
        Self { train: Some(Arc::new(data)), ..Self::without_data() }
    }

    /// For [your own loop](crate::Trainer) that makes its own batches. [`measured_on`](Self::measured_on) and
    /// [`counted_in`](Self::counted_in) say what a dataset would.
    pub fn without_data() -> Self {
        Self {
            train: None,
            validation: None,
            measured_on: None,
            counted_in: None,
            metrics: Vec::new(),
            derived: DerivedMetrics::default(),
            hooks: Hooks::default(),
            mapping: WeightsMapping::default(),
            flops_per_target: None,
            files: Vec::new(),
            weights: WeightsFile { name: WEIGHTS_FILE, holds: |_| true },
            update: OwnUpdate::default(),
        }
    }

    /// Validates on this data, every `train.validate_every` steps and at the end.
    pub fn validate(self, data: impl Dataset<Input = I, Target = T>) -> Self {
        Self { validation: Some(Arc::new(data)), ..self }
    }

    /// Runs each kind of block once, before the first step, on the micro-batch that `micro_batch` makes of a given number of samples, instead of on the first samples to
    /// train on: to measure what blocks keep inside (for `--dry-run` and the plan of memory) and how long they take (`pipeline.balance = "measured"`), and to see whether ranks can
    /// merge their running state. Any values of the right shapes will do.
    ///
    /// ```
    /// # use brigade::{Batch, Training};
    /// # use burn::prelude::*;
    /// let training: Training<Tensor<2>, Tensor<2>, _> = Training::without_data().measured_on(|samples, device| {
    ///     let zeros = Tensor::<2>::zeros([samples, 8], device);
    ///     Batch::new(zeros.clone(), zeros, samples)
    /// });
    /// ```
    pub fn measured_on(self, micro_batch: impl Fn(usize, &Device) -> Batch<I, T> + 'static) -> Self {
        Self { measured_on: Some(Box::new(micro_batch)), ..self }
    }

    /// What targets are called where they are counted, in the plural (`tokens`, say), and how many of them a sample has: instead of what a [`Dataset`] says, or where there is none.
    pub fn counted_in(self, unit: impl Into<String>, per_sample: usize) -> Self {
        Self { counted_in: Some((unit.into(), per_sample)), ..self }
    }

    /// Adds a metric, as [`Model::metric`] does: from the last block's output and a batch's target to a **sum** (shape `[1]`)
    /// over the valid targets. It is reported for steps and validations, divided by what the loss is divided by: the number of valid targets, or the sum
    /// of the weights if batches are [weighted](Batch::weighted); a metric must then multiply by the weights, as the loss does.
    pub fn metric(
        mut self,
        name: impl Into<String>,
        sum: impl Fn(O, T) -> Tensor<1> + Send + Sync + 'static,
    ) -> Self {
        self.metrics.push((name.into(), Box::new(sum)));
        self
    }

    /// Adds a metric derived from others, such as a score from counts: a function from the metrics of a step or a validation, which are means over all
    /// valid targets, to its value. It is reported, and may be watched, like the others.
    pub fn derived_metric(
        mut self,
        name: impl Into<String>,
        value: impl Fn(&SortedMap<String, f64>) -> f64 + Send + Sync + 'static,
    ) -> Self {
        self.derived.0.push((name.into(), Box::new(value)));
        self
    }

    /// Calls a hook after each update, on rank 0, with what the step found. This includes [skipped](StepReport::skipped) steps
    /// and steps repeated after a rollback, but not those that are rolled back. Time, memory and traffic in the report are
    /// those of rank 0.
    pub fn on_step<A: HookAnswer>(mut self, hook: impl FnMut(&StepReport) -> A + 'static) -> Self {
        self.hooks.add_on_step(hook);
        self
    }

    /// Calls a hook after each validation, on rank 0, with what it found.
    pub fn on_validation<A: HookAnswer>(
        mut self,
        hook: impl FnMut(&ValidationReport) -> A + 'static,
    ) -> Self {
        self.hooks.add_on_validation(hook);
        self
    }

    /// Where the parameters are in the weights file. Without it, each is a tensor with its own name.
    pub fn mapping(self, mapping: WeightsMapping) -> Self {
        Self { mapping, ..self }
    }

    /// At the end, writes only the adapters of a model (LoRA), and a head trained with them, into [`ADAPTERS_FILE`](crate::ADAPTERS_FILE) instead of all its weights. Give the
    /// [`ADAPTERS_CONFIG_FILE`](crate::ADAPTERS_CONFIG_FILE) that `peft` needs as a [file](Self::file).
    #[cfg(feature = "text")]
    pub fn adapters_only(self, adapters: &brigade_models::Adapters) -> Self {
        let holds = match adapters.head_modules().is_empty() {
            true => brigade_models::is_adapter,
            false => brigade_models::is_adapter_or_head,
        };
        Self { weights: WeightsFile { name: crate::folder::ADAPTERS_FILE, holds }, ..self }
    }

    /// Floating-point operations of forward and backward per target, for TFLOP/s and MFU in reports.
    pub fn flops_per_target(self, flops: f64) -> Self {
        Self { flops_per_target: Some(flops), ..self }
    }

    /// A file that belongs to the results (a tokenizer, say); rank 0 writes it into the run's folder when training begins. The name may be a
    /// path in that folder.
    pub fn file(mut self, name: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((name.into(), content.into()));
        self
    }

    /// The plan of a run with what is given here.
    pub(crate) fn plan(&self, plan: &RunPlan, settings: &Settings) -> Result<RunPlan, SettingError> {
        let mut plan = self.update.plan(plan, settings)?;
        plan.know_targets(settings.train.global_batch_size * self.targets_per_sample());
        Ok(plan)
    }

    /// What is given here that only the first model of a run has, in words.
    pub(crate) fn part_of_a_run(&self) -> Option<&'static str> {
        match self {
            Self { train: Some(_), .. } => Some("data to train on (`Training::on`)"),
            Self { validation: Some(_), .. } => Some("data to validate on (`Training::validate`)"),
            Self { hooks, .. } if !hooks.is_empty() => {
                Some("a hook (`Training::on_step` or `Training::on_validation`)")
            }
            Self { files, .. } if !files.is_empty() => Some("a file (`Training::file`)"),
            Self { weights, .. } if weights.name != WEIGHTS_FILE => Some("`Training::adapters_only`"),
            Self { flops_per_target: Some(_), .. } => Some("`Training::flops_per_target`"),
            Self { counted_in: Some(_), .. } => Some("`Training::counted_in`"),
            _ => None,
        }
    }

    /// The model with the metrics that were given here.
    pub(crate) fn add_metrics_to(&mut self, model: Model<I, O, T>) -> Model<I, O, T>
    where
        T: Clone,
    {
        self.metrics.drain(..).fold(model, |model, (name, sum)| model.metric(name, sum))
    }

    /// A micro-batch of `size` samples to run blocks on: the program's, or else the first samples to train on, from the beginning again where there are fewer.
    pub(crate) fn first_samples(&self, size: usize, device: &Device) -> anyhow::Result<Batch<I, T>> {
        if let Some(micro_batch) = &self.measured_on {
            return Ok(with_seed(device, 0, || micro_batch(size, device)));
        }
        let data = self.train.as_ref().context(
            "this run has no data of its own (`Training::without_data`); say what blocks run on (`Training::measured_on`)",
        )?;
        ensure!(data.samples() > 0, "there are no samples to train on");
        data.read((0..data.samples()).cycle().take(size).collect(), device, 0)
    }

    /// The first sample to train on, the one in the middle and the last, if there are any.
    pub(crate) fn spread_samples(&self, device: &Device) -> anyhow::Result<Option<Batch<I, T>>> {
        let Some(data) = self.train.as_ref().filter(|data| data.samples() > 0) else { return Ok(None) };
        let last = data.samples() - 1;
        let mut spread = vec![0, last / 2, last];
        spread.dedup();
        data.read(spread, device, 0).map(Some)
    }

    /// What a reporter takes of it.
    pub(crate) fn reported(&self) -> Reported<'_> {
        let unit = match (&self.counted_in, &self.train) {
            (Some((unit, _)), _) => unit.clone(),
            (None, Some(data)) => data.unit(),
            (None, None) => "samples".into(),
        };
        Reported { unit, flops_per_target: self.flops_per_target, files: &self.files }
    }

    /// The parts that samples to train on are drawn from, with their weights.
    pub(crate) fn shares(&self) -> Option<Vec<SourceShare>> {
        self.train.as_ref().map(|data| data.shares())
    }

    /// Targets of a sample; 1 where nothing says how many.
    pub(crate) fn targets_per_sample(&self) -> usize {
        match (&self.counted_in, &self.train) {
            (Some((_, per_sample)), _) => *per_sample,
            (None, Some(data)) => data.targets_per_sample(),
            (None, None) => 1,
        }
    }

    /// Samples to train on, and to validate on.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        let [train, validation] =
            [&self.train, &self.validation].map(|data| data.as_ref().map_or(0, |data| data.samples()));
        (train, validation)
    }
}

/// Checks that the names of a model's metrics are each there once, and none is taken.
pub(crate) fn checked_names<'a>(names: impl IntoIterator<Item = &'a String>) -> anyhow::Result<()> {
    let mut seen = SortedSet::from(["loss", "valid_targets", "target_weight"]);
    match names.into_iter().find(|name| !seen.insert(name.as_str())) {
        Some(name) => {
            anyhow::bail!("a metric is named `{name}`, but that name is taken; each metric needs its own")
        }
        None => Ok(()),
    }
}
