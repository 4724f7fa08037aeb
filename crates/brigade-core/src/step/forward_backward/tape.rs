//! One micro-batch through a chunk of blocks, each in an autodiff graph of its own.

use brigade_kernels::{DeferredGradients, deferring, with_gradient};
use burn::tensor::Tensor;

use super::second_half::{BlockGradients, SecondHalf};
use crate::error::Result;
use crate::model::activation::{Part, Parts};
use crate::model::block::NamedBlock;
use crate::model::cache::BlockCache;
use crate::model::context::ForwardContext;
use crate::model::split_forward::ErasedBackwardWeights;

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

/// What a block's backward needs: its input, as it is in its graph, and its output in that graph, or
/// none if the block is to be run again.
struct Record {
    input: Parts,
    /// Whether the gradient of the input is wanted.
    wants_gradient: bool,
    output: Option<Parts>,
    /// Of a block that offers its backward in two halves.
    weights: Option<ErasedBackwardWeights>,
    place: Place,
}

/// A forward of a block, with what its backward needs.
struct Run {
    input: Parts,
    output: Parts,
    weights: Option<ErasedBackwardWeights>,
}

impl Run {
    /// From the same input, in a new graph.
    fn again(block: &NamedBlock, input: &Parts, wants_gradient: bool, place: Place) -> Result<Self> {
        let input = graph_input(input, wants_gradient);
        let (output, weights) = block.block.forward_split(input.clone(), &place.context(&block.name))?;
        Ok(Self { input, output, weights })
    }

    /// Backward from `root`, or from the gradient `above` of the output. Leaves the input's gradient in `upstream`. Where it `defers`,
    /// operations leave for the second half what they can.
    fn backward(
        self,
        (block, place): (&NamedBlock, Place),
        root: Option<Tensor<1>>,
        above: Upstream,
        defers: bool,
        upstream: &mut Upstream,
    ) -> BlockGradients {
        let Self { input, output, weights } = self;
        let later = weights.map(|weights| SecondHalf::offered(weights, &input, &output, &above));
        let root = root.or_else(|| {
            let terms =
                output.0.into_iter().zip(above).filter_map(|(part, gradient)| match (part, gradient) {
                    (Part::Float(y, _), Some(gradient)) if y.is_tracked() => Some(with_gradient(y, gradient)),
                    _ => None,
                });
            terms.reduce(|a, b| a + b)
        });
        let Some(root) = root.filter(Tensor::is_tracked) else {
            return BlockGradients { later, ..BlockGradients::default() };
        };
        let (mut gradients, mut deferred) = place.context(&block.name).naming(|| match defers {
            true => deferring(|| root.backward()),
            false => (root.backward(), DeferredGradients::default()),
        });
        *upstream = gradients_of(input, &mut gradients);
        let left = block.block.take_deferred(&mut deferred);
        let now = block.block.take_gradients(&mut gradients);
        BlockGradients { now, later: SecondHalf::with(later, left), was_mixed: false }
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
    /// Runs a block forward; its output goes into the next block as [`graph_input`]. With `again` its graph is
    /// dropped, and the block will be run again in the backward pass. (Run without a graph, some of Burn's operations
    /// give other last bits.)
    pub(crate) fn forward(
        &mut self,
        block: &NamedBlock,
        input: Parts,
        again: bool,
        place: Place,
    ) -> Result<Parts> {
        let wants_gradient = wants_gradient(&input);
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
            self.records.push(Record {
                input: inner(&input),
                wants_gradient,
                output: None,
                weights: None,
                place,
            });
        } else {
            self.records.push(Record { input, wants_gradient, output: Some(output), weights, place });
        }
        Ok(cut)
    }

    /// Whether the loss is computed in the last block's graph, from its output there.
    pub(crate) fn continues_into_loss(&self) -> bool {
        self.records.last().is_some_and(|record| record.weights.is_none() && record.output.is_some())
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
    /// backward in two halves this is the first one. Where it `defers`, operations leave for the second half what they can, unless
    /// the block's graph continues into the loss.
    ///
    /// The gradient `g` of an output `y` enters as the backward of `sum(y · g)`, whose derivative
    /// by `y` is exactly `g`.
    pub(crate) fn backward(
        &mut self,
        block: &NamedBlock,
        targets: f64,
        defers: bool,
        upstream: &mut Upstream,
    ) -> Result<BlockGradients> {
        let Some(Record { input, wants_gradient, output, weights, place }) = self.records.pop() else {
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
        let run = match output {
            Some(output) => Run { input, output, weights },
            None if root.is_some() => Run { input, output: Parts::default(), weights },
            None => Run::again(block, &input, wants_gradient, place)?,
        };
        let above = std::mem::take(upstream);
        if root.is_some() || !defers {
            return Ok(run.backward((block, place), root, above, false, upstream));
        }
        let input = run.input.clone();
        let found = run.backward((block, place), None, above.clone(), true, upstream);
        if !found.is_mixed() {
            return Ok(found);
        }
        // The parts of a gradient are added in the order that they have in one piece.
        let again = Run::again(block, &input, wants_gradient, place)?;
        let found = again.backward((block, place), None, above, false, upstream);
        Ok(BlockGradients { was_mixed: true, ..found })
    }

    /// Forgets the last block that is left, where neither it nor what comes before it is trained.
    pub(crate) fn skip(&mut self, block: &NamedBlock) {
        drop(self.records.pop());
        block.block.free_dropped_graphs();
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

/// The same values as constants of a graph. Layers tell by the device of their input whether they are trained.
fn constants(parts: &Parts) -> Parts {
    parts.map(|flat| flat.inner().autodiff(), Tensor::autodiff)
}

/// A block's input in its graph: leaves, or constants where nobody wants its gradient, because no parameter before it is trained.
pub(crate) fn graph_input(parts: &Parts, wants_gradient: bool) -> Parts {
    if wants_gradient { leaves(parts) } else { constants(parts) }
}

/// Whether these are leaves of a graph.
fn wants_gradient(parts: &Parts) -> bool {
    parts.0.iter().any(|part| matches!(part, Part::Float(flat, _) if flat.is_require_grad()))
}

/// A block's output as in training, from a graph that is dropped; `input` is as it is in that graph.
pub(crate) fn run_without_graph(block: &NamedBlock, input: Parts, at: Place) -> Result<Parts> {
    let (output, weights) = block.block.forward_split(input, &at.context(&block.name))?;
    let values = inner(&output);
    drop((output, weights));
    block.block.free_dropped_graphs();
    Ok(values)
}

/// A block's part of a prediction of what follows, without a graph.
pub(crate) fn predict_cached(block: &NamedBlock, input: Parts, cache: &mut BlockCache) -> Result<Parts> {
    block.block.valid().forward_cached(inner(&input), &block.name, cache)
}

/// A model's parts of one block, without a graph.
pub(crate) fn predict(block: &NamedBlock, input: Parts, place: Place) -> Result<Parts> {
    block.block.valid().forward(inner(&input), &place.context(&block.name))
}
