//! What a run needs besides the model: data, metrics, files.

mod validation;

use std::sync::Arc;

use brigade_core::{Activation, Model};
use brigade_models::WeightsMapping;
use burn::tensor::Tensor;

use crate::dataset::Dataset;

pub(crate) use validation::MicroBatchSource;

/// A metric: from the model's output and a batch's target to a sum over the valid targets, shape `[1]`.
type Metric<O, T> = Box<dyn Fn(O, T) -> Tensor<1> + Send + Sync>;

/// What [`Session::train`](crate::Session::train) and [`Session::prepare`](crate::Session::prepare) need besides the model: data
/// `D`, and what is to happen during the run. `O` is the model's output.
///
/// ```no_run
/// # use brigade::{Chain, Training, samples};
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
///     });
/// session.train(model, training)?;
/// # Ok(())
/// # })
/// # }
/// ```
pub struct Training<D: Dataset, O> {
    pub(crate) train: Arc<D>,
    pub(crate) validation: Option<Arc<dyn MicroBatchSource<D::Input, D::Target>>>,
    metrics: Vec<(String, Metric<O, D::Target>)>,
    pub(crate) mapping: WeightsMapping,
    pub(crate) flops_per_target: Option<f64>,
    pub(crate) files: Vec<(String, Vec<u8>)>,
}

impl<D: Dataset, O: Activation> Training<D, O> {
    /// Trains on `train`. Data that is used elsewhere, too, can be given as an [`Arc`].
    pub fn on(train: D) -> Self {
        Self {
            train: Arc::new(train),
            validation: None,
            metrics: Vec::new(),
            mapping: WeightsMapping::default(),
            flops_per_target: None,
            files: Vec::new(),
        }
    }

    /// Validates on these samples, every `train.validate_every` steps and at the end.
    pub fn validate<V>(mut self, data: V) -> Self
    where
        V: Dataset<Input = D::Input, Target = D::Target>,
    {
        self.validation = Some(Arc::new(data));
        self
    }

    /// Adds a metric, as [`Model::metric`] does: from the last block's output and a batch's target to a **sum** (shape `[1]`)
    /// over the valid targets. It is reported for steps and validations, divided by the number of valid targets.
    pub fn metric(
        mut self,
        name: impl Into<String>,
        sum: impl Fn(O, D::Target) -> Tensor<1> + Send + Sync + 'static,
    ) -> Self {
        self.metrics.push((name.into(), Box::new(sum)));
        self
    }

    /// Where the parameters are in the file of weights. Without it, each is a tensor of its own name.
    pub fn mapping(mut self, mapping: WeightsMapping) -> Self {
        self.mapping = mapping;
        self
    }

    /// Floating-point operations of forward and backward per target, for TFLOP/s and MFU in reports.
    pub fn flops_per_target(mut self, flops: f64) -> Self {
        self.flops_per_target = Some(flops);
        self
    }

    /// A file that belongs to the results (a tokenizer, say); rank 0 writes it into the run's folder when training begins.
    pub fn file(mut self, name: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((name.into(), content.into()));
        self
    }

    /// The model with the metrics that were given here.
    pub(crate) fn add_metrics_to(
        &mut self,
        model: Model<D::Input, O, D::Target>,
    ) -> Model<D::Input, O, D::Target> {
        let add =
            |model: Model<_, _, _>, (name, sum): (String, Metric<O, D::Target>)| model.metric(name, sum);
        self.metrics.drain(..).fold(model, add)
    }
}
