//! What a model is trained for: a chain with its loss and metrics.

use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;

use brigade_kernels::cast;
use burn::tensor::{FloatDType, Tensor};

use crate::error::{Error, Result};
use crate::model::activation::{Activation, Parts};
use crate::model::batch::Batch;
use crate::model::chain::Chain;
use crate::model::chain::predict::restore_output;

/// What the loss takes beside the output, of any type.
pub(crate) type Target = Rc<dyn Any>;

/// What is computed from the output of the last block, which has this name, and a target.
type OfOutput<R> = Box<dyn Fn(&str, Parts, Target) -> Result<R> + Send + Sync>;

/// The loss and the metrics of a model, whatever its output and its targets are.
pub(crate) struct Objective {
    /// The sum over valid targets, shape `[1]`, and the sums of the metrics that come with it, each of shape `[1]`.
    loss: OfOutput<(Tensor<1>, Vec<Tensor<1>>)>,
    /// Metrics of their own: sums over valid targets, shape `[1]`.
    metrics: Vec<OfOutput<Tensor<1>>>,
    /// The names of all metrics: those of the loss, then the others.
    pub names: Vec<String>,
    is_widened: bool,
}

impl Objective {
    /// An output as the loss takes it: in fp32, unless the loss widens it itself.
    pub(crate) fn input(&self, output: &Parts) -> Parts {
        if self.is_widened { widened(output) } else { output.clone() }
    }

    /// The loss, and the sums of the metrics that come with it.
    ///
    /// # Errors
    /// If the output is not of the loss's type, or the loss or a metric is no sum.
    pub(crate) fn loss(
        &self,
        last: &str,
        output: Parts,
        target: Target,
    ) -> Result<(Tensor<1>, Vec<Tensor<1>>)> {
        let (loss, sums) = (self.loss)(last, output, target)?;
        check_sum("the loss", &loss)?;
        let named = self.names.iter().zip(&sums);
        named.into_iter().try_for_each(|(name, sum)| check_sum(&format!("the metric `{name}`"), sum))?;
        Ok((loss, sums))
    }

    /// Whether it has metrics that pass over the output by themselves.
    pub(crate) fn has_metrics_of_their_own(&self) -> bool {
        !self.metrics.is_empty()
    }

    /// The sums of those.
    ///
    /// # Errors
    /// If the output is not of their type, or one is no sum.
    pub(crate) fn metrics(&self, last: &str, output: &Parts, target: &Target) -> Result<Vec<Tensor<1>>> {
        let names = &self.names[self.names.len() - self.metrics.len()..];
        let sum = |(metric, name): (&OfOutput<Tensor<1>>, &String)| {
            let sum = metric(last, output.clone(), target.clone())?;
            check_sum(&format!("the metric `{name}`"), &sum)?;
            Ok(sum)
        };
        self.metrics.iter().zip(names).map(sum).collect()
    }
}

/// Refuses numbers that are not added up: only their first would be reported.
fn check_sum(what: &str, sum: &Tensor<1>) -> Result<()> {
    match sum.dims() {
        [1] => Ok(()),
        shape => Err(Error::Model(format!(
            "{what} has the shape {shape:?}, but must be one number, the sum over all valid targets; add `.sum()`"
        ))),
    }
}

/// An output with its floats in fp32.
pub(crate) fn widened(output: &Parts) -> Parts {
    output.map_floats(|flat| cast(flat, FloatDType::F32))
}

fn of_output<O: Activation, T: Clone + 'static, R>(
    function: impl Fn(O, T) -> R + Send + Sync + 'static,
) -> OfOutput<R> {
    Box::new(move |last, output, target| {
        let output = restore_output(last, output)?;
        let target = target.downcast::<T>();
        let target =
            target.map_err(|_| Error::Model("a target does not have the type that the loss takes".into()))?;
        Ok(function(output, Rc::unwrap_or_clone(target)))
    })
}

/// The models that stand in for one in measurements with one of its micro-batches.
pub(crate) type Smaller<I, O, T> =
    Arc<dyn Fn(&Batch<I, T>) -> Option<[SmallerModel<I, O, T>; 2]> + Send + Sync>;

/// A chain of blocks with its loss: what Brigade trains.
pub struct Model<I, O, T> {
    pub(crate) chain: Chain<I, O>,
    pub(crate) objective: Objective,
    /// What is measured in its place.
    pub(crate) smaller: Option<Smaller<I, O, T>>,
}

/// A model that stands in for a larger one in measurements. It has the same number of blocks, and its micro-batch the same number of samples; but its widths,
/// tokens and other sizes are the larger model's, divided.
pub struct SmallerModel<I, O, T> {
    /// What they are divided by.
    pub divisor: usize,
    /// The model.
    pub model: Model<I, O, T>,
    /// A micro-batch for it.
    pub batch: Batch<I, T>,
}

impl<I: Activation, O: Activation, T> Model<I, O, T> {
    /// Sets the models that are measured instead of this one to find what its blocks need for a micro-batch: none if it is small enough
    /// itself. See [`measure_activations`](Self::measure_activations).
    ///
    /// A run on a GPU measures a model that says so, on the CPU: blocks then have all their tensors in fields, which are copied, and the loss has none of its own.
    pub fn measured_by(
        mut self,
        smaller: impl Fn(&Batch<I, T>) -> Option<[SmallerModel<I, O, T>; 2]> + Send + Sync + 'static,
    ) -> Self {
        self.smaller = Some(Arc::new(smaller));
        self
    }

    /// Whether it [is measured](Self::measured_by) by smaller models where it is large, and so in little time on any device.
    pub fn is_soon_measured(&self) -> bool {
        self.smaller.is_some()
    }

    /// Adds a metric: from the last block's output and a batch's target to a **sum** (shape `[1]`) over the valid targets, as
    /// the [loss](Chain::loss) is one. Steps and evaluations report it divided by what the loss is divided by: the number of valid targets of the whole
    /// global batch, or the sum of their [weights](crate::Batch::weighted), by which a metric must then multiply, as the loss does. It has the same bits
    /// on any mesh: the ranks' sums are added without rounding. No gradient flows through it.
    pub fn metric(
        mut self,
        name: impl Into<String>,
        sum: impl Fn(O, T) -> Tensor<1> + Send + Sync + 'static,
    ) -> Self
    where
        T: Clone + 'static,
    {
        self.objective.names.push(name.into());
        self.objective.metrics.push(of_output(sum));
        self
    }

    /// The blocks.
    pub fn chain(&self) -> &Chain<I, O> {
        &self.chain
    }

    /// The names of all metrics.
    pub fn metric_names(&self) -> &[String] {
        &self.objective.names
    }

    /// The blocks, to initialise or load them.
    pub fn chain_mut(&mut self) -> &mut Chain<I, O> {
        &mut self.chain
    }

    /// The blocks alone, for inference.
    pub fn into_chain(self) -> Chain<I, O> {
        self.chain
    }
}

impl<I: Activation, O: Activation> Chain<I, O> {
    /// Completes the model with its loss: from the last block's output and a batch's target to the
    /// **sum** (shape `[1]`) of the losses over the valid targets, not their mean. Brigade divides
    /// by the number of valid targets of the whole global batch, or by their [weights](crate::Batch::weighted). Targets are of any type that owns what it has and can be cloned.
    pub fn loss<T: Clone + 'static>(
        self,
        loss: impl Fn(O, T) -> Tensor<1> + Send + Sync + 'static,
    ) -> Model<I, O, T> {
        self.with_objective(Vec::new(), move |output, target| (loss(output, target), Vec::new()))
    }

    /// Like [`loss`](Self::loss), with a function that also returns the sums of metrics: those that cost little along with the loss, but
    /// a separate pass over the output otherwise. They are as in [`Model::metric`]. `loss` returns one per name.
    pub fn loss_with_metrics<T: Clone + 'static, S: Into<Vec<Tensor<1>>>>(
        self,
        names: impl IntoIterator<Item: Into<String>>,
        loss: impl Fn(O, T) -> (Tensor<1>, S) + Send + Sync + 'static,
    ) -> Model<I, O, T> {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        let count = names.len();
        self.with_objective(names, move |output, target| {
            let (loss, sums) = loss(output, target);
            let sums = sums.into();
            assert_eq!(sums.len(), count, "a loss gives as many sums as its metrics have names");
            (loss, sums)
        })
    }

    fn with_objective<T: Clone + 'static>(
        self,
        names: Vec<String>,
        loss: impl Fn(O, T) -> (Tensor<1>, Vec<Tensor<1>>) + Send + Sync + 'static,
    ) -> Model<I, O, T> {
        let (loss, is_widened) = (of_output(loss), O::is_widened_for_loss());
        let objective = Objective { loss, metrics: Vec::new(), names, is_widened };
        Model { chain: self, objective, smaller: None }
    }
}
