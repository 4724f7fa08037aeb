//! A worker among separately launched ones: it synchronises with those that are there, and goes on without those that are not.
//!
//! All ranks of a worker make the same decisions: rank 0 asks the [coordinator](brigade_launch::workers), and tells the others.

mod replica;
mod world;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use brigade_comm::host_identity;
use brigade_launch::workers::{
    Base, CoordinatorDecision, Member, Quorum, Request, Status, WorkerJoinRequest,
};
use brigade_sorted::SortedMap;
use serde::{Deserialize, Serialize};

use crate::error::{AgreedError, Interrupted, Preempted};
use crate::run::Session;
use crate::world::{all_gather_text, all_gather_whole_text};

pub(super) use self::replica::{Replica, transfer_state};
pub(super) use self::world::OuterWorld;
use self::world::{Listeners, forming};

/// Between two looks of all ranks for a decision.
const LOOK: Duration = Duration::from_millis(500);

/// Between two quorums that failed: as long as they have been failing, within these bounds.
const LEAST_PAUSE: Duration = Duration::from_secs(1);
const MOST_PAUSE: Duration = Duration::from_secs(5);

/// This worker among the workers of a run.
pub(super) struct ElasticWorker {
    /// On rank 0: the connection to the coordinator.
    member: Option<Member>,
    /// The newest parameters that the workers had in common and this one has.
    base: Base,
    /// The number of the last request.
    requests: u64,
    /// The other participants of the last quorum, and the world that this worker has with them.
    world: OuterWorld,
    /// Who took part in the last quorum.
    took_part: Vec<usize>,
    /// The last quorum, if it failed, and since when those of the same workers have failed.
    failing: Option<(Quorum, Instant)>,
}

/// What rank 0 tells the others of this worker.
#[derive(Serialize, Deserialize)]
enum Decided {
    Nothing,
    Train,
    Join,
    Quorum(Quorum),
    Failed(String),
    Interrupted,
}

/// What this worker is to do.
pub(super) enum Decision {
    /// To make inner steps.
    Train,
    /// To synchronise with the others.
    Quorum(Quorum),
}

impl ElasticWorker {
    /// This worker, if the settings name a coordinator. The `facts` must be the same on all workers, as the configuration.
    pub(super) fn start(
        session: &Session,
        base: Base,
        facts: &SortedMap<String, String>,
    ) -> anyhow::Result<Option<Self>> {
        let (strategy, comm) = (&session.settings.strategy, &session.settings.comm);
        if !strategy.is_elastic() {
            return Ok(None);
        }
        let start = || {
            let facts: String = facts.iter().map(|(what, text)| format!("{what} = {text}\n")).collect();
            let join_request = WorkerJoinRequest {
                version: brigade_launch::workers::VERSION,
                worker: strategy.worker,
                workers: strategy.workers,
                ranks: session.world_size(),
                host: host_identity(),
                configuration: crate::world::shared_by_workers(&session.config)? + &facts,
                incarnation: incarnation()?,
            };
            let [wait, silence] =
                [comm.init_timeout_seconds, comm.host_timeout_seconds].map(Duration::from_secs_f64);
            let token = session.token.clone();
            anyhow::Ok(Member::start(strategy.coordinator.clone(), token, join_request, base, wait, silence)?)
        };
        let member = (session.rank() == 0).then(start).transpose()?;
        let (world, took_part) = (OuterWorld::Alone, Vec::new());
        Ok(Some(Self { member, base, requests: 0, world, took_part, failing: None }))
    }

    /// Whether this worker starts with inner steps, or is to [ask](Self::ask) for newer parameters first. All ranks call it.
    pub(super) fn is_current(&mut self, session: &Session) -> anyhow::Result<bool> {
        self.set(Status::Starting);
        match self.decision(session, "asking the coordinator of the workers", &mut |_| {})? {
            Decided::Join => Ok(false),
            _ => {
                self.set(Status::Training);
                Ok(true)
            }
        }
    }

    /// Asks for a quorum after `step` steps. All ranks call it; rank 0's `say` is told what it waits for at the beginning of a run.
    ///
    /// # Errors
    /// If the coordinator refuses this worker or cannot be reached, the run was interrupted, or a rank failed.
    pub(super) fn ask(
        &mut self,
        session: &Session,
        step: u64,
        say: &mut dyn FnMut(&str),
    ) -> anyhow::Result<(Decision, Listeners)> {
        self.requests += 1;
        let mut listeners = Listeners::default();
        if let Some(member) = &self.member {
            let address = member.address().context("the coordinator of the workers was never reached")?;
            listeners = Listeners::open(address)?;
            let [sums, transfer] = listeners.endpoints(address)?;
            let world = self.world.quorum();
            let request = Request { number: self.requests, step, sums, transfer, world };
            member.set(self.base, Status::Waiting(request));
        }
        match self.decision(session, &format!("step {step}: waiting for the other workers"), say)? {
            Decided::Quorum(quorum) => {
                self.set(Status::Quorum(quorum.id));
                Ok((Decision::Quorum(quorum), listeners))
            }
            _ => {
                self.set(Status::Training);
                Ok((Decision::Train, listeners))
            }
        }
    }

    /// The world of the participants of a quorum, as far as there are several. All ranks call it.
    ///
    /// # Errors
    /// On all ranks of this worker, if it cannot be formed; the others then ask again as well.
    pub(super) fn join_quorum(
        &mut self,
        session: &Session,
        quorum: &Quorum,
        listeners: &mut Listeners,
    ) -> anyhow::Result<&OuterWorld> {
        if !(quorum.keeps_world && self.world.quorum() > 0) {
            self.world = OuterWorld::Alone;
            let place = (&*quorum.sums, listeners.sums.take());
            self.world = OuterWorld::of(session, quorum.id, &quorum.participants, place, forming(session))?;
        }
        Ok(&self.world)
    }

    /// Gives up the world of the participants.
    pub(super) fn leave(&mut self) {
        self.world = OuterWorld::Alone;
    }

    /// A quorum failed, for a reason, and is asked for again: without those that were lost, or after a moment with the same workers. All ranks
    /// call it.
    ///
    /// # Errors
    /// On all ranks, if the same workers have failed to synchronise for `comm.init_timeout_seconds`, or again and the run was preempted; or if a rank
    /// failed.
    pub(super) fn has_failed(&mut self, session: &Session, quorum: Quorum, why: &str) -> anyhow::Result<()> {
        self.leave();
        let is_of_the_same = |(before, _): &&(Quorum, Instant)| {
            let members = |quorum: &Quorum| (quorum.participants.clone(), quorum.recovering.clone());
            // Those that join are asked again after each outer step of the others.
            before.step == quorum.step && members(before) == members(&quorum)
        };
        let Some((_, since)) = self.failing.as_ref().filter(is_of_the_same) else {
            self.failing = Some((quorum, Instant::now()));
            return Ok(());
        };
        let own = vec![since.elapsed().as_secs_f64(), f64::from(u8::from(session.is_preempted()))];
        let all = session.collectives().all_gather_scalars(own).wait()?;
        if all.iter().any(|words| words[1] > 0.0) {
            return Err(Preempted.into());
        }
        let (failing, limit) = (all[0][0], session.settings.comm.init_timeout_seconds);
        if failing > limit {
            let workers = list(&[&quorum.participants[..], &quorum.recovering[..]].concat());
            return Err(AgreedError(format!(
                "workers {workers} are all there, but have failed to synchronise for {limit} s (comm.init_timeout_seconds); the last time: {why}"
            ))
            .into());
        }
        thread::sleep(Duration::from_secs_f64(failing).clamp(LEAST_PAUSE, MOST_PAUSE));
        Ok(())
    }

    /// This worker has the parameters that a quorum resulted in. Gives a line on who took part, where they are others than before.
    pub(super) fn has_made_outer_step(&mut self, session: &Session, quorum: &Quorum) -> Option<String> {
        self.base = quorum.base();
        self.failing = None;
        self.set(Status::Training);
        let workers = session.settings.strategy.workers;
        let before = std::mem::replace(&mut self.took_part, quorum.participants.clone());
        let changed = before != self.took_part && !(before.is_empty() && self.took_part.len() == workers);
        let missing: Vec<usize> = (0..workers).filter(|worker| !self.took_part.contains(worker)).collect();
        changed.then(|| match missing.is_empty() {
            true => format!("step {}: all {workers} workers synchronised", quorum.step),
            false => format!(
                "step {}: {} of {workers} workers synchronised; missing: {}",
                quorum.step,
                self.took_part.len(),
                list(&missing)
            ),
        })
    }

    /// The last step is made. Waits until the other participants have all that this worker sends.
    pub(super) fn finish(mut self) {
        std::mem::replace(&mut self.world, OuterWorld::Alone).shut_down();
        self.set(Status::Done);
    }

    fn set(&self, status: Status) {
        if let Some(member) = &self.member {
            member.set(self.base, status);
        }
    }

    /// What the coordinator says to what this worker asks; all ranks get the same.
    fn decision(&self, session: &Session, what: &str, say: &mut dyn FnMut(&str)) -> anyhow::Result<Decided> {
        let mut said = None;
        loop {
            session.heartbeat.send(what);
            let own = match &self.member {
                _ if session.check_interrupt().is_err() => Decided::Interrupted,
                None => Decided::Nothing,
                Some(member) => match member.decision(LOOK) {
                    Ok(None) => Decided::Nothing,
                    Ok(Some(CoordinatorDecision::Train)) => Decided::Train,
                    Ok(Some(CoordinatorDecision::Join)) => Decided::Join,
                    Ok(Some(CoordinatorDecision::Quorum(quorum))) => Decided::Quorum(quorum),
                    Err(error) => Decided::Failed(error.to_string()),
                },
            };
            let expects = self.member.as_ref().and_then(Member::expects);
            if let Some(expects) = expects.filter(|expects| said.as_ref() != Some(expects)) {
                say(&expects);
                said = Some(expects);
            }
            let all = all_gather_whole_text(session.group(), &serde_json::to_string(&own)?)?;
            let mut first = Decided::Nothing;
            for (rank, text) in all.iter().enumerate() {
                match serde_json::from_str(text)? {
                    Decided::Interrupted => return Err(Interrupted.into()),
                    found if rank == 0 => first = found,
                    _ => {}
                }
            }
            match first {
                Decided::Nothing => {}
                Decided::Failed(why) => return Err(AgreedError(why).into()),
                decided => return Ok(decided),
            }
        }
    }
}

/// What all ranks of this worker have, or why the first that has nothing does not: what one of them lacks, all do without.
///
/// # Errors
/// If a rank failed.
pub(super) fn agreed<R>(session: &Session, result: anyhow::Result<R>) -> anyhow::Result<Result<R, String>> {
    let is_well = f64::from(u8::from(result.is_ok()));
    let all = session.collectives().all_gather_scalars(vec![is_well]).wait()?;
    let (own, why) = match result {
        Ok(own) => (Some(own), String::new()),
        Err(error) => (None, format!("{error:#}")),
    };
    if let Some(own) = own.filter(|_| all.iter().all(|words| words[0] == 1.0)) {
        return Ok(Ok(own));
    }
    let all = all_gather_text(session.group(), &why)?;
    Ok(Err(all.into_iter().find(|why| !why.is_empty()).unwrap_or_default()))
}

fn list(workers: &[usize]) -> String {
    workers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// A number that no other process with this worker's number has had.
///
/// # Errors
/// If the system gives no random numbers.
pub(super) fn incarnation() -> anyhow::Result<u64> {
    getrandom::u64().context("the system gives no random numbers")
}
