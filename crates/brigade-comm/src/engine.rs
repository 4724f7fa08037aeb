//! Drives the operations of one group on one rank.
//!
//! Whoever holds the engine drives everything that is in flight: a caller of a blocking operation while it waits, or
//! the group's progress thread, which starts with the first operation that needs it. All waiting is in one place,
//! for all links of whatever kind, so that no order of arrival can block anything else.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, TryLockError};
use std::time::{Duration, Instant};

use crate::call::Call;
use crate::collective::Collective;
use crate::error::Error;
use crate::fabric::{Fabric, Pair, Unlinked};
use crate::fault::Fault;
use crate::flight::{Recorder, Ticket, Waiting};
use crate::in_flight::{InFlight, Job, Underway, direction};
use crate::link::{Channel, Doorbell, LinkError};
use crate::pending::{Borrowed, Work};
use crate::plan::Plan;
use crate::stats::Counters;
use crate::stream::{Stop, StopReason};
use crate::sync::{lock, wait};
use crate::timeouts::Limit;
use crate::transfer::Transfer;
use crate::waiter::{Patience, Waiter};

/// The longest sleep between two looks at the deadlines.
const NAP: Duration = Duration::from_millis(200);

/// Who this rank is in its group.
pub(crate) struct Identity {
    pub(crate) group: u64,
    pub(crate) name: String,
    pub(crate) rank: usize,
    /// The world ranks of the members.
    pub(crate) members: Vec<usize>,
}

impl Identity {
    pub(crate) fn world_rank(&self) -> usize {
        self.members[self.rank]
    }

    /// The world ranks of some ranks of the group.
    pub(crate) fn members(&self, ranks: &[usize]) -> Vec<usize> {
        ranks.iter().map(|rank| self.members[*rank]).collect()
    }
}

/// What all groups of a rank share.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) fabric: Arc<dyn Fabric>,
    pub(crate) fault: Arc<Fault>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) limit: Limit,
}

/// The engine of one group with everything that its users share.
pub(crate) struct Progress {
    pub(crate) identity: Identity,
    pub(crate) context: Context,
    pub(crate) counters: Counters,
    /// The group's place in the recorder.
    place: usize,
    doorbell: Arc<Doorbell>,
    spin: bool,
    engine: Mutex<InFlight>,
    inbox: Mutex<Inbox>,
    submitted: Condvar,
}

/// What has been called and not yet been taken up by whoever drives the engine.
struct Inbox {
    jobs: Vec<Job>,
    /// Operations that are called and not complete.
    outstanding: usize,
    collectives: u64,
    transfers: Vec<[u64; 2]>,
    has_thread: bool,
    closing: bool,
}

/// Why nothing in flight can go on.
enum Halt {
    Stop(Call, Stop),
    Failed(Error),
}

/// What a collective is called with.
pub(crate) struct Request {
    /// Its sequence number is filled in when it is its turn.
    pub(crate) call: Call,
    /// The rank of the root in the group.
    pub(crate) root: usize,
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.context.fabric.leave(self.identity.group, self.identity.world_rank());
    }
}

impl Progress {
    pub(crate) fn new(identity: Identity, context: Context, place: usize, doorbell: Arc<Doorbell>) -> Self {
        let size = identity.members.len();
        let spin = context.fabric.has_core_per_rank();
        Self {
            identity,
            context,
            counters: Counters::default(),
            place,
            doorbell,
            spin,
            engine: Mutex::new(InFlight::new(size)),
            inbox: Mutex::new(Inbox {
                jobs: Vec::new(),
                outstanding: 0,
                collectives: 0,
                transfers: vec![[0; 2]; size],
                has_thread: false,
                closing: false,
            }),
            submitted: Condvar::new(),
        }
    }

    /// Runs a collective on the caller's thread; false if others are before it, so that it has to be queued.
    pub(crate) fn run_inline(&self, request: &Request, bytes: &mut [u8]) -> Result<bool, Error> {
        self.fault().check(self.identity.world_rank())?;
        let mut engine = match self.engine.try_lock() {
            Ok(engine) => engine,
            Err(TryLockError::Poisoned(engine)) => engine.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        let mut inbox = lock(&self.inbox);
        if inbox.outstanding > 0 {
            return Ok(false);
        }
        inbox.outstanding += 1;
        let mut collective = self.collective(&mut inbox, request, Box::new(Borrowed(bytes)), true);
        drop(inbox);
        let outcome = self.drive(&mut engine, Some(&mut collective), Patience::Caller { spin: self.spin });
        self.finish(&collective, outcome.is_ok());
        outcome.map(|()| true)
    }

    /// Queues a collective.
    pub(crate) fn queue_collective(self: &Arc<Self>, request: &Request, work: Box<dyn Work>) {
        let mut inbox = lock(&self.inbox);
        let collective = self.collective(&mut inbox, request, work, false);
        self.submit(inbox, Job::Collective(collective));
    }

    /// Queues a send or a receive.
    pub(crate) fn queue_transfer(self: &Arc<Self>, mut call: Call, peer: usize, work: Box<dyn Work>) {
        let mut inbox = lock(&self.inbox);
        let next = &mut inbox.transfers[peer][direction(call.operation)];
        call.sequence = *next;
        *next += 1;
        let Identity { group, members, .. } = &self.identity;
        let ticket =
            self.context.recorder.called(self.place, &call, Some(members[peer]), Instant::now(), false);
        self.submit(inbox, Job::Transfer(Transfer::new(*group, peer, call, ticket, work)));
    }

    /// The user has no more handles: the progress thread ends when all that was called is complete.
    pub(crate) fn close(&self) {
        lock(&self.inbox).closing = true;
        self.submitted.notify_all();
    }

    /// A collective; one that `starts` is the oldest of the group.
    fn collective<'a>(
        &self,
        inbox: &mut Inbox,
        request: &Request,
        work: Box<dyn Work + 'a>,
        starts: bool,
    ) -> Collective<'a> {
        let Identity { rank, members, .. } = &self.identity;
        let call = Call { sequence: inbox.collectives, ..request.call };
        inbox.collectives += 1;
        let plan = Plan::new(&call, members.len(), *rank, request.root);
        let now = Instant::now();
        let ticket = self.context.recorder.called(self.place, &call, None, now, starts);
        let started = starts.then_some(now);
        Collective::new(&self.identity, call, ticket, started, plan, work)
    }

    fn submit(self: &Arc<Self>, mut inbox: std::sync::MutexGuard<'_, Inbox>, job: Job) {
        inbox.jobs.push(job);
        inbox.outstanding += 1;
        if !inbox.has_thread {
            let progress = self.clone();
            let name = format!("brigade {}", self.identity.name);
            match std::thread::Builder::new().name(name).spawn(move || progress.run()) {
                Ok(_) => inbox.has_thread = true,
                Err(error) => {
                    let reason = error.to_string();
                    let error = Error::System { what: "start a progress thread", reason };
                    self.fault().raise(self.identity.world_rank(), error.clone());
                    for job in std::mem::take(&mut inbox.jobs) {
                        inbox.outstanding -= 1;
                        self.context.recorder.finished(job.underway().ticket(), false, (0, 0));
                        job.complete(Err(error.clone()));
                    }
                    return;
                }
            }
        }
        drop(inbox);
        self.submitted.notify_all();
        self.doorbell.ring();
    }

    /// The progress thread.
    fn run(&self) {
        loop {
            let mut inbox = lock(&self.inbox);
            while inbox.outstanding == 0 && !inbox.closing {
                inbox = wait(&self.submitted, inbox);
            }
            if inbox.outstanding == 0 {
                return;
            }
            drop(inbox);
            let mut engine = lock(&self.engine);
            let drive = AssertUnwindSafe(|| self.drive(&mut engine, None, Patience::Background));
            if catch_unwind(drive).is_err() {
                let rank = self.identity.world_rank();
                let reason = format!("a buffer of group \"{}\" panicked", self.identity.name);
                self.fault().raise(rank, Error::Aborted { rank, reason });
            }
        }
    }

    /// Drives the engine until `inline` is complete, or everything where there is none.
    fn drive(
        &self,
        engine: &mut InFlight,
        mut inline: Option<&mut Collective<'_>>,
        patience: Patience,
    ) -> Result<(), Error> {
        let mut waiter = Waiter::new(patience);
        let mut armed = false;
        let mut answered = self.context.recorder.inquiries();
        loop {
            engine.take_up(std::mem::take(&mut lock(&self.inbox).jobs));
            if let Some(error) = self.fault().error_for(self.identity.world_rank()) {
                self.note_waits(engine, inline.as_deref());
                for job in engine.clear() {
                    self.finish(job.underway(), false);
                    job.complete(Err(error.clone()));
                }
                return Err(error);
            }
            if std::mem::replace(&mut answered, self.context.recorder.inquiries()) != answered {
                self.note_waits(engine, inline.as_deref());
            }
            let linked = self.link(engine, inline.as_deref_mut());
            let advanced =
                linked.and_then(|linked| Ok(self.advance(engine, inline.as_deref_mut())? || linked));
            let moved = match advanced {
                Ok(moved) => moved,
                Err(Halt::Stop(call, stop)) => {
                    self.give_up(call, stop);
                    continue;
                }
                Err(Halt::Failed(error)) => {
                    self.fault().raise(self.identity.world_rank(), error);
                    continue;
                }
            };
            let done = match &inline {
                Some(collective) => collective.is_done(),
                None => engine.is_idle(),
            };
            if done {
                if armed {
                    engine.disarm();
                }
                return Ok(());
            }
            if moved {
                waiter.reset();
            } else if !armed {
                if !waiter.should_sleep() {
                    continue;
                }
                // Look once more after peers have been asked to ring.
                engine.arm();
                armed = true;
                continue;
            } else {
                let Some(left) = self.time_left(engine, inline.as_deref()) else { continue };
                self.doorbell.wait(&engine.awaited(inline.as_deref()), left.min(NAP));
            }
            if std::mem::take(&mut armed) {
                engine.disarm();
            }
        }
    }

    /// Fetches the links that what comes first of each queue needs, as far as they have come about; says whether any has.
    fn link(&self, engine: &mut InFlight, inline: Option<&mut Collective<'_>>) -> Result<bool, Halt> {
        let InFlight { links, collectives, transfers } = engine;
        let Identity { group, name, rank, members } = &self.identity;
        let mut came = false;
        let mut fetch = |peer: usize, channel, call: &Call| {
            let place = links[peer].get_mut(channel);
            if place.is_none() {
                let pair = Pair {
                    group: *group,
                    name,
                    members: members.len(),
                    rank: members[*rank],
                    peer: members[peer],
                    channel,
                };
                *place = self.context.fabric.link(&pair).map_err(|unlinked| match unlinked {
                    Unlinked::Left => {
                        Halt::Stop(*call, Stop { peer, reason: StopReason::Link(LinkError::Closed) })
                    }
                    Unlinked::Failed(error) => Halt::Failed(error),
                })?;
                came |= place.is_some();
            }
            Ok(place.is_some())
        };
        if let Some(collective) = inline {
            collective.link(&mut fetch)?;
        } else if let Some(collective) = collectives.front_mut() {
            collective.link(&mut fetch)?;
        }
        for (peer, queues) in transfers.iter().enumerate() {
            for (queue, channel) in queues.iter().zip([Channel::Outbound, Channel::Inbound]) {
                if let Some(transfer) = queue.front() {
                    fetch(peer, channel, &transfer.call)?;
                }
            }
        }
        Ok(came)
    }

    /// Does what can be done without waiting, and completes what is done.
    fn advance(&self, engine: &mut InFlight, inline: Option<&mut Collective<'_>>) -> Result<bool, Halt> {
        let mut moved = false;
        if let Some(collective) = inline {
            moved |=
                collective.advance(&mut engine.links).map_err(|stop| Halt::Stop(collective.call, stop))?;
        } else if let Some(collective) = engine.collectives.front_mut() {
            self.start(&mut collective.started, collective.ticket);
            moved |=
                collective.advance(&mut engine.links).map_err(|stop| Halt::Stop(collective.call, stop))?;
            if let Some(collective) = engine.collectives.pop_front_if(|collective| collective.is_done()) {
                self.finish(&collective, true);
                collective.complete(Ok(()));
                moved = true;
            }
        }
        for (links, queues) in engine.links.iter_mut().zip(&mut engine.transfers) {
            for (queue, link) in queues.iter_mut().zip([&mut links.outbound, &mut links.inbound]) {
                let Some(transfer) = queue.front_mut() else { continue };
                self.start(&mut transfer.started, transfer.ticket);
                let Some(link) = link else { continue };
                moved |= transfer.advance(link).map_err(|stop| Halt::Stop(transfer.call, stop))?;
                if let Some(transfer) = queue.pop_front_if(|transfer| transfer.is_done()) {
                    self.finish(&transfer, true);
                    transfer.complete(Ok(()));
                    moved = true;
                }
            }
        }
        Ok(moved)
    }

    /// Notes when an operation became the oldest of its queue.
    fn start(&self, started: &mut Option<Instant>, ticket: Ticket) {
        if started.is_none() {
            let now = Instant::now();
            *started = Some(now);
            self.context.recorder.started(ticket, now);
        }
    }

    /// Counts an operation as no longer outstanding, before its caller can know.
    fn finish(&self, operation: &dyn Underway, succeeded: bool) {
        let traffic = operation.traffic();
        self.context.recorder.finished(operation.ticket(), succeeded, traffic);
        lock(&self.inbox).outstanding -= 1;
        if succeeded {
            self.counters.add(operation.call().operation, traffic.0);
        }
    }

    fn left(&self, operation: &dyn Underway, now: Instant) -> Duration {
        let waited = operation.started().map_or(Duration::ZERO, |started| now - started);
        self.context.limit.now().saturating_sub(waited)
    }

    /// The time until the first deadline, or nothing once one has passed and has been raised.
    fn time_left(&self, engine: &InFlight, inline: Option<&Collective<'_>>) -> Option<Duration> {
        let now = Instant::now();
        let mut least = self.context.limit.now();
        for (operation, is_first) in engine.all(inline) {
            if !is_first {
                continue;
            }
            least = least.min(self.left(operation, now));
            if least == Duration::ZERO {
                self.note_waits(engine, inline);
                self.expire(operation);
                return None;
            }
        }
        Some(least)
    }

    /// Notes what everything in flight waits for.
    fn note_waits(&self, engine: &InFlight, inline: Option<&Collective<'_>>) {
        let now = Instant::now();
        for (operation, is_first) in engine.all(inline) {
            let (absent, stalled) = if is_first { operation.missing() } else { Default::default() };
            let waiting = Waiting {
                awaited: operation.is_awaited(),
                overdue: is_first && self.left(operation, now) == Duration::ZERO,
                absent: self.identity.members(&absent),
                stalled: self.identity.members(&stalled),
            };
            self.context.recorder.waits(operation.ticket(), waiting);
        }
    }

    pub(crate) fn fault(&self) -> &Fault {
        &self.context.fault
    }
}
