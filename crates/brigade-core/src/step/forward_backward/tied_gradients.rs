//! Gradients of shared parameters on their way, within the backward pass of a micro-batch, to the block that owns them.

use brigade_kernels::cast;
use brigade_sorted::SortedMap;
use burn::tensor::{DType, Device, FloatDType, Tensor};

use crate::model::activation::Part;
use crate::model::chain::ties::Shared;
use crate::sharding::store::StoredUnit;
use crate::step::forward_backward::tape::Upstream;
use crate::step::gradients::accumulation::PairwiseSum;

/// The gradients that later blocks found for parameters that earlier blocks own, one whole buffer each.
///
/// A block that reads a shared parameter adds its gradient to the buffer, and the owner takes the sum. Between stages the
/// buffers are sent in the message that carries the activation's gradient. So a shared parameter's gradient is one sum a
/// micro-batch, in the order of the backward pass, on whichever stages the blocks are, and costs no traffic where they are
/// on one stage. [`TiedSums`] accumulate them if they are sent to other stages only once a step.
#[derive(Default)]
pub(crate) struct TiedGradients(SortedMap<String, Tensor<1>>);

impl TiedGradients {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Splits a message from the next stage into the activation's gradient and the tied gradients, which are its last parts, one for
    /// each of `shared`.
    pub(crate) fn receive<'a>(
        mut upstream: Upstream,
        shared: impl DoubleEndedIterator<Item = &'a Shared>,
    ) -> (Upstream, Self) {
        let mut relayed = SortedMap::new();
        for shared in shared.rev() {
            if let Some(Some(gradient)) = upstream.pop() {
                relayed.insert(shared.name.clone(), gradient);
            }
        }
        (upstream, Self(relayed))
    }

    /// The parts to append to the message to the previous stage.
    pub(crate) fn send<'a>(
        mut self,
        shared: impl Iterator<Item = &'a Shared>,
    ) -> impl Iterator<Item = Option<Part>> {
        shared.map(move |shared| {
            let flat = self.0.remove(&shared.name)?;
            let shape = vec![flat.dims()[0]];
            Some(Part::Float(flat, shape))
        })
    }

    /// Adds a block's gradients of one of the units that it reads. Returns the sum of all gradients found for the unit if this block owns it;
    /// otherwise keeps the sum for an earlier block.
    pub(crate) fn accumulate(
        &mut self,
        stored: &StoredUnit,
        block: usize,
        found: &mut SortedMap<String, Tensor<1>>,
        device: &Device,
    ) -> Option<Tensor<1>> {
        let user = stored.unit.users.iter().find(|user| user.block == block)?;
        let is_owner = block == stored.unit.owner_block;
        let has_some = user.params.iter().any(|(path, _)| found.contains_key(path));
        let relayed = self.0.remove(&stored.unit.name);
        let own = (has_some || (is_owner && relayed.is_none()))
            .then(|| stored.unit.pack(user, found, stored.length, device));
        let sum = match (own, relayed) {
            // Sums over micro-batches are in fp32, whatever blocks compute in.
            (Some(own), Some(relayed)) if relayed.dtype() == DType::F32 => {
                Some(cast(own, FloatDType::F32) + relayed)
            }
            (Some(own), Some(relayed)) => Some(own + relayed),
            (own, relayed) => own.or(relayed),
        };
        if is_owner {
            return sum;
        }
        if let Some(sum) = sum {
            self.0.insert(stored.unit.name.clone(), sum);
        }
        None
    }
}

/// Gradients of shared parameters that a chunk holds for blocks before it, summed over micro-batches in fp32.
#[derive(Default)]
pub(crate) struct TiedSums(SortedMap<String, PairwiseSum<Tensor<1>>>);

impl TiedSums {
    /// Adds a micro-batch's gradients. Returns the sums with the last one, and nothing before.
    pub(crate) fn add(&mut self, tied: TiedGradients, is_last: bool) -> TiedGradients {
        for (name, gradient) in tied.0 {
            let gradient = cast(gradient, FloatDType::F32);
            self.0.entry(name).or_default().push(gradient, |a, b| a + b);
        }
        if !is_last {
            return TiedGradients::new();
        }
        let sums = std::mem::take(&mut self.0).into_iter();
        let whole =
            |(name, mut sum): (String, PairwiseSum<Tensor<1>>)| Some((name, sum.finish(|a, b| a + b)?));
        TiedGradients(sums.filter_map(whole).collect())
    }

    /// What it holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.values().flat_map(PairwiseSum::terms).map(|sum| 4 * sum.dims()[0] as u64).sum()
    }
}
