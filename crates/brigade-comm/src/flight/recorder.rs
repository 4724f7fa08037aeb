//! Records what a rank does as it happens.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use brigade_sorted::SortedMap;

use super::MAX_OPERATIONS;
use super::busy_time::BusyTime;
use super::rank_status::RankStatus;
use super::record::{Entry, GroupRecord, State, Waiting};
use crate::op::call::Call;
use crate::sync::lock;

/// One rank's recorder, for all its groups. An operation costs two short, uncontended locks and no allocation. The recorder
/// has cache lines of its own, because in a world of threads its neighbour in memory belongs to another rank.
#[repr(align(128))]
pub(crate) struct Recorder {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) restart: u32,
    pub(crate) began: Instant,
    pub(crate) began_at: SystemTime,
    notes: Mutex<Notes>,
    /// How often a status was requested.
    status_requests: AtomicU64,
}

/// What has been recorded so far.
struct Notes {
    groups: Vec<GroupRecord>,
    calls: u64,
    /// The last operations, at the remainder of their ids by [`MAX_OPERATIONS`].
    ring: Vec<Entry>,
    /// Operations that are in flight, but older than those of the ring.
    overtaken: SortedMap<u64, Entry>,
    /// The time of collectives.
    collectives: BusyTime,
}

/// An operation in the recorder, by its id.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryId(u64);

impl Recorder {
    pub(crate) fn new(rank: usize, world_size: usize, restart: u32) -> Self {
        let ring = Vec::with_capacity(MAX_OPERATIONS);
        let (overtaken, collectives) = (SortedMap::new(), BusyTime::default());
        let notes = Notes { groups: Vec::new(), calls: 0, ring, overtaken, collectives };
        Self {
            rank,
            world_size,
            restart,
            began: Instant::now(),
            began_at: SystemTime::now(),
            notes: Mutex::new(notes),
            status_requests: AtomicU64::new(0),
        }
    }

    /// Records a group that this rank is in, and returns its index.
    pub(crate) fn register(&self, number: u64, name: &str, members: &[usize]) -> usize {
        let mut notes = lock(&self.notes);
        notes.groups.push(GroupRecord::new(number, name, members));
        notes.groups.len() - 1
    }

    /// An operation was called; it may start at once.
    pub(crate) fn called(
        &self,
        group: usize,
        call: &Call,
        peer: Option<usize>,
        now: Instant,
        starts: bool,
    ) -> EntryId {
        let called = self.micros(now);
        let mut notes = lock(&self.notes);
        let id = notes.calls;
        notes.calls += 1;
        notes.groups[group].count(call, peer);
        if starts {
            notes.began(call, called);
        }
        let entry = Entry {
            id,
            group,
            call: *call,
            peer,
            state: if starts { State::Started } else { State::Called },
            called,
            started: starts.then_some(called),
            finished: None,
            sent: 0,
            received: 0,
            waiting: None,
        };
        match notes.ring.get_mut(id as usize % MAX_OPERATIONS) {
            None => notes.ring.push(entry),
            Some(place) => {
                let old = std::mem::replace(place, entry);
                if old.finished.is_none() {
                    notes.overtaken.insert(old.id, old);
                }
            }
        }
        EntryId(id)
    }

    /// It is the oldest of its queue.
    pub(crate) fn started(&self, entry_id: EntryId, now: Instant) {
        let now = self.micros(now);
        let mut notes = lock(&self.notes);
        let call = notes.change(entry_id, |entry| {
            (entry.state, entry.started) = (State::Started, Some(now));
            entry.call
        });
        call.iter().for_each(|call| notes.began(call, now));
    }

    /// What it waits for.
    pub(crate) fn waits(&self, entry_id: EntryId, waiting: Waiting) {
        lock(&self.notes).change(entry_id, |entry| entry.waiting = Some(Box::new(waiting)));
    }

    /// It is complete, or failed, after this many payload bytes sent and received.
    pub(crate) fn finished(&self, entry_id: EntryId, succeeded: bool, (sent, received): (u64, u64)) {
        let now = self.micros(Instant::now());
        let mut notes = lock(&self.notes);
        let begun = notes.change(entry_id, |entry| {
            entry.state = if succeeded { State::Done } else { State::Failed };
            (entry.finished, entry.sent, entry.received) = (Some(now), sent, received);
            entry.started.is_some() && !entry.call.operation.is_transfer()
        });
        if begun == Some(true) {
            notes.collectives.end(now);
        }
        // An operation that failed stays: nothing comes after it.
        if succeeded && !notes.overtaken.is_empty() {
            notes.overtaken.remove(&entry_id.0);
        }
    }

    /// How long at least one collective was under way.
    pub(crate) fn collective_time(&self) -> Duration {
        let now = self.micros(Instant::now());
        Duration::from_micros(lock(&self.notes).collectives.until(now))
    }

    /// Asks the threads that drive this rank's operations to record what they wait for, as soon as they wake up.
    pub(crate) fn request_status(&self) {
        self.status_requests.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of status requests so far.
    pub(crate) fn status_requests(&self) -> u64 {
        self.status_requests.load(Ordering::Relaxed)
    }

    /// Microseconds since the world began.
    pub(crate) fn micros(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.began);
        since.as_secs() * 1_000_000 + u64::from(since.subsec_micros())
    }

    /// All groups; and the last [`MAX_OPERATIONS`] operations and at most as many older ones that are in flight, in the
    /// order of their calls.
    pub(crate) fn read(&self) -> (Vec<GroupRecord>, Vec<Entry>) {
        let notes = lock(&self.notes);
        let oldest = notes.overtaken.values().take(MAX_OPERATIONS);
        let mut entries: Vec<Entry> = oldest.chain(&notes.ring).cloned().collect();
        entries.sort_by_key(|entry| entry.id);
        (notes.groups.clone(), entries)
    }

    /// The rank's status.
    pub(crate) fn status(&self) -> RankStatus {
        let now = self.micros(Instant::now());
        let (groups, entries) = self.read();
        RankStatus::new(&groups, &entries, now)
    }
}

impl Notes {
    fn began(&mut self, call: &Call, now: u64) {
        if !call.operation.is_transfer() {
            self.collectives.begin(now);
        }
    }

    fn change<R>(&mut self, EntryId(id): EntryId, change: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        let place = self.ring.get_mut(id as usize % MAX_OPERATIONS).filter(|entry| entry.id == id);
        place.or_else(|| self.overtaken.get_mut(&id)).map(change)
    }
}
