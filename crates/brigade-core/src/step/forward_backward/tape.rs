//! One micro-batch through a chunk of blocks, each in an autodiff graph of its own.

use std::collections::BTreeMap;

use burn::tensor::Tensor;

use crate::error::{Error, Result};
use crate::model::activation::{Part, Parts};
use crate::model::block::NamedBlock;
use crate::model::context::ForwardContext;
use crate::model::split_forward::{ErasedBackwardWeights, ParameterGradients};

/// Gradients of an activation's parts; none where no gradient flows.
pub(crate) type Upstream = Vec<Option<Tensor<1>>>;

/// Where in training a pass through blocks stands.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub seed: u64,
    pub step: u64,
    /// Within the global batch.
    pub micro_batch: usize,
    pub training: bool,
}

impl Place {
    pub(crate) fn context<'a>(&self, block: &'a str) -> ForwardContext<'a> {
        let Self { seed, step, micro_batch, training } = *self;
        ForwardContext { seed, step, micro_batch, block, training }
    }
}

/// What a block's backward needs: its input, as leaves of its graph, and its output in that graph, or
/// none if the block is to be run again.
struct Record {
    input: Parts,
    output: Option<Parts>,
    /// Of a block that offers its backward in two halves.
    weights: Option<ErasedBackwardWeights>,
    place: Place,
}

/// What a block's backward found for its parameters, by path.
#[derive(Default)]
pub(crate) struct BlockGradients {
    /// What the graph led to.
    pub now: BTreeMap<String, Tensor<1>>,
    /// What is still to be computed, where the block offers its backward in two halves.
    pub later: Option<WeightsHalf>,
}

/// The second half of a block's backward, ready to run.
pub(crate) struct WeightsHalf {
    weights: ErasedBackwardWeights,
    /// The gradient of the block's output; none where none flows.
    gradient: Option<Parts>,
    /// Of that gradient, and of the block's input.
    pub bytes: u64,
}

impl WeightsHalf {
    fn new(weights: ErasedBackwardWeights, input: &Parts, output: &Parts, upstream: &Upstream) -> Self {
        let gradient = |(part, gradient): (&Part, &Option<Tensor<1>>)| match (part, gradient) {
            (Part::Float(_, shape), Some(gradient)) => Part::Float(gradient.clone(), shape.clone()),
            (Part::Float(y, shape), None) => Part::Float(y.clone().inner().zeros_like(), shape.clone()),
            (int, _) => int.clone(),
        };
        let flows = upstream.iter().any(Option::is_some);
        let gradient = flows.then(|| Parts(output.0.iter().zip(upstream).map(gradient).collect()));
        let bytes = input.bytes() + gradient.as_ref().map_or(0, Parts::bytes);
        Self { weights, gradient, bytes }
    }

    /// Computes the gradients. `block`: its name, for errors.
    pub(crate) fn run(self, block: &str) -> Result<ParameterGradients> {
        let Some(gradient) = self.gradient else { return Ok(ParameterGradients::default()) };
        let given = gradient.describe();
        (self.weights)(gradient).ok_or_else(|| Error::Activation {
            block: format!("{block}, in the second half of its backward"),
            expected: "the gradient of its output".into(),
            given,
        })
    }
}

/// The records of one forward pass through a chunk, consumed by the backward pass from the last block
/// to the first.
#[derive(Default)]
pub(crate) struct Tape {
    records: Vec<Record>,
    /// Shapes of the parts that went into the first block.
    pub input_shapes: Vec<Vec<usize>>,
    /// Shapes of the parts that came out of the last block.
    pub output_shapes: Vec<Vec<usize>>,
    /// The model's loss, and its graph's leaves where it has a graph of its own.
    loss: Option<(Tensor<1>, Option<Parts>)>,
}

impl Tape {
    /// Runs a block forward; its output goes into the next block as [`leaves`]. With `again` its graph is
    /// dropped, and the block will be run again in the backward pass. (Run without a graph, some of Burn's operations
    /// give other last bits.)
    pub(crate) fn forward(
        &mut self,
        block: &NamedBlock,
        input: Parts,
        again: bool,
        place: Place,
    ) -> Result<Parts> {
        let (output, weights) = block.block.forward_split(input.clone(), &place.context(&block.name))?;
        let cut = inner(&output);
        let shapes = |parts: &Parts| parts.0.iter().map(|part| part.shape().to_vec()).collect();
        if self.records.is_empty() {
            self.input_shapes = shapes(&input);
        }
        self.output_shapes = shapes(&cut);
        if again {
            drop((output, weights));
            block.block.free_dropped_graphs();
            self.records.push(Record { input: inner(&input), output: None, weights: None, place });
        } else {
            self.records.push(Record { input, output: Some(output), weights, place });
        }
        Ok(cut)
    }

    /// What the loss is computed from: the last block's output in that block's graph, or leaves of a new
    /// one, where that block is run again or its second half needs the output's gradient. It is to be handed back with
    /// [`set_loss`](Self::set_loss).
    pub(crate) fn loss_input(&mut self, output: &Parts) -> (Parts, Option<Parts>) {
        let at_once = self.records.last_mut().filter(|record| record.weights.is_none());
        match at_once.and_then(|record| record.output.take()) {
            Some(output) => (output, None),
            None => {
                let leaves = leaves(output);
                (leaves.clone(), Some(leaves))
            }
        }
    }

    pub(crate) fn set_loss(&mut self, loss: Tensor<1>, leaves: Option<Parts>) {
        self.loss = Some((loss, leaves));
    }

    /// Backward of the last block that is left: from the loss, or from the gradient of its output.
    /// Gives the parameters' gradients by path, and leaves the input's gradient in `upstream`. Of a block that offers its
    /// backward in two halves this is the first one.
    ///
    /// The gradient `g` of an output `y` enters as the backward of `sum(y · g)`, whose derivative
    /// by `y` is exactly `g`.
    pub(crate) fn backward(
        &mut self,
        block: &NamedBlock,
        targets: f64,
        upstream: &mut Upstream,
    ) -> Result<BlockGradients> {
        let Some(Record { mut input, output, mut weights, place }) = self.records.pop() else {
            return Ok(BlockGradients::default());
        };
        let mut root = None;
        match self.loss.take() {
            Some((loss, None)) => root = Some(loss.div_scalar(targets)),
            Some((loss, Some(leaves))) => {
                let loss = loss.div_scalar(targets);
                if loss.is_tracked() {
                    let mut gradients = loss.backward();
                    *upstream = gradients_of(leaves, &mut gradients);
                }
            }
            None => {}
        }
        let output = match output {
            Some(output) => output,
            None if root.is_some() => Parts::default(),
            None => {
                input = leaves(&input);
                let context = place.context(&block.name);
                let (output, of_weights) = block.block.forward_split(input.clone(), &context)?;
                weights = of_weights;
                output
            }
        };
        let above = std::mem::take(upstream);
        let later = weights.map(|weights| WeightsHalf::new(weights, &input, &output, &above));
        let root = root.or_else(|| {
            let terms =
                output.0.into_iter().zip(above).filter_map(|(part, gradient)| match (part, gradient) {
                    (Part::Float(y, _), Some(gradient)) if y.is_tracked() => Some((y * gradient).sum()),
                    _ => None,
                });
            terms.reduce(|a, b| a + b)
        });
        let Some(root) = root.filter(Tensor::is_tracked) else {
            return Ok(BlockGradients { now: BTreeMap::new(), later });
        };
        let mut gradients = root.backward();
        *upstream = gradients_of(input, &mut gradients);
        Ok(BlockGradients { now: block.block.take_gradients(&mut gradients), later })
    }

    /// Bytes of what it keeps at the cuts between blocks.
    pub(crate) fn bytes(&self) -> u64 {
        let inputs: u64 = self.records.iter().map(|record| record.input.bytes()).sum();
        let output = self.records.last().and_then(|record| record.output.as_ref());
        inputs + output.map_or(0, Parts::bytes)
    }
}

fn gradients_of(leaves: Parts, gradients: &mut burn::tensor::Gradients) -> Upstream {
    let gradient = |part| match part {
        Part::Float(leaf, _) => Tensor::grad_remove(&leaf, gradients),
        Part::Int(..) => None,
    };
    leaves.0.into_iter().map(gradient).collect()
}

/// The same values without a graph.
pub(crate) fn inner(parts: &Parts) -> Parts {
    parts.map(Tensor::inner, Tensor::inner)
}

/// The same values as leaves of a new graph.
pub(crate) fn leaves(parts: &Parts) -> Parts {
    parts.map(|flat| flat.inner().autodiff().require_grad(), Tensor::autodiff)
}

/// The model's input as constants of a graph. Layers tell by the device of their input whether they are trained.
pub(crate) fn constants(parts: &Parts) -> Parts {
    parts.map(|flat| flat.inner().autodiff(), Tensor::autodiff)
}

/// A model's parts of one block, without a graph.
pub(crate) fn predict(block: &NamedBlock, input: Parts, place: Place) -> Result<Parts> {
    block.block.valid().forward(inner(&input), &place.context(&block.name))
}
