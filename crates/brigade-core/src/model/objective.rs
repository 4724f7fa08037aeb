//! What a model is trained for: a chain with its loss and metrics.

use std::sync::Arc;

use burn::tensor::Tensor;

use crate::model::activation::Activation;
use crate::model::batch::Batch;
use crate::model::chain::Chain;

/// The loss of a model: from output and target to the sum over valid targets, shape `[1]`, and to the sums of the metrics that
/// it computes, each of shape `[1]`.
pub(crate) type Loss<O, T> = Arc<dyn Fn(O, T) -> (Tensor<1>, Vec<Tensor<1>>) + Send + Sync>;

/// A metric of its own: from output and target to a sum over valid targets, shape `[1]`.
pub(crate) type Metric<O, T> = Arc<dyn Fn(O, T) -> Tensor<1> + Send + Sync>;

/// The models that stand in for one in measurements with one of its micro-batches.
pub(crate) type Smaller<I, O, T> =
    Arc<dyn Fn(&Batch<I, T>) -> Option<[SmallerModel<I, O, T>; 2]> + Send + Sync>;

/// A chain of blocks with its loss: what Brigade trains.
pub struct Model<I, O, T> {
    pub(crate) chain: Chain<I, O>,
    pub(crate) loss: Loss<O, T>,
    /// The names of all metrics: those of the loss, then the others.
    pub(crate) names: Vec<String>,
    pub(crate) metrics: Vec<Metric<O, T>>,
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
    ) -> Self {
        self.names.push(name.into());
        self.metrics.push(Arc::new(sum));
        self
    }

    /// The blocks.
    pub fn chain(&self) -> &Chain<I, O> {
        &self.chain
    }

    /// The names of all metrics.
    pub fn metric_names(&self) -> &[String] {
        &self.names
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
    /// by the number of valid targets of the whole global batch, or by their [weights](crate::Batch::weighted).
    pub fn loss<T>(self, loss: impl Fn(O, T) -> Tensor<1> + Send + Sync + 'static) -> Model<I, O, T> {
        let loss = move |output, target| (loss(output, target), Vec::new());
        Model { chain: self, loss: Arc::new(loss), names: Vec::new(), metrics: Vec::new(), smaller: None }
    }

    /// Like [`loss`](Self::loss), with a function that also returns the sums of metrics: those that cost little along with the loss, but
    /// a separate pass over the output otherwise. They are as in [`Model::metric`]. `loss` returns one per name.
    pub fn loss_with_metrics<T, S: Into<Vec<Tensor<1>>>>(
        self,
        names: impl IntoIterator<Item: Into<String>>,
        loss: impl Fn(O, T) -> (Tensor<1>, S) + Send + Sync + 'static,
    ) -> Model<I, O, T> {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        let count = names.len();
        let loss = move |output, target| {
            let (loss, sums) = loss(output, target);
            let sums = sums.into();
            assert_eq!(sums.len(), count, "a loss gives as many sums as its metrics have names");
            (loss, sums)
        };
        Model { chain: self, loss: Arc::new(loss), names, metrics: Vec::new(), smaller: None }
    }
}
