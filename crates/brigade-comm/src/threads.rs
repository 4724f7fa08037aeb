//! A world of threads in one process.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use crate::engine::Context;
use crate::error::{Error, Verdict};
use crate::fabric::{Fabric, Pair, Unlinked, has_cores_for};
use crate::fault::Fault;
use crate::flight::{Recorder, SETTLE, investigate};
use crate::group::Group;
use crate::link::{Channel, Doorbell, Link, Segment, SharedLink, segment_bytes};
use crate::sync::lock;
use crate::timeouts::{Limit, Timeouts};

/// Makes a world of `n` ranks for the threads of one process: element r is rank r's group.
///
/// A rank whose last handle of a group is dropped by a panic fails the world; one that is dropped otherwise has left,
/// which is an error only for ranks that still wait for it.
///
/// # Panics
/// If the system has no memory or descriptors left.
pub fn threads(n: usize, timeouts: Timeouts) -> Vec<Group> {
    let recorders: Vec<_> = (0..n).map(|rank| Arc::new(Recorder::new(rank, n, 0))).collect();
    let fault = Arc::new(Fault::default());
    let fabric =
        Arc::new(Switchboard { recorders: recorders.clone(), fault: fault.clone(), board: Mutex::default() });
    let ranks = recorders.into_iter().map(|recorder| {
        let (fabric, fault) = (fabric.clone(), fault.clone());
        let context = Context { fabric, fault, recorder, limit: Limit::new(timeouts) };
        match Group::world(context, (0..n).collect()) {
            Ok(group) => group,
            Err(error) => panic!("a world of {n} threads: {error}"),
        }
    });
    ranks.collect()
}

/// Where the two ends of a link find each other.
struct Switchboard {
    recorders: Vec<Arc<Recorder>>,
    fault: Arc<Fault>,
    board: Mutex<Board>,
}

#[derive(Default)]
struct Board {
    /// By group and rank.
    doorbells: HashMap<(u64, usize), Arc<Doorbell>>,
    /// Ends of links that the other rank has made: by group, the rank that is to take it, the other one, and channel.
    ends: HashMap<(u64, usize, usize, Channel), Link>,
    left: HashSet<(u64, usize)>,
}

impl Board {
    fn doorbell(&mut self, group: u64, rank: usize) -> Result<Arc<Doorbell>, Error> {
        match self.doorbells.get(&(group, rank)) {
            Some(doorbell) => Ok(doorbell.clone()),
            None => {
                let doorbell = Arc::new(Doorbell::new()?);
                self.doorbells.insert((group, rank), doorbell.clone());
                Ok(doorbell)
            }
        }
    }
}

impl Fabric for Switchboard {
    fn enter(&self, group: u64, rank: usize) -> Result<Arc<Doorbell>, Error> {
        lock(&self.board).doorbell(group, rank)
    }

    /// What it gave to others stays theirs; who waits for it is told.
    fn leave(&self, group: u64, rank: usize) {
        let mut board = lock(&self.board);
        board.left.insert((group, rank));
        board.ends.retain(|(of, owner, ..), _| (*of, *owner) != (group, rank));
        board.doorbells.remove(&(group, rank));
        let others = board.doorbells.iter().filter(|((of, _), _)| *of == group);
        others.for_each(|(_, doorbell)| doorbell.ring());
    }

    /// Who comes first makes both ends.
    fn link(&self, pair: &Pair<'_>) -> Result<Option<Link>, Unlinked> {
        let Pair { group, rank, peer, channel, members, .. } = *pair;
        let mut board = lock(&self.board);
        if let Some(link) = board.ends.remove(&(group, rank, peer, channel)) {
            return Ok(Some(link));
        }
        if board.left.contains(&(group, peer)) {
            return Err(Unlinked::Left);
        }
        let segment = Arc::new(Segment::anonymous(segment_bytes(members))?);
        let (ours, theirs) = (board.doorbell(group, rank)?, board.doorbell(group, peer)?);
        let end = |side, other| Link::Shared(SharedLink::new(segment.clone(), side, other));
        board.ends.insert((group, peer, rank, channel.at_peer()), end(1, ours));
        theirs.ring();
        Ok(Some(end(0, theirs)))
    }

    fn inquire(&self, asker: usize) -> Verdict {
        self.recorders.iter().for_each(|recorder| recorder.inquire());
        self.fault.wake_all();
        std::thread::sleep(SETTLE);
        let standings = self.recorders.iter().map(|recorder| recorder.standing()).enumerate().collect();
        investigate(&standings, asker, &[])
    }

    fn has_core_per_rank(&self) -> bool {
        has_cores_for(self.recorders.len())
    }
}
