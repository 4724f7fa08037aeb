//! Drives the operations of one group on one rank.
//!
//! Whoever holds the engine drives everything that is in flight: a caller of a blocking operation while it waits, or
//! the group's progress thread, which starts with the first operation that needs it. All waiting is in one place,
//! for all links of whatever kind, so that no order of arrival can block anything else.

use crate::progress::context::Context;
use crate::progress::context::GroupSpec;
use crate::progress::submissions::Submissions;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, TryLockError};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::fault::Fault;
use crate::flight::{EntryId, Waiting};
use crate::link::connector::{LinkSpec, LinkUnavailable};
use crate::link::error::LinkError;
use crate::link::role::LinkRole;
use crate::link::shared::event_fd::EventFd;
use crate::op::algorithm::Algorithm;
use crate::op::call::Call;
use crate::op::plan::layout::Layout;
use crate::op::stats::Counters;
use crate::process_group::work::BorrowedBuffer;
use crate::progress::in_flight::InFlight;
use crate::progress::operation::collective::Collective;
use crate::progress::operation::in_flight_op::InFlightOp;
use crate::progress::operation::stop::{Stop, StopReason};
use crate::progress::submissions::CollectiveArgs;
use crate::progress::waiter::{WaitMode, Waiter};
use crate::sync::{lock, wait};

/// The longest wait between two checks of the deadlines.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The engine of one group with everything that its users share.
pub(crate) struct ProgressEngine {
    pub(crate) spec: GroupSpec,
    pub(crate) context: Context,
    pub(crate) counters: Counters,
    pub(crate) layout: Layout,
    /// The group's place in the recorder.
    pub(super) group_index: usize,
    pub(super) event_fd: Arc<EventFd>,
    spin: bool,
    engine: Mutex<InFlight>,
    pub(super) submissions: Mutex<Submissions>,
    pub(super) submitted: Condvar,
}

/// Why the operations in flight cannot continue.
enum Halt {
    Stop(Call, Stop),
    Failed(Error),
}

impl Drop for ProgressEngine {
    fn drop(&mut self) {
        self.context.connector.leave_group(self.spec.group, self.spec.world_rank());
    }
}

impl ProgressEngine {
    pub(crate) fn new(spec: GroupSpec, context: Context, group_index: usize, event_fd: Arc<EventFd>) -> Self {
        let size = spec.members.len();
        let spin = context.connector.has_core_per_rank();
        let hosts: Vec<usize> = spec.members.iter().map(|member| context.localities[*member].host).collect();
        let mut layout = Layout::new(&hosts, context.algorithm);
        let world: Vec<usize> = context.localities.iter().map(|locality| locality.host).collect();
        let spans_hosts = |hosts: &[usize]| hosts.iter().any(|host| *host != hosts[0]);
        if context.algorithm == Algorithm::Auto && spans_hosts(&hosts) == spans_hosts(&world) {
            layout = layout.with_table(&hosts, &context.table);
        }
        if let Some(warning) = layout.warning().filter(|_| spec.rank == 0) {
            tracing::warn!("group \"{}\": {warning}", spec.name);
        }
        Self {
            spec,
            context,
            counters: Counters::default(),
            layout,
            group_index,
            event_fd,
            spin,
            engine: Mutex::new(InFlight::new(size)),
            submissions: Mutex::new(Submissions {
                ops: Vec::new(),
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
    pub(crate) fn run_inline(&self, args: &CollectiveArgs, bytes: &mut [u8]) -> Result<bool, Error> {
        self.fault().check(self.spec.world_rank())?;
        let mut engine = match self.engine.try_lock() {
            Ok(engine) => engine,
            Err(TryLockError::Poisoned(engine)) => engine.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        let mut submissions = lock(&self.submissions);
        if submissions.outstanding > 0 {
            return Ok(false);
        }
        submissions.outstanding += 1;
        let mut collective = self.collective(&mut submissions, args, Box::new(BorrowedBuffer(bytes)), true);
        drop(submissions);
        let outcome = self.drive(&mut engine, Some(&mut collective), WaitMode::Caller { spin: self.spin });
        self.finish(&collective, outcome.is_ok());
        outcome.map(|()| true)
    }

    /// The progress thread.
    pub(super) fn run(&self) {
        loop {
            let mut submissions = lock(&self.submissions);
            while submissions.outstanding == 0 && !submissions.closing {
                submissions = wait(&self.submitted, submissions);
            }
            if submissions.outstanding == 0 {
                return;
            }
            drop(submissions);
            let mut engine = lock(&self.engine);
            let drive = AssertUnwindSafe(|| self.drive(&mut engine, None, WaitMode::Background));
            if catch_unwind(drive).is_err() {
                let rank = self.spec.world_rank();
                let reason = format!("a buffer of group \"{}\" panicked", self.spec.name);
                self.fault().raise(rank, Error::Aborted { rank, reason });
            }
        }
    }

    /// Drives the engine until `inline` is complete; without one, until everything is.
    fn drive(
        &self,
        engine: &mut InFlight,
        mut inline: Option<&mut Collective<'_>>,
        mode: WaitMode,
    ) -> Result<(), Error> {
        let mut waiter = Waiter::new(mode);
        let mut armed = false;
        let mut answered = self.context.recorder.status_requests();
        loop {
            engine.take_up(std::mem::take(&mut lock(&self.submissions).ops));
            if let Some(error) = self.fault().error_for(self.spec.world_rank()) {
                self.note_waits(engine, inline.as_deref());
                for op in engine.clear() {
                    self.finish(op.as_in_flight(), false);
                    op.complete(Err(error.clone()));
                }
                return Err(error);
            }
            if std::mem::replace(&mut answered, self.context.recorder.status_requests()) != answered {
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
                    self.fault().raise(self.spec.world_rank(), error);
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
                // Look once more after peers have been asked to notify.
                engine.arm();
                armed = true;
                continue;
            } else {
                let Some(left) = self.time_left(engine, inline.as_deref()) else { continue };
                self.event_fd.wait(&engine.awaited(inline.as_deref()), left.min(POLL_INTERVAL));
            }
            if std::mem::take(&mut armed) {
                engine.disarm();
            }
        }
    }

    /// Gets the links that the first operation of each queue needs, if they are ready. Returns whether any was.
    fn link(&self, engine: &mut InFlight, inline: Option<&mut Collective<'_>>) -> Result<bool, Halt> {
        let InFlight { links, collectives, transfers } = engine;
        let GroupSpec { group, name, rank, members } = &self.spec;
        let mut came = false;
        let mut fetch = |peer: usize, role, call: &Call| {
            let place = links[peer].get_mut(role);
            if place.is_none() {
                let link_spec = LinkSpec {
                    group: *group,
                    name,
                    members: members.len(),
                    rank: members[*rank],
                    peer: members[peer],
                    role,
                };
                *place =
                    self.context.connector.link(&link_spec).map_err(|unavailable| match unavailable {
                        LinkUnavailable::Left => {
                            Halt::Stop(*call, Stop { peer, reason: StopReason::Link(LinkError::Closed) })
                        }
                        LinkUnavailable::Failed(error) => Halt::Failed(error),
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
            for (queue, role) in queues.iter().zip([LinkRole::Outbound, LinkRole::Inbound]) {
                if let Some(transfer) = queue.front() {
                    fetch(peer, role, &transfer.call)?;
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
            self.start(&mut collective.started, collective.entry_id);
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
                self.start(&mut transfer.started, transfer.entry_id);
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

    /// Records when an operation became the oldest of its queue.
    fn start(&self, started: &mut Option<Instant>, entry_id: EntryId) {
        if started.is_none() {
            let now = Instant::now();
            *started = Some(now);
            self.context.recorder.started(entry_id, now);
        }
    }

    /// Counts an operation as complete, before its caller learns of it.
    fn finish(&self, operation: &dyn InFlightOp, succeeded: bool) {
        let traffic = operation.traffic();
        self.context.recorder.finished(operation.entry_id(), succeeded, traffic);
        lock(&self.submissions).outstanding -= 1;
        if succeeded {
            self.counters.add(operation.call().operation, traffic.0);
            let host = |rank: usize| self.context.localities[self.spec.members[rank]].host;
            let is_elsewhere = |peer| host(peer) != host(self.spec.rank);
            self.counters.add_between_hosts(operation.sent(&is_elsewhere));
        }
    }

    fn left(&self, operation: &dyn InFlightOp, now: Instant) -> Duration {
        let waited = operation.started().map_or(Duration::ZERO, |started| now - started);
        self.context.timeout.now().saturating_sub(waited)
    }

    /// The time until the first deadline; none if one has passed, which then has failed the world.
    fn time_left(&self, engine: &InFlight, inline: Option<&Collective<'_>>) -> Option<Duration> {
        let now = Instant::now();
        let mut least = self.context.timeout.now();
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

    /// Records what every operation in flight waits for.
    fn note_waits(&self, engine: &InFlight, inline: Option<&Collective<'_>>) {
        let now = Instant::now();
        for (operation, is_first) in engine.all(inline) {
            let (absent, stalled) = if is_first { operation.missing() } else { Default::default() };
            let waiting = Waiting {
                awaited: operation.is_awaited(),
                overdue: is_first && self.left(operation, now) == Duration::ZERO,
                absent: self.spec.members(&absent),
                stalled: self.spec.members(&stalled),
            };
            self.context.recorder.waits(operation.entry_id(), waiting);
        }
    }

    pub(crate) fn fault(&self) -> &Fault {
        &self.context.fault
    }
}
