//! Where a value that is not finite came from.

use std::fmt;

use burn::tensor::Tensor;

use crate::activation::{Part, Parts};
use crate::collectives::Collectives;
use crate::error::{Error, Result};
use crate::model::NamedBlock;
use crate::tape::Tape;

/// The first place, in the order of ranks, micro-batches and the pass through the blocks, where a
/// value was not finite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Culprit {
    /// The rank; none if every rank's own values are finite and only their sum is not.
    pub rank: Option<usize>,
    /// The rank's micro-batch, counted from 0.
    pub micro_batch: usize,
    /// Name of the block.
    pub block: String,
    /// `output` in the forward pass, `loss`, or `gradient` in the backward pass.
    pub place: &'static str,
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            Some(rank) => write!(
                f,
                "first seen on rank {rank}, micro-batch {}, in the {} of block `{}`",
                self.micro_batch, self.place, self.block
            ),
            None => write!(f, "every rank's own values are finite, their sum over the ranks overflows"),
        }
    }
}

const PLACES: [&str; 3] = ["output", "loss", "gradient"];

/// Runs this rank's micro-batches again, without reducing anything, and agrees with the others on
/// the first place that is not finite. The weights are still those of the failed step, so the
/// search sees what the step saw.
pub(crate) fn diagnose<T>(
    blocks: &[NamedBlock],
    runs: impl Iterator<Item = (Parts, T)>,
    loss: impl Fn(Parts, T) -> Result<Tensor<1>>,
    collectives: &dyn Collectives,
) -> Result<Culprit> {
    let mut found = None;
    for (micro_batch, (input, target)) in runs.enumerate() {
        if let Some((block, place)) = search(blocks, input, target, &loss)? {
            found = Some([1.0, micro_batch as f64, block as f64, place as f64]);
            break;
        }
    }
    let all = collectives.exchange(found.unwrap_or([0.0; 4]).to_vec()).wait()?;
    let first = all.iter().enumerate().find(|(_, values)| values[0] == 1.0);
    Ok(match first {
        Some((rank, values)) => Culprit {
            rank: Some(rank),
            micro_batch: values[1] as usize,
            block: blocks.get(values[2] as usize).map(|b| b.name.clone()).unwrap_or_default(),
            place: PLACES.get(values[3] as usize).copied().unwrap_or("output"),
        },
        None => Culprit { rank: None, micro_batch: 0, block: String::new(), place: PLACES[2] },
    })
}

/// Block and place (an index into [`PLACES`]) of the first value of one micro-batch that is not finite.
fn search<T>(
    blocks: &[NamedBlock],
    input: Parts,
    target: T,
    loss: &impl Fn(Parts, T) -> Result<Tensor<1>>,
) -> Result<Option<(usize, usize)>> {
    let mut tape = Tape::forward(blocks, input)?;
    for (index, output) in tape.outputs().enumerate() {
        for part in &output.0 {
            if let Part::Float(flat, _) = part
                && !finite(flat.clone())?
            {
                return Ok(Some((index, 0)));
            }
        }
    }
    let loss = loss(tape.take_output(), target)?;
    if !finite(loss.clone())? {
        return Ok(Some((blocks.len() - 1, 1)));
    }
    let mut root = Some(loss);
    for (index, NamedBlock { block, .. }) in blocks.iter().enumerate().rev() {
        for gradient in tape.backward(index, block.as_ref(), root.take()).into_values() {
            if !finite(gradient)? {
                return Ok(Some((index, 2)));
            }
        }
    }
    Ok(None)
}

fn finite(flat: Tensor<1>) -> Result<bool> {
    let values = flat.inner().try_into_vec_as::<f32>().map_err(|e| Error::Device(e.to_string()))?;
    Ok(values.iter().all(|value| value.is_finite()))
}
