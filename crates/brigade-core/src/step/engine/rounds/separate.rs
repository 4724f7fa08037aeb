//! Servers whose workers are worlds of their own, in a round.

use std::time::{Duration, Instant};

use crate::dist::{Message, Pending, add_traffic};
use crate::error::{BoxError, Error, Result};
use crate::step::engine::rounds::links::{Event, WORKER, WorkerLinks};
use crate::step::engine::rounds::message::{
    Given, Request, answer, read_found, read_round_state, round_state,
};
use crate::step::engine::rounds::server::Serving;
use crate::step::engine::rounds::shares::{Answer, Shares};
use crate::step::engine::{UntypedEngine, difference};
use crate::step::report::StepReport;

/// Between two looks whether anything else is to be done.
const LOOK: Duration = Duration::from_millis(200);

/// Between two messages of the first server to the others.
const TICK: Duration = Duration::from_secs(1);

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
    /// On servers but the first one: the pushes of each connection, once the round is over.
    ends_after: Option<Vec<(u64, u64)>>,
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
        let shares = Shares::new(workers, rounds.steps, rounds.staleness).that_may_return();
        let mut served = Served {
            serving: Serving::new(rounds, shares, workers, &mut clock),
            links,
            before: before * workers as u64,
            ahead,
            updates: 0,
            ends_after: None,
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
                        Err(error) => links.lose(worker, None, &error.to_string()),
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn serve_separate(&mut self, served: &mut Served<'_, '_>, watch: &mut Watch<'_>) -> Result<()> {
        let (is_first, servers) = (self.store.server() == Some(0), self.store.servers);
        let (mut told, mut last_tick): (Vec<Pending<()>>, _) = (Vec::new(), Instant::now());
        if is_first {
            for worker in served.links.asking() {
                self.give_share(worker, served)?;
            }
        } else {
            self.hear_first_server(served.links)?;
        }
        loop {
            let is_over = match &served.ends_after {
                _ if is_first => served.serving.shares.is_done(),
                Some(pushes) => served.links.have_pushed(pushes),
                None => false,
            };
            if is_first && servers > 1 && (is_over || last_tick.elapsed() > TICK) {
                let pushes = is_over.then(|| served.links.pushes());
                let state = || round_state(pushes.as_deref(), &self.store.device);
                told.extend((1..servers).map(|server| self.store.groups.data.send(state(), server)));
                last_tick = Instant::now();
            }
            if is_over {
                let clock = &mut *served.serving.clock;
                return told.into_iter().try_for_each(|told| clock.waiting("server", || told.wait()));
            }
            let (clock, links) = (&mut *served.serving.clock, &mut *served.links);
            let event = clock.waiting("server", || links.next(LOOK))?;
            let (updates, alone) = (served.updates, served.links.alone());
            let notes = served.links.drain_messages();
            watch(RoundProgress { updates, alone, notes }).map_err(Error::Load)?;
            match event {
                None => {}
                Some(Event::Connected(link)) => {
                    self.lose_worker(link.worker, "it has connected again", served)?;
                    served.links.insert(link, &self.store.device)?;
                }
                Some(Event::Asked(worker, connection, asked))
                    if served.links.is_current(worker, connection) =>
                {
                    match asked {
                        Ok((request, parts)) => self.serve_request(worker, request, parts, served)?,
                        Err(error) => self.lose_worker(worker, &error.to_string(), served)?,
                    }
                }
                Some(Event::Asked(..)) => {}
                Some(Event::Round(state)) => served.ends_after = state?,
            }
        }
    }

    /// Hears from the first server when the round is over, on a thread.
    fn hear_first_server(&self, links: &WorkerLinks) -> Result<()> {
        let (group, device, events) =
            (self.store.groups.data.clone(), self.store.device.clone(), links.events());
        let hear = move || loop {
            let state = group.receive(0, &device).wait().and_then(|message| read_round_state(message, 0));
            let goes_on = matches!(state, Ok(None));
            if events.send(Event::Round(state)).is_err() || !goes_on {
                return;
            }
        };
        let started = std::thread::Builder::new().name("first server".into()).spawn(hear);
        started.map(drop).map_err(|error| Error::Model(format!("no thread can be started: {error}")))
    }

    fn serve_request(
        &mut self,
        worker: usize,
        request: Request,
        mut parts: Message,
        served: &mut Served<'_, '_>,
    ) -> Result<()> {
        let is_first = self.store.server() == Some(0);
        match request {
            Request::Share if is_first => {
                served.links.asks(worker);
                self.give_share(worker, served)
            }
            Request::Parameters if !is_first => {
                let message = self.answer_with(None, true, worker, &mut served.serving)?;
                served.links.answer(worker, message);
                Ok(())
            }
            Request::Update { learning_rate, scale, is_skipped } => {
                if is_first {
                    let share = served.serving.shares.of(worker);
                    if parts.is_empty() || !served.serving.shares.push(worker) {
                        return self.lose_worker(worker, "protocol error: unexpected push", served);
                    }
                    let step = 1 + (served.before + share.unwrap_or(0)) / self.store.workers() as u64;
                    let names = self.objective.names.clone();
                    let found = read_found(parts.remove(0), (step, is_skipped), &names, WORKER)?;
                    self.inner_steps.add(found);
                }
                if !is_skipped {
                    let learning_rate = learning_rate / self.store.workers() as f64;
                    self.apply(worker, parts, learning_rate, scale, &mut served.serving)?;
                }
                served.links.count_push(worker);
                served.updates += 1;
                self.answer_ready(served)
            }
            // A worker leaves when it is told that there is nothing more to do, or is stopped by the user.
            Request::Leave => {
                served.links.leave(worker);
                served.serving.shares.lose(worker);
                self.answer_ready(served)
            }
            Request::Share | Request::Parameters => {
                self.lose_worker(worker, "protocol error: unexpected request", served)
            }
        }
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

    fn lose_worker(&self, worker: usize, why: &str, served: &mut Served<'_, '_>) -> Result<()> {
        let share = served.serving.shares.lose(worker);
        served.links.lose(worker, share, why);
        self.answer_ready(served)
    }
}
