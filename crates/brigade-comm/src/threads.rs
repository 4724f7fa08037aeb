//! A world of threads in one process.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use crate::engine::Context;
use crate::error::{Error, Verdict};
use crate::fabric::{Fabric, Gathering, has_cores_for};
use crate::fault::Fault;
use crate::flight::{Recorder, SETTLE, investigate};
use crate::group::Group;
use crate::link::{Doorbell, PeerLinks, Segment};
use crate::sync::{lock, wait_until};
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
    let fabric = Arc::new(Switchboard {
        timeouts,
        recorders: recorders.clone(),
        fault: fault.clone(),
        offers: Mutex::default(),
        changed: Condvar::new(),
    });
    let members: Vec<usize> = (0..n).collect();
    std::thread::scope(|scope| {
        let ranks: Vec<_> = recorders
            .into_iter()
            .map(|recorder| {
                let (fabric, fault, members) = (fabric.clone(), fault.clone(), members.clone());
                let context = Context { fabric, fault, recorder, limit: Limit::new(timeouts) };
                scope.spawn(move || Group::world(context, members))
            })
            .collect();
        let groups = ranks.into_iter().map(|rank| match rank.join() {
            Ok(Ok(group)) => group,
            Ok(Err(error)) => panic!("a world of {n} threads: {error}"),
            Err(panic) => std::panic::resume_unwind(panic),
        });
        groups.collect()
    })
}

/// Where the two ends of a link find each other.
struct Switchboard {
    timeouts: Timeouts,
    recorders: Vec<Arc<Recorder>>,
    fault: Arc<Fault>,
    offers: Mutex<HashMap<Address, Offer>>,
    changed: Condvar,
}

/// A group that is being made, the world rank that offers and the one that takes.
type Address = (u64, usize, usize);

/// What one rank of a pair gives the other: its doorbell and, from the lower rank, the memory.
type Offer = (Arc<Doorbell>, Option<Arc<Segment>>);

impl Fabric for Switchboard {
    fn connect(&self, gathering: &Gathering<'_>) -> Result<Vec<Option<PeerLinks>>, Error> {
        let Gathering { group, rank, members, doorbell, .. } = *gathering;
        let mut segments = Vec::new();
        for peer in 0..members.len() {
            let segment = (peer > rank).then(|| Segment::anonymous(PeerLinks::SEGMENT_BYTES)).transpose()?;
            segments.push(segment.map(Arc::new));
        }
        let mut offers = lock(&self.offers);
        for (peer, segment) in segments.iter().enumerate().filter(|(peer, _)| *peer != rank) {
            let address = (group, members[rank], members[peer]);
            offers.insert(address, (doorbell.clone(), segment.clone()));
        }
        self.changed.notify_all();
        drop(offers);
        let deadline = Instant::now() + self.timeouts.init;
        let take = |(peer, own): (usize, Option<Arc<Segment>>)| {
            if peer == rank {
                return Ok(None);
            }
            let (doorbell, theirs) =
                self.take((group, members[peer], members[rank]), deadline).ok_or_else(|| Error::Connect {
                    group: gathering.name.into(),
                    rank: members[rank],
                    peer: members[peer],
                    waited: self.timeouts.init,
                    reason: "it did not come".into(),
                })?;
            let side = usize::from(own.is_none());
            Ok(own.or(theirs).map(|segment| PeerLinks::shared(segment, side, doorbell)))
        };
        segments.into_iter().enumerate().map(take).collect()
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

impl Switchboard {
    fn take(&self, address: Address, deadline: Instant) -> Option<Offer> {
        let mut offers = lock(&self.offers);
        loop {
            if let Some(offer) = offers.remove(&address) {
                return Some(offer);
            }
            let in_time;
            (offers, in_time) = wait_until(&self.changed, offers, deadline);
            if !in_time {
                return offers.remove(&address);
            }
        }
    }
}
