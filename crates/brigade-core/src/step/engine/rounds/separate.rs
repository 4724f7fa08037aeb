//! Servers whose workers are worlds of their own, in a round.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::dist::{Message, Pending, add_traffic};
use crate::error::{BoxError, Error, Result};
use crate::step::engine::rounds::links::{Event, WORKER, WorkerLinks};
use crate::step::engine::rounds::message::{Given, Request, RoundState, answer, read_found};
use crate::step::engine::rounds::server::{Push, Serving};
use crate::step::engine::rounds::shares::{Answer, Shares};
use crate::step::engine::{UntypedEngine, difference};
use crate::step::report::StepReport;

/// Between two looks whether anything else is to be done.
const LOOK: Duration = Duration::from_millis(200);

/// Between two messages of the first server to the others.
const TICK: Duration = Duration::from_secs(1);

/// Such messages to each of the others that may be under way.
const UNDER_WAY: usize = 8;

/// What is told of a round while it goes on.
pub struct RoundProgress {
    /// How many updates there were.
    pub updates: u64,
    /// For how long no worker has been connected.
    pub alone: Duration,
    /// Who came and went since the last time.
    pub notes: Vec<String>,
}

/// Is told again and again.
type Watch<'a> = dyn FnMut(RoundProgress) -> Result<(), BoxError> + 'a;

/// A round of a server.
struct Served<'a, 'c> {
    serving: Serving<'c>,
    links: &'a mut WorkerLinks,
    /// Shares before the round, and by how much the position in the data is ahead of the step.
    before: u64,
    ahead: u64,
    updates: u64,
    /// On servers but the first one: whether the first one has the gradients of all shares.
    is_over: bool,
    /// On the first server: what it has told the others, and when.
    told: VecDeque<Pending<()>>,
    told_at: Instant,
}

impl UntypedEngine {
    /// Runs a [round](crate::Engine::round) with workers that are worlds of their own: those that are there. A worker that is lost leaves its share to
    /// another, and one that comes is given the newest parameters with its first share. All servers call it together. `ahead`: by how much the
    /// position in the data is ahead of the step. `watch` is told again and again how far it is.
    ///
    /// # Errors
    /// If there is no worker for too long, or a server was lost, and those of `watch`. What servers have is then somewhere within the round, and
    /// training continues from a checkpoint alone.
    pub fn serve_round(
        &mut self,
        links: &mut WorkerLinks,
        ahead: u64,
        watch: &mut Watch<'_>,
    ) -> Result<StepReport> {
        let (strategy, workers) = (&self.settings.strategy, self.store.workers());
        let Some(rounds) =
            strategy.rounds().filter(|_| self.is_server() && strategy.separate_worlds().is_some())
        else {
            return Err(Error::Model("this rank does not serve separately launched workers".into()));
        };
        let before = self.step;
        let (mut clock, traffic) = self.begin_step();
        let sent_to_workers = links.traffic();
        links.begin_round();
        let shares = Shares::new(workers, rounds.steps, rounds.staleness).that_may_return();
        let mut served = Served {
            serving: Serving::new(rounds, shares, workers, &mut clock),
            links,
            before: before * workers as u64,
            ahead,
            updates: 0,
            is_over: false,
            told: VecDeque::new(),
            told_at: Instant::now(),
        };
        let ended = self.serve_separate(&mut served, watch);
        let (staleness, present) = (served.serving.shares.found, served.links.len());
        self.step = before;
        ended?;
        let lost = links.take_lost();
        self.step = before + rounds.steps;
        let report = self.end_round(before, staleness, (present, lost), &mut clock)?;
        let mut traffic = difference(self.store.groups.traffic(), &traffic);
        add_traffic(&mut traffic, difference(links.traffic(), &sent_to_workers));
        Ok(StepReport { clock, traffic, memory: self.memory(), ..report })
    }

    /// Tells workers that there is nothing more to do, until all have left, or `wait` is over.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn disconnect_workers(&mut self, links: &mut WorkerLinks, wait: Duration) -> Result<()> {
        let (deadline, device) = (Instant::now() + wait, self.store.device.clone());
        for worker in links.asking() {
            links.answer(worker, answer(None, [], &device));
        }
        while links.len() > 0 && Instant::now() < deadline {
            match links.next(LOOK)? {
                Some(Event::Connected(link)) => links.insert(link, &device)?,
                Some(Event::Asked(worker, connection, asked)) if links.is_current(worker, connection) => {
                    match asked {
                        Ok((Request::Share, _)) => links.answer(worker, answer(None, [], &device)),
                        Ok((Request::Leave, _)) => links.leave(worker),
                        Ok(_) => {}
                        Err(error) => links.disconnect(worker, None, &error.to_string()),
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn serve_separate(&mut self, served: &mut Served<'_, '_>, watch: &mut Watch<'_>) -> Result<()> {
        let is_first = self.store.server() == Some(0);
        if is_first {
            for worker in served.links.asking() {
                self.give_share(worker, served)?;
            }
        } else {
            self.receive_from_first_server(served.links)?;
        }
        loop {
            let is_over = match is_first {
                true => served.serving.shares.is_done(),
                false => served.is_over && served.links.have_pushed(),
            };
            if is_first && (is_over || served.told_at.elapsed() > TICK) {
                self.tell_other_servers(is_over, served)?;
            }
            if is_over {
                let clock = &mut *served.serving.clock;
                let mut told = served.told.drain(..);
                return told.try_for_each(|told| clock.waiting("server", || told.wait()));
            }
            let (clock, links) = (&mut *served.serving.clock, &mut *served.links);
            let event = clock.waiting("server", || links.next(LOOK))?;
            let (updates, alone) = (served.updates, served.links.alone());
            let notes = served.links.drain_messages();
            watch(RoundProgress { updates, alone, notes }).map_err(Error::Load)?;
            match event {
                None => {}
                Some(Event::Connected(link)) => {
                    self.drop_worker(link.worker, "it has connected again", served)?;
                    served.links.insert(link, &self.store.device)?;
                }
                Some(Event::Asked(worker, connection, asked))
                    if served.links.is_current(worker, connection) =>
                {
                    match asked {
                        Ok((request, parts)) => {
                            self.serve_request((worker, connection), request, parts, served)?;
                        }
                        Err(error) => self.drop_worker(worker, &error.to_string(), served)?,
                    }
                }
                Some(Event::Asked(..)) => {}
                Some(Event::Round(state)) => {
                    let RoundState { is_over, pushes } = state?;
                    let held = &mut served.links.held;
                    pushes.into_iter().for_each(|(connection, count)| held.count(connection, count));
                    served.is_over = is_over;
                    self.apply_counted(served)?;
                }
            }
        }
    }

    /// Tells the other servers how many pushes of each worker have been counted, and whether the round is over.
    fn tell_other_servers(&self, is_over: bool, served: &mut Served<'_, '_>) -> Result<()> {
        let state = RoundState { is_over, pushes: served.links.pushes() };
        let message = || state.message(&self.store.device);
        let group = &self.store.groups.data;
        served.told.extend((1..self.store.servers).map(|server| group.send(message(), server)));
        served.told_at = Instant::now();
        let clock = &mut *served.serving.clock;
        let done = served.told.len().saturating_sub(UNDER_WAY * self.store.servers);
        let mut done = served.told.drain(..done);
        done.try_for_each(|told| clock.waiting("server", || told.wait()))
    }

    /// Receives from the first server when the round is over, on a thread.
    fn receive_from_first_server(&self, links: &WorkerLinks) -> Result<()> {
        let (group, device, events) =
            (self.store.groups.data.clone(), self.store.device.clone(), links.events());
        let receive = move || loop {
            let state = group.receive(0, &device).wait().and_then(|message| RoundState::read(message, 0));
            let goes_on = matches!(&state, Ok(state) if !state.is_over);
            if events.send(Event::Round(state)).is_err() || !goes_on {
                return;
            }
        };
        let started = std::thread::Builder::new().name("first server".into()).spawn(receive);
        started.map(drop).map_err(|error| Error::Model(format!("no thread can be started: {error}")))
    }

    fn serve_request(
        &mut self,
        (worker, connection): (usize, u64),
        request: Request,
        parts: Message,
        served: &mut Served<'_, '_>,
    ) -> Result<()> {
        let is_first = self.store.server() == Some(0);
        match request {
            Request::Share if is_first && served.serving.shares.of(worker).is_none() => {
                served.links.asks(worker);
                self.give_share(worker, served)
            }
            Request::Parameters if !is_first => {
                // The first server has given it another share, and so has counted what it pushed before.
                served.links.held.count_all(connection);
                self.apply_counted(served)?;
                let message = self.answer_with(None, true, worker, &mut served.serving)?;
                served.links.answer(worker, message);
                Ok(())
            }
            Request::Update { learning_rate, scale, is_skipped } => {
                let step = (learning_rate, scale, is_skipped);
                match self.read_push(worker, step, parts, served) {
                    Ok((Some(found), push)) => self.count_push(worker, found, push, served),
                    Ok((None, push)) => {
                        served.links.held.hold(connection, push);
                        self.apply_counted(served)
                    }
                    Err(error) => self.drop_worker(worker, &error.to_string(), served),
                }
            }
            // A worker leaves when it is told that there is nothing more to do: all of its pushes have been counted.
            Request::Leave => {
                served.links.held.count_all(connection);
                self.apply_counted(served)?;
                served.links.leave(worker);
                served.serving.shares.requeue(worker, served.links.deadline());
                self.answer_ready(served)
            }
            Request::Share | Request::Parameters => {
                self.drop_worker(worker, "protocol error: unexpected request", served)
            }
        }
    }

    /// What a worker pushed: on the first server what it found in its share, and the update, unless it is to be left out. Every error is the
    /// worker's.
    fn read_push(
        &self,
        worker: usize,
        (learning_rate, scale, is_skipped): (f64, f64, bool),
        mut parts: Message,
        served: &Served<'_, '_>,
    ) -> Result<(Option<StepReport>, Option<Push>)> {
        let mut found = None;
        if self.store.server() == Some(0) {
            let share = served.serving.shares.of(worker).filter(|_| !parts.is_empty());
            let share = share.ok_or_else(|| Error::Model("protocol error: unexpected push".into()))?;
            let step = 1 + (served.before + share) / self.store.workers() as u64;
            let names = &self.objective.names;
            found = Some(read_found(parts.remove(0), (step, is_skipped), names, WORKER)?);
        }
        let push = match is_skipped {
            true => None,
            false => Some(self.push_of(worker, (learning_rate, scale), parts, &served.serving)?),
        };
        Ok((found, push))
    }

    /// Counts a push on the first server, and applies it.
    fn count_push(
        &mut self,
        worker: usize,
        found: StepReport,
        push: Option<Push>,
        served: &mut Served<'_, '_>,
    ) -> Result<()> {
        served.serving.shares.push(worker);
        served.links.count_push(worker);
        served.updates += 1;
        self.tell_other_servers(false, served)?;
        self.inner_steps.add(found);
        if let Some(push) = push {
            self.apply(push, &mut served.serving)?;
        }
        self.answer_ready(served)
    }

    /// Applies what the first server has counted, on another one.
    fn apply_counted(&mut self, served: &mut Served<'_, '_>) -> Result<()> {
        while let Some(push) = served.links.held.release() {
            served.updates += 1;
            if let Some(push) = push {
                self.apply(push, &mut served.serving)?;
            }
        }
        Ok(())
    }

    /// Gives a worker a share, unless it has to wait.
    fn give_share(&self, worker: usize, served: &mut Served<'_, '_>) -> Result<()> {
        match served.serving.shares.ask(worker) {
            Answer::Share(share) => self.answer_share(worker, share, served),
            Answer::Later | Answer::Over => Ok(()),
        }
    }

    fn answer_share(&self, worker: usize, share: u64, served: &mut Served<'_, '_>) -> Result<()> {
        let given = Given { number: served.before + share, ahead: served.ahead };
        let message = self.answer_with(Some(given), true, worker, &mut served.serving)?;
        served.links.answer(worker, message);
        Ok(())
    }

    /// Answers workers that have waited.
    fn answer_ready(&self, served: &mut Served<'_, '_>) -> Result<()> {
        for (worker, told) in served.serving.shares.ready() {
            if let Answer::Share(share) = told {
                self.answer_share(worker, share, served)?;
            }
        }
        Ok(())
    }

    fn drop_worker(&self, worker: usize, why: &str, served: &mut Served<'_, '_>) -> Result<()> {
        let deadline = served.links.deadline();
        let share = served.serving.shares.requeue(worker, deadline);
        served.links.disconnect(worker, share, why);
        if let Some(times) = served.serving.shares.too_late() {
            return Err(Error::Model(format!(
                "a share was given to a worker {times} times, and each time took longer than comm.train_timeout_seconds = {} s; there was \
                 no update in between: set it above what the slowest worker needs for a share, or make shares smaller \
                 (train.global_batch_size, --workers)",
                deadline.as_secs_f64()
            )));
        }
        self.answer_ready(served)
    }
}
