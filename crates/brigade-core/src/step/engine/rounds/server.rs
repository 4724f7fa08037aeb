//! A server in a round: it answers workers and applies what they push, in whatever order that comes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use brigade_kernels::cast;
use brigade_random::keyed_seed;
use burn::tensor::{Device, FloatDType, Tensor};

use crate::dist::{Collectives, Message, Pending};
use crate::error::{BoxError, Error, Result};
use crate::metrics::Clock;
use crate::model::random_state::with_seed;
use crate::step::engine::UntypedEngine;
use crate::step::engine::rounds::message::{Given, Request, answer};
use crate::step::engine::rounds::shares::{Answer, Shares};
use crate::step::strategy::Rounds;
use crate::step::strategy::async_server::{checked, flat};

/// What a worker asked for, with its parts.
type Asked = (usize, Result<(Request, Message)>);

/// An update that a worker pushed.
pub(super) struct Push {
    worker: usize,
    /// Gradients of this server's shards, by unit.
    gradients: Vec<(usize, Tensor<1>)>,
    /// The parameters that they are of, by unit, where they are compensated for the delay.
    pulled: Vec<Option<Tensor<1>>>,
    learning_rate: f64,
    /// Which factor clips them.
    scale: f64,
}

/// What a server keeps while it serves.
pub(super) struct Serving<'a> {
    rounds: Rounds,
    pub shares: Shares,
    /// The parameters that each worker computes with, by unit, where its gradients are compensated for the delay.
    pulled: Vec<Vec<Option<Tensor<1>>>>,
    /// How many updates are each worker's, in this round.
    pushes: Vec<u64>,
    /// Answers on their way.
    sent: Vec<Pending<()>>,
    pub clock: &'a mut Clock,
}

impl<'a> Serving<'a> {
    pub(super) fn new(rounds: Rounds, shares: Shares, workers: usize, clock: &'a mut Clock) -> Self {
        let (pulled, pushes) = (vec![Vec::new(); workers], vec![0; workers]);
        Self { rounds, shares, pulled, pushes, sent: Vec::new(), clock }
    }

    /// Waits for the oldest answers: a worker has those before it asks again.
    fn wait_for_answers(&mut self, kept: usize) -> Result<()> {
        let done = self.sent.len().saturating_sub(kept);
        let mut done = self.sent.drain(..done);
        done.try_for_each(|sent| self.clock.waiting("server", || sent.wait()))
    }
}

impl UntypedEngine {
    /// Serves the workers until all have left. `watch` is called with the number of updates so far.
    pub(super) fn serve(
        &mut self,
        serving: &mut Serving<'_>,
        watch: &mut dyn FnMut(u64) -> Result<(), BoxError>,
    ) -> Result<()> {
        let workers = self.store.workers();
        let is_first = self.store.server() == Some(0);
        let asked = listen(&self.store.groups.data, workers, &self.store.device)?;
        let (mut left, mut updates) = (0, 0);
        while left < workers {
            let received = serving.clock.waiting("server", || asked.recv());
            let (worker, request) =
                received.map_err(|_| Error::Model("nothing more can be received from workers".into()))?;
            let (request, parts) = request?;
            match request {
                Request::Share if is_first => {
                    let told = serving.shares.ask(worker);
                    self.tell(worker, told, serving)?;
                }
                Request::Parameters if !is_first => self.answer(worker, None, true, serving)?,
                Request::Update { learning_rate, scale, is_skipped } => {
                    if is_first && !serving.shares.push(worker) {
                        return Err(out_of_turn(worker));
                    }
                    if !is_skipped {
                        let push = self.push_of(worker, (learning_rate, scale), parts, serving)?;
                        self.apply(push, serving)?;
                    }
                    updates += 1;
                    watch(updates).map_err(Error::Load)?;
                    for (worker, told) in serving.shares.ready() {
                        self.tell(worker, told, serving)?;
                    }
                }
                Request::Leave => left += 1,
                Request::Share | Request::Parameters => return Err(out_of_turn(worker)),
            }
            serving.wait_for_answers(workers)?;
        }
        serving.wait_for_answers(0)
    }

    /// Tells a worker which share it has, if it need not wait.
    fn tell(&self, worker: usize, told: Answer, serving: &mut Serving<'_>) -> Result<()> {
        match told {
            Answer::Later => Ok(()),
            Answer::Over => self.answer(worker, None, false, serving),
            Answer::Share(share) => self.answer(worker, Some(share), true, serving),
        }
    }

    /// Answers a worker, with the parameters of this server, or without.
    fn answer(
        &self,
        worker: usize,
        share: Option<u64>,
        has_parameters: bool,
        serving: &mut Serving<'_>,
    ) -> Result<()> {
        let share = share.map(|number| Given { number, ahead: 0 });
        let message = self.answer_with(share, has_parameters, worker, serving)?;
        serving.sent.push(self.store.groups.data.send(message, worker));
        Ok(())
    }

    /// The answer to a worker, with the parameters of this server, or without.
    pub(super) fn answer_with(
        &self,
        share: Option<Given>,
        has_parameters: bool,
        worker: usize,
        serving: &mut Serving<'_>,
    ) -> Result<Message> {
        let units = if has_parameters { self.store.units.len() } else { 0 };
        let (mut parts, mut pulled) = (Vec::new(), Vec::new());
        for unit in 0..units {
            let own = match self.store.units[unit].is_updated() {
                true => Some(self.store.own_values(unit)?),
                false => None,
            };
            parts.push(own.clone().map(|own| flat(self.store.to_compute(unit, own))));
            pulled.push(own.filter(|_| serving.rounds.delay_compensation > 0.0));
        }
        serving.pulled[worker] = pulled;
        Ok(answer(share, parts, &self.store.device))
    }

    /// What a worker pushed, with its learning rate and the factor that clips it.
    ///
    /// # Errors
    /// If it is not of this server's shards.
    pub(super) fn push_of(
        &self,
        worker: usize,
        (learning_rate, scale): (f64, f64),
        parts: Message,
        serving: &Serving<'_>,
    ) -> Result<Push> {
        let own = |unit: &crate::sharding::store::StoredUnit| -> Option<Range<usize>> {
            unit.is_updated().then(|| unit.own.clone())
        };
        let own: Vec<_> = self.store.units.iter().map(own).collect();
        let gradients = checked(parts, &own, worker)?;
        let learning_rate = learning_rate / self.store.workers() as f64;
        Ok(Push { worker, gradients, pulled: serving.pulled[worker].clone(), learning_rate, scale })
    }

    /// Makes an update of what a worker pushed.
    pub(super) fn apply(&mut self, push: Push, serving: &mut Serving<'_>) -> Result<()> {
        let (began, clock) = (std::time::Instant::now(), &mut *serving.clock);
        let Push { worker, gradients, pulled, learning_rate, scale } = push;
        for (unit, gradient) in gradients {
            let values = self.store.own_values(unit)?;
            let gradient = cast(gradient, FloatDType::F32).to_device(&values.device());
            let lambda = serving.rounds.delay_compensation;
            let (gradient, scale) = match pulled.get(unit).cloned().flatten() {
                None => (gradient, (scale != 1.0).then_some(scale)),
                Some(pulled) => {
                    let gradient = gradient.mul_scalar(scale);
                    let delay = gradient.clone() * gradient.clone() * (values.clone() - pulled);
                    (gradient + delay.mul_scalar(lambda), None)
                }
            };
            let (device, seed) = (values.device(), self.optimizer_seed(unit));
            let seed = keyed_seed(seed, &format!("{worker}/{}", serving.pushes[worker]));
            let step = || self.update.step(unit, learning_rate, values, gradient, scale);
            if let Some(pending) = with_seed(&device, seed, step) {
                let values = clock.waiting("server", || pending.wait())?;
                self.store.set_served_values(unit, values);
            }
        }
        serving.pushes[worker] += 1;
        clock.optimizer += began.elapsed();
        Ok(())
    }
}

/// Receives what workers ask for, from each on a thread of its own, which ends when the worker leaves.
fn listen(group: &Arc<dyn Collectives>, workers: usize, device: &Device) -> Result<Receiver<Asked>> {
    let (sender, receiver) = channel();
    for worker in 0..workers {
        let (group, device, sender) = (group.clone(), device.clone(), sender.clone());
        let listen = move || receive_from(worker, &*group, &device, &sender);
        let started = thread::Builder::new().name(format!("worker {worker}")).spawn(listen);
        started.map_err(|error| Error::Model(format!("no thread can be started: {error}")))?;
    }
    Ok(receiver)
}

fn receive_from(worker: usize, group: &dyn Collectives, device: &Device, sender: &Sender<Asked>) {
    loop {
        let asked = group.receive(worker, device).wait().and_then(|message| Request::read(message, worker));
        let is_last = !matches!(&asked, Ok((request, _)) if *request != Request::Leave);
        if sender.send((worker, asked)).is_err() || is_last {
            return;
        }
    }
}

fn out_of_turn(worker: usize) -> Error {
    Error::Model(format!("protocol error: unexpected request from rank {worker}"))
}
