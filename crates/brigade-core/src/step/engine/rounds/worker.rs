//! A worker in a round: it takes one share after the other, and pushes its gradients.

use std::sync::Arc;
use std::time::Instant;

use crate::dist::{Collectives, Message, Pending, Traffic};
use crate::error::{BoxError, Error, Result};
use crate::metrics::{Clock, Memory};
use crate::model::activation::Part;
use crate::optim::{clip_factor, sum_of_squares, tile};
use crate::sharding::store::ParameterStore;
use crate::step::engine::UntypedEngine;
use crate::step::engine::rounds::Share;
use crate::step::engine::rounds::message::{Given as GivenShare, Request, found as found_part, read_answer};
use crate::step::forward_backward::interpreter::{PassMode, TargetWeight};
use crate::step::forward_backward::micro_batches::MicroBatches;
use crate::step::gradients::accumulation::PairwiseSum;
use crate::step::gradients::metric_sums::MetricSums;
use crate::step::report::StepReport;
use crate::step::settings::NonFinite;
use crate::step::strategy::async_server::{checked, flat};
use crate::step::window::Window;
use brigade_kernels::cast;
use burn::tensor::Tensor;

/// The servers that a worker works for.
pub(super) struct Servers {
    group: Arc<dyn Collectives>,
    /// The first one's number in the group.
    first: usize,
    /// Whether they are a world of their own, which has to be told what is found in each share.
    are_separate: bool,
}

impl Servers {
    pub(super) fn in_this_world(store: &ParameterStore) -> Self {
        Self { group: store.groups.data.clone(), first: store.workers(), are_separate: false }
    }

    fn of_their_own(group: &Arc<dyn Collectives>) -> Self {
        Self { group: group.clone(), first: 1, are_separate: true }
    }
}

/// Reads the micro-batches of a share.
pub(in crate::step::engine) type ReadShare<'a> =
    dyn FnMut(Share) -> Result<Box<dyn MicroBatches>, BoxError> + 'a;

impl UntypedEngine {
    pub(in crate::step::engine) fn work_for(
        &mut self,
        group: &Arc<dyn Collectives>,
        learning_rate: &dyn Fn(u64) -> f64,
        read: &mut ReadShare<'_>,
    ) -> Result<()> {
        let (mut clock, servers) = (Clock::default(), Servers::of_their_own(group));
        let step = self.step;
        let worked = self.work(&servers, 0, learning_rate, read, &mut clock);
        (self.step, self.first_micro_batch) = (step, None);
        worked
    }

    /// Works until the first server has no share left. `before`: steps before the first share.
    pub(super) fn work(
        &mut self,
        to: &Servers,
        before: u64,
        learning_rate: &dyn Fn(u64) -> f64,
        read: &mut ReadShare<'_>,
        clock: &mut Clock,
    ) -> Result<()> {
        let (group, device) = (to.group.clone(), self.store.device.clone());
        let (workers, servers) = (self.store.workers() as u64, self.store.servers);
        let mut sent = Vec::new();
        loop {
            sent.push(group.send(Request::Share.with([], &device), to.first));
            let Some(share) = self.pull(to, &mut sent, clock)? else { break };
            sent.drain(..).try_for_each(|sent| clock.waiting("server", || sent.wait()))?;
            let (step, number) = (before + 1 + share.number / workers, (share.number % workers) as usize);
            let share = Share { step, number, ahead: share.ahead, seed: self.seed };
            let mut batches = read(share).map_err(Error::Load)?;
            self.step = step;
            let (found, gradients) = self.gradients_of(&mut *batches, number, clock)?;
            let clip = clip_factor(found.grad_norm, self.settings.gradient_clipping);
            let request = Request::Update {
                learning_rate: learning_rate(step),
                scale: clip.unwrap_or(1.0),
                is_skipped: found.skipped,
            };
            for server in 0..servers {
                let parts = self.shards_of(&gradients, server).filter(|_| !found.skipped);
                // In one world, all ranks are told at the end of the round.
                let tells = to.are_separate && server == 0;
                let told = tells.then(|| found_part(&found, &device));
                sent.push(
                    group.send(request.with(told.into_iter().chain(parts), &device), to.first + server),
                );
            }
            self.inner_steps.add(found);
        }
        for server in 0..servers {
            sent.push(group.send(Request::Leave.with([], &device), to.first + server));
        }
        sent.into_iter().try_for_each(|sent| clock.waiting("server", || sent.wait()))
    }

    /// Waits for the share that this worker asked for, and takes the parameters of all servers; none if there is no share left.
    fn pull(
        &mut self,
        from: &Servers,
        sent: &mut Vec<Pending<()>>,
        clock: &mut Clock,
    ) -> Result<Option<GivenShare>> {
        let (group, device) = (from.group.clone(), self.store.device.clone());
        let (first_server, servers) = (from.first, self.store.servers);
        let receive = |server: usize, clock: &mut Clock| {
            let pending = group.receive(first_server + server, &device);
            let message = clock.waiting("server", || pending.wait())?;
            read_answer(message, first_server + server)
        };
        let (share, first) = receive(0, clock)?;
        if share.is_none() {
            return Ok(None);
        }
        for server in 1..servers {
            sent.push(group.send(Request::Parameters.with([], &device), first_server + server));
        }
        let mut shards: Vec<Vec<Tensor<1>>> = vec![Vec::new(); self.store.units.len()];
        let mut message = Some(first);
        for server in 0..servers {
            let parts: Message = match message.take() {
                Some(first) => first,
                None => receive(server, clock)?.1,
            };
            let served = self.store.units.iter().map(|stored| self.store.served(&stored.unit));
            let wanted: Vec<_> = served.map(|shards| shards.get(server).cloned()).collect();
            for (unit, part) in checked(parts, &wanted, first_server + server)? {
                shards[unit].push(part);
            }
        }
        let started = Instant::now();
        for (unit, shards) in shards.into_iter().enumerate().filter(|(_, shards)| !shards.is_empty()) {
            self.store.set_pulled(unit, shards);
        }
        for (index, block) in self.chain.blocks.iter_mut().enumerate() {
            self.store.bind_parameters(index, block);
        }
        clock.optimizer += started.elapsed();
        Ok(share)
    }

    /// A server's shards of whole gradients, as parts of a message.
    fn shards_of<'g>(
        &'g self,
        gradients: &'g [Option<Tensor<1>>],
        server: usize,
    ) -> impl Iterator<Item = Option<Part>> + 'g {
        let reduce = self.settings.precision.reduce.dtype();
        self.store.units.iter().zip(gradients).map(move |(stored, gradient)| {
            let range = self.store.served(&stored.unit).get(server)?.clone();
            Some(flat(cast(gradient.clone()?.slice(range), reduce)))
        })
    }

    /// Forward and backward over the micro-batches of a share: what it found, and the whole gradients, divided by the weight of its targets.
    fn gradients_of(
        &mut self,
        batches: &mut dyn MicroBatches,
        number: usize,
        clock: &mut Clock,
    ) -> Result<(StepReport, Vec<Option<Tensor<1>>>)> {
        let count = batches.count();
        let (schedule, targets) = (self.schedule(count, true)?, batches.targets());
        let weight = targets.weight();
        self.reduction.reset();
        self.reduction.begin(self.step);
        self.first_micro_batch = Some(number * count);
        let mode = |reduction| PassMode::Train { reduction, completes: true };
        let state = self.run(batches, &schedule, mode, TargetWeight::Known(weight), 0, clock)?;
        let peak = self.memory.activations.peak.max(state.activations.peak);
        self.memory.activations = crate::metrics::Bytes { peak, ..state.activations };
        self.memory.gradients = self.reduction.bytes();
        let gradients = self.reduction.finish(clock)?;
        let started = Instant::now();
        let at_once = tile(&self.store.device);
        let found: Vec<_> = gradients.iter().flatten().cloned().collect();
        let numbers = Window::of(count, state.losses, state.metrics);
        let (squares, read) = sum_of_squares(&found, at_once, numbers.numbers())?;
        let grad_norm = squares.value().sqrt();
        let (losses, of_metrics) = numbers.found(&read);
        let mut loss = PairwiseSum::new();
        losses.into_iter().for_each(|share| loss.push(share as f32, |a, b| a + b));
        let loss = f64::from(loss.finish(|a, b| a + b).unwrap_or(0.0));
        let mut metrics = MetricSums::new(self.objective.names.len());
        metrics.add(of_metrics);
        clock.optimizer += started.elapsed();
        let skipped = weight == 0.0 || !(loss.is_finite() && grad_norm.is_finite());
        if skipped && self.settings.on_nonfinite == NonFinite::Stop {
            return Err(self.not_usable(weight, loss, grad_norm));
        }
        let report = StepReport {
            step: self.step,
            loss,
            metrics: metrics.means(self.objective.names.iter().map(String::as_str), weight),
            grad_norm,
            targets: targets.count,
            target_weight: weight,
            skipped,
            outer: None,
            round: None,
            bubble: std::time::Duration::ZERO,
            in_flight: state.most_in_flight,
            memory: Memory::default(),
            clock: Clock::default(),
            traffic: Traffic::new(),
        };
        Ok((report, gradients))
    }

    /// Why a share cannot make an update: only this rank knows.
    fn not_usable(&self, weight: f64, loss: f64, grad_norm: f64) -> Error {
        let (step, rank) = (self.step, self.store.groups.data.rank());
        Error::Model(match () {
            () if weight == 0.0 => format!(
                "step {step}: the share of the global batch that rank {rank} took holds no valid target (all are masked); train.on_nonfinite = \
                 skip leaves such shares out"
            ),
            () if weight.is_nan() => Error::TargetWeights { step }.to_string(),
            () if loss.is_finite() => format!(
                "step {step}: the gradient norm of the share that rank {rank} took is not finite ({grad_norm}); it was not applied"
            ),
            () => {
                format!(
                    "step {step}: the loss of the share that rank {rank} took is not finite ({loss}); its gradient was not \
                    applied"
                )
            }
        })
    }
}
