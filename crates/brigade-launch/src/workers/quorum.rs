//! Which workers meet when: the coordinator's rules, without its connections.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use brigade_sorted::SortedMap;

use super::message::{Base, CoordinatorReply, Quorum, Request, Status};

/// How long a worker whose connection broke may take to call again before it counts as gone.
const RECONNECT: Duration = Duration::from_secs(1);

/// The workers that are there, and what they do.
pub struct Quorums {
    workers: usize,
    /// How long those that ask for a quorum wait for the others.
    wait: Duration,
    /// How long workers of a coordinator before this one may take to notice that it is gone, and when this one began.
    silence: Duration,
    began: Instant,
    /// Whether workers have met under such a coordinator.
    have_met: bool,
    members: SortedMap<usize, Worker>,
    /// A quorum whose outcome nobody has reported yet.
    pending: Option<Pending>,
    /// The workers that have a world together since a quorum.
    world: (u64, Vec<Identity>),
    /// The newest quorum's number; 0 before the first.
    newest: u64,
    /// What a worker had that has ended the run.
    done: Option<Base>,
    /// Which workers that have never come are waited for, in words.
    expects: Option<String>,
    /// What has happened since somebody asked.
    messages: Vec<String>,
}

/// A worker's number, and which of those that have had it.
type Identity = (usize, u64);

struct Worker {
    incarnation: u64,
    base: Base,
    status: Status,
    /// Since when it asks for a quorum, or does not call.
    waits_since: Option<Instant>,
    lost_since: Option<Instant>,
    /// The quorum that its request has led to.
    decided: Option<(u64, Quorum)>,
}

struct Pending {
    base: Base,
    /// Who contributes, and the number of the request.
    participants: Vec<(Identity, u64)>,
}

/// What has become of a participant of a quorum.
#[derive(PartialEq, Eq)]
enum Outcome {
    HasResult,
    Without,
    Unknown,
}

impl Worker {
    /// Its request, if it has made steps since its base.
    fn contribution(&self) -> Option<&Request> {
        self.request().filter(|request| request.step > self.base.step && self.decided.is_none())
    }

    fn request(&self) -> Option<&Request> {
        match &self.status {
            Status::Waiting(request) if self.lost_since.is_none() => Some(request),
            _ => None,
        }
    }

    /// The quorum that it takes part in, as long as it has not told the outcome.
    fn takes_part_in(&self) -> Option<u64> {
        match (&self.status, &self.decided) {
            (Status::Quorum(id), _) => Some(*id),
            (_, decided) => decided.as_ref().map(|(_, quorum)| quorum.id),
        }
    }

    /// Whether it has these parameters, or is about to.
    fn comes_to(&self, base: Base) -> bool {
        self.base == base || self.takes_part_in() == Some(base.quorum)
    }
}

impl Quorums {
    /// For this many workers. Those that ask wait for the others for up to `wait`; `silence` is how long one may be silent until it is gone.
    pub fn new(workers: usize, wait: Duration, silence: Duration) -> Self {
        Self {
            workers,
            wait,
            silence,
            began: Instant::now(),
            have_met: false,
            members: SortedMap::new(),
            pending: None,
            world: (0, Vec::new()),
            newest: 0,
            done: None,
            expects: None,
            messages: Vec::new(),
        }
    }

    /// Lets a worker in; one that is there already with its number is refused, unless it is gone or the same one.
    pub fn enter(
        &mut self,
        (worker, incarnation): Identity,
        base: Base,
        status: Status,
    ) -> Result<(), String> {
        match self.members.get(&worker) {
            Some(there) if there.incarnation != incarnation && there.lost_since.is_none() => {
                return Err(format!("there is already a worker {worker}; give each its own --worker"));
            }
            Some(there) if there.incarnation == incarnation => {}
            _ => {
                // A worker begins by asking. One that comes with what it is doing has asked another coordinator.
                self.have_met |= status != Status::Starting && base.quorum > 0;
                let fresh =
                    Worker { incarnation, base, status, waits_since: None, lost_since: None, decided: None };
                self.members.insert(worker, fresh);
                self.messages.push(match base.step {
                    0 => format!("worker {worker} joined"),
                    step => format!("worker {worker} joined with its state of step {step}"),
                });
            }
        }
        Ok(())
    }

    /// Notes what a worker that was let in says, and answers.
    pub fn report(
        &mut self,
        (worker, incarnation): Identity,
        base: Base,
        status: Status,
        now: Instant,
    ) -> CoordinatorReply {
        let replaced = || CoordinatorReply::Refused {
            reason: format!("another worker {worker} has taken its place"),
            again: false,
        };
        let Some(member) = self.members.get_mut(&worker) else { return replaced() };
        if member.incarnation != incarnation {
            return replaced();
        }
        member.lost_since = None;
        let is_new = match (&member.status, &status) {
            (Status::Waiting(before), Status::Waiting(request)) => before.number != request.number,
            _ => true,
        };
        if is_new {
            (member.decided, member.waits_since) = (None, None);
        }
        if let Status::Waiting(_) = status {
            member.waits_since.get_or_insert(now);
        }
        (member.base, member.status) = (base, status);
        self.forget_lost(now);
        if self.members[&worker].status == Status::Done {
            self.done = self.done.max(Some(base));
            self.messages.push(format!("worker {worker} has made the last step, {}", base.step));
            self.members.remove(&worker);
            return CoordinatorReply::Noted;
        }
        self.decide(now);
        self.answer(worker)
    }

    /// Notes that a worker's connection broke.
    pub fn lose(&mut self, (worker, incarnation): Identity, now: Instant) {
        if let Some(member) = self.members.get_mut(&worker).filter(|member| member.incarnation == incarnation)
        {
            member.lost_since.get_or_insert(now);
        }
    }

    /// Whether no worker is there, nor expected to reconnect.
    pub fn is_empty(&mut self, now: Instant) -> bool {
        self.forget_lost(now);
        self.members.is_empty()
    }

    /// Whether the run has ended: a worker has made the last step, and none is there any more.
    pub fn is_over(&mut self, now: Instant) -> bool {
        self.is_empty(now) && self.done.is_some()
    }

    /// What has happened since this was asked before.
    pub fn drain_messages(&mut self) -> Vec<String> {
        std::mem::take(&mut self.messages)
    }

    fn forget_lost(&mut self, now: Instant) {
        let messages = &mut self.messages;
        self.members.retain(|worker, member| {
            let is_here =
                member.lost_since.is_none_or(|since| now.saturating_duration_since(since) < RECONNECT);
            if !is_here {
                messages.push(format!("worker {worker} is gone"));
            }
            is_here
        });
    }

    fn answer(&self, worker: usize) -> CoordinatorReply {
        let member = &self.members[&worker];
        let asks = matches!(member.status, Status::Starting | Status::Waiting(_));
        if let Some(done) = self.done.filter(|done| asks && *done > member.base && *done >= self.head()) {
            return CoordinatorReply::Over { step: done.step };
        }
        match &member.status {
            Status::Starting if self.head() > member.base => CoordinatorReply::Join,
            Status::Starting => CoordinatorReply::Train,
            Status::Waiting(request) => match &member.decided {
                Some((number, quorum)) => {
                    CoordinatorReply::Quorum { request: *number, quorum: quorum.clone() }
                }
                None if request.step == member.base.step && member.base == self.head() => {
                    CoordinatorReply::Train
                }
                None => match &self.expects {
                    Some(expects) => CoordinatorReply::Expects { expects: expects.clone() },
                    None => CoordinatorReply::Noted,
                },
            },
            _ => CoordinatorReply::Noted,
        }
    }

    /// The newest parameters that a worker has.
    fn head(&self) -> Base {
        self.members.values().map(|member| member.base).max().unwrap_or_default()
    }

    /// Begins a quorum, if it is time.
    fn decide(&mut self, now: Instant) {
        if self.pending.as_ref().is_some_and(|pending| !self.is_known(pending)) {
            return;
        }
        self.pending = None;
        let head = self.head();
        let asking = |member: &&Worker| member.base == head && member.contribution().is_some();
        let Some(since) = self.members.values().filter(asking).filter_map(|member| member.waits_since).min()
        else {
            return;
        };
        let is_late = |member: &Worker| member.comes_to(head) && member.contribution().is_none();
        let expected = self.expected(now);
        let others_come = expected.is_some() || self.members.values().any(is_late);
        if others_come && now.saturating_duration_since(since) < self.wait {
            if self.expects != expected {
                self.messages.extend(expected.clone());
                self.expects = expected;
            }
            return;
        }
        self.expects = None;
        self.begin(head);
    }

    /// The workers that have not come yet, but are waited for, in words. At first nobody knows who is still to come; later, who is missing is
    /// gone.
    fn expected(&self, now: Instant) -> Option<String> {
        let missing: Vec<usize> =
            (0..self.workers).filter(|worker| !self.members.contains_key(worker)).collect();
        if self.newest > 0 || missing.is_empty() {
            return None;
        }
        let is_over = self.have_met && now.saturating_duration_since(self.began) >= self.silence;
        let (limit, option) = match self.have_met {
            true if self.silence < self.wait => (self.silence, "--host-timeout"),
            _ => (self.wait, "--wait-seconds"),
        };
        let s = if missing.len() == 1 { "" } else { "s" };
        let expects = format!(
            "waiting for worker{s} {} (at most {} s, {option} of brigade coordinate)",
            list(&missing),
            limit.as_secs_f64()
        );
        (!is_over).then_some(expects)
    }

    /// Whether it is known what became of a quorum.
    fn is_known(&self, pending: &Pending) -> bool {
        let outcome = |((worker, incarnation), asked): &(Identity, u64)| match self.members.get(worker) {
            Some(member) if member.incarnation == *incarnation => match &member.status {
                _ if member.base >= pending.base => Outcome::HasResult,
                Status::Waiting(request) if request.number != *asked => Outcome::Without,
                _ => Outcome::Unknown,
            },
            _ => Outcome::Without,
        };
        let outcomes: Vec<Outcome> = pending.participants.iter().map(outcome).collect();
        outcomes.contains(&Outcome::HasResult) || !outcomes.contains(&Outcome::Unknown)
    }

    /// Lets those that ask meet, of which those with the newest parameters contribute.
    fn begin(&mut self, head: Base) {
        let asking = |(worker, member): (&usize, &Worker)| {
            let is_current = member.base == head;
            let request = if is_current { member.contribution() } else { member.request() };
            let request = request.filter(|_| member.decided.is_none())?.clone();
            Some((*worker, member.incarnation, is_current, request))
        };
        let (participants, recovering): (Vec<_>, Vec<_>) =
            self.members.iter().filter_map(asking).partition(|(_, _, is_current, _)| *is_current);
        let Some((_, _, _, first)) = participants.first() else { return };
        let members: Vec<Identity> = participants.iter().map(|found| (found.0, found.1)).collect();
        let (world, with) = &self.world;
        let keeps_world =
            *world > 0 && *with == members && participants.iter().all(|found| found.3.world == *world);
        let quorum = Quorum {
            id: self.next_id(),
            step: first.step,
            participants: members.iter().map(|(worker, _)| *worker).collect(),
            keeps_world,
            sums: first.sums.clone(),
            recovering: recovering.iter().map(|found| found.0).collect(),
            transfer: first.transfer.clone(),
        };
        self.newest = quorum.id;
        let mut note =
            format!("outer step after step {}: workers {}", quorum.step, list(&quorum.participants));
        if !quorum.recovering.is_empty() {
            note += &format!("; {} given the result", list(&quorum.recovering));
        }
        self.messages.push(note);
        if !keeps_world {
            self.world = (quorum.id, members);
        }
        self.pending = Some(Pending {
            base: quorum.base(),
            participants: participants.iter().map(|found| ((found.0, found.1), found.3.number)).collect(),
        });
        for (worker, _, _, request) in participants.iter().chain(&recovering) {
            if let Some(member) = self.members.get_mut(worker) {
                member.decided = Some((request.number, quorum.clone()));
            }
        }
    }

    /// A number greater than those of all quorums, also of a coordinator before this one.
    fn next_id(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let micros = now.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(0));
        let known = self.members.values().map(|member| member.base.quorum).max().unwrap_or(0);
        micros.max(known + 1).max(self.newest + 1)
    }
}

fn list(workers: &[usize]) -> String {
    workers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}
