//! A parameter server: ranks that alone update parameters, and workers that push gradients to them.

use std::ops::Range;

use brigade_kernels::cast;
use burn::tensor::Tensor;

use crate::dist::Message;
use crate::error::{Error, Result};
use crate::metrics::{Bytes, Clock};
use crate::model::activation::Part;
use crate::step::gradients::accumulation::PairwiseSum;
use crate::step::strategy::rank_sums::held;
use crate::step::strategy::{DataParallel, ParameterServers, ReducedUnit, Reduction, Strategy};

/// The last ranks are servers: each has a contiguous shard of every unit with its optimizer state, and runs no micro-batches. The
/// others are workers, which pull the parameters, compute the gradients of a share of the global batch, and push them (Li et al.,
/// "Scaling distributed machine learning with the parameter server", OSDI 2014).
///
/// With a staleness of 0 all shares of a step are summed before the servers make one update, in the order and with the bits of
/// [`Synchronous`](super::Synchronous). Otherwise each share is an update as soon as it arrives, see [`Rounds`](super::Rounds).
///
/// Workers that are worlds of their own ask for rounds: see [`UntypedEngine::serve_round`](crate::UntypedEngine::serve_round).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AsyncServer(pub ParameterServers);

impl Strategy for AsyncServer {
    fn synchronizes(&self, step: u64) -> bool {
        self.0.rounds.is_none_or(|rounds| step.is_multiple_of(rounds.steps))
    }

    fn period(&self) -> usize {
        1
    }

    fn parameter_servers(&self) -> Option<ParameterServers> {
        Some(self.0)
    }

    fn reduction(&self, units: Vec<ReducedUnit>, data: DataParallel) -> Box<dyn Reduction> {
        let sums = units.iter().map(|_| PairwiseSum::new()).collect();
        Box::new(Pushed {
            units,
            sums,
            data,
            servers: self.0.count,
            is_summed: self.0.rounds.is_none(),
            bytes: Bytes::default(),
        })
    }
}

/// Gradients that are added up on a worker, and then over the workers on the servers.
struct Pushed {
    units: Vec<ReducedUnit>,
    sums: Vec<PairwiseSum<Tensor<1>>>,
    data: DataParallel,
    servers: usize,
    /// Whether the servers add up what the workers have. If not, a worker keeps its whole gradients.
    is_summed: bool,
    bytes: Bytes,
}

impl Reduction for Pushed {
    fn add(&mut self, unit: usize, gradient: Tensor<1>, _: &mut Clock) -> Result<()> {
        if !self.units[unit].served.is_empty() {
            self.sums[unit].push(held(gradient), |a, b| a + b);
            self.count();
        }
        Ok(())
    }

    fn complete(&mut self, _: usize) {}

    fn finish(&mut self, clock: &mut Clock) -> Result<Vec<Option<Tensor<1>>>> {
        let whole: Vec<_> = self.sums.iter_mut().map(|sum| sum.finish(|a, b| a + b)).collect();
        let workers = self.data.replicate.size().saturating_sub(self.servers);
        let found = match self.data.replicate.rank() {
            _ if !self.is_summed => whole,
            worker if worker < workers => {
                self.push(&whole, workers, clock)?;
                whole.iter().map(|_| None).collect()
            }
            _ => self.sum_of(workers, clock)?,
        };
        self.count();
        Ok(found)
    }

    fn reset(&mut self) {
        self.sums.iter_mut().for_each(|sum| *sum = PairwiseSum::new());
        self.count();
    }

    fn bytes(&self) -> Bytes {
        self.bytes
    }
}

impl Pushed {
    /// Sends each server its shards of all units, in one message.
    fn push(&self, whole: &[Option<Tensor<1>>], workers: usize, clock: &mut Clock) -> Result<()> {
        let part = |server: usize, unit: &ReducedUnit, whole: &Option<Tensor<1>>| {
            let (range, whole) = (unit.served.get(server)?, whole.clone()?);
            Some(flat(cast(whole.slice(range.clone()), self.data.dtype)))
        };
        let message = |server| -> Message {
            self.units.iter().zip(whole).map(|(unit, whole)| part(server, unit, whole)).collect()
        };
        let sent: Vec<_> = (0..self.servers)
            .map(|server| self.data.replicate.send(message(server), workers + server))
            .collect();
        sent.into_iter().try_for_each(|sent| clock.waiting("server", || sent.wait()))
    }

    /// Adds up this server's shards of all workers, pairwise in the workers' order.
    fn sum_of(&mut self, workers: usize, clock: &mut Clock) -> Result<Vec<Option<Tensor<1>>>> {
        let group = &self.data.replicate;
        let coming: Vec<_> = (0..workers).map(|worker| group.receive(worker, &self.data.device)).collect();
        for (worker, coming) in coming.into_iter().enumerate() {
            let message = clock.waiting("server", || coming.wait())?;
            for (number, part) in shards(message, &self.units, worker)? {
                self.sums[number].push(held(part), |a, b| a + b);
            }
        }
        Ok(self.sums.iter_mut().map(|sum| sum.finish(|a, b| a + b)).collect())
    }

    fn count(&mut self) {
        let kept = |(unit, sum): (&ReducedUnit, &PairwiseSum<_>)| sum.kept() * unit.elements;
        let kept: usize = self.units.iter().zip(&self.sums).map(kept).sum();
        self.bytes.set((size_of::<f32>() * kept) as u64);
    }
}

/// A tensor as a part of a message.
pub(crate) fn flat(tensor: Tensor<1>) -> Part {
    let shape = vec![tensor.dims()[0]];
    Part::Float(tensor, shape)
}

/// What a rank sent of this server's shards, by unit; all that it updates must be there.
fn shards(message: Message, units: &[ReducedUnit], from: usize) -> Result<Vec<(usize, Tensor<1>)>> {
    let served = |unit: &ReducedUnit| -> Option<Range<usize>> { unit.is_updated.then(|| unit.own.clone()) };
    let wanted: Vec<_> = units.iter().map(served).collect();
    checked(message, &wanted, from)
}

/// The tensors of a message, whose number and lengths must be as expected.
pub(crate) fn checked(
    message: Message,
    wanted: &[Option<Range<usize>>],
    from: usize,
) -> Result<Vec<(usize, Tensor<1>)>> {
    let mut found = Vec::new();
    let is_complete = message.len() == wanted.len();
    for (number, (part, wanted)) in message.into_iter().zip(wanted).enumerate() {
        match (part, wanted) {
            (Some(Part::Float(part, _)), Some(range)) if part.dims()[0] == range.len() => {
                found.push((number, part));
            }
            (None, None) => {}
            _ => return Err(foreign(from)),
        }
    }
    if is_complete { Ok(found) } else { Err(foreign(from)) }
}

fn foreign(from: usize) -> Error {
    Error::Model(format!("rank {from} sent shards of a different model"))
}
