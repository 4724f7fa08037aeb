//! One micro-batch through the blocks, each in an autodiff graph of its own.

use std::collections::BTreeMap;

use burn::tensor::Tensor;

use crate::activation::{Part, Parts};
use crate::block::AnyBlock;
use crate::error::Result;
use crate::model::NamedBlock;

/// What a block's backward needs: its input as leaves of its graph, and its output in that graph.
struct Record {
    input: Parts,
    output: Parts,
}

/// The records of one forward pass, consumed by the backward pass from the last block to the first.
pub(crate) struct Tape {
    records: Vec<Option<Record>>,
    /// Gradient of the loss with respect to the output of the block whose backward comes next,
    /// by part; none where no gradient flows.
    upstream: Vec<Option<Tensor<1>>>,
}

impl Tape {
    /// Runs the blocks forward. Each block's input is cut off from the graph before it.
    pub(crate) fn forward(blocks: &[NamedBlock], input: Parts) -> Result<Self> {
        let mut records: Vec<Option<Record>> = Vec::with_capacity(blocks.len());
        for NamedBlock { name, block } in blocks {
            let input = match records.last() {
                Some(Some(before)) => leaves(&before.output),
                _ => input.clone(),
            };
            let output = block.forward(name, input.clone())?;
            records.push(Some(Record { input, output }));
        }
        Ok(Self { records, upstream: Vec::new() })
    }

    /// The last block's output, in that block's graph, for the loss.
    pub(crate) fn take_output(&mut self) -> Parts {
        match self.records.last_mut() {
            Some(Some(record)) => std::mem::take(&mut record.output),
            _ => Parts::default(),
        }
    }

    /// Backward of one block: from the loss (the last block) or from the gradient that the block
    /// after it left. Gives the parameters' gradients by path and keeps the input's gradient for
    /// the block before.
    ///
    /// The gradient `g` of an output `y` enters as the backward of `sum(y · g)`, whose derivative
    /// by `y` is exactly `g`.
    pub(crate) fn backward(
        &mut self,
        index: usize,
        block: &dyn AnyBlock,
        loss: Option<Tensor<1>>,
    ) -> BTreeMap<String, Tensor<1>> {
        let Some(Record { input, output }) = self.records[index].take() else { return BTreeMap::new() };
        let upstream = std::mem::take(&mut self.upstream);
        let root = loss.or_else(|| {
            let terms =
                output.0.into_iter().zip(upstream).filter_map(|(part, gradient)| match (part, gradient) {
                    (Part::Float(y, _), Some(gradient)) if y.is_tracked() => Some((y * gradient).sum()),
                    _ => None,
                });
            terms.reduce(|a, b| a + b)
        });
        let Some(root) = root.filter(Tensor::is_tracked) else { return BTreeMap::new() };
        let mut gradients = root.backward();
        self.upstream = input
            .0
            .into_iter()
            .map(|part| match part {
                Part::Float(leaf, _) => leaf.grad_remove(&mut gradients),
                Part::Int(..) => None,
            })
            .collect();
        block.take_gradients(&mut gradients)
    }

    /// The outputs of every block, for a search after values that are not finite.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = &Parts> {
        self.records.iter().flatten().map(|record| &record.output)
    }
}

/// The same values as leaves of a new graph.
fn leaves(output: &Parts) -> Parts {
    let leaf = |part: &Part| match part {
        Part::Float(flat, shape) => {
            Part::Float(flat.clone().inner().autodiff().require_grad(), shape.clone())
        }
        Part::Int(flat, shape) => Part::Int(flat.clone(), shape.clone()),
    };
    Parts(output.0.iter().map(leaf).collect())
}
