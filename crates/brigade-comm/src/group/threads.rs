//! A world of threads in one process.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use crate::error::{Diagnosis, Error};
use crate::fault::Fault;
use crate::flight::{Recorder, STATUS_DELAY, diagnose_stall};
use crate::group::handle::Group;
use crate::link::connector::{Connector, LinkSpec, LinkUnavailable, has_cores_for};
use crate::link::endpoint::Link;
use crate::link::role::LinkRole;
use crate::link::shared::event_fd::EventFd;
use crate::link::shared::segment::Segment;
use crate::link::shared::{SharedLink, segment_bytes};
use crate::locality::{Locality, numa_node};
use crate::op::algorithm::Algorithm;
use crate::progress::context::Context;
use crate::sync::lock;
use crate::timeouts::{OpTimeout, Timeouts};

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
    let connector = Arc::new(ThreadConnector {
        recorders: recorders.clone(),
        fault: fault.clone(),
        links: Mutex::default(),
    });
    let localities: Arc<[Locality]> = vec![Locality { numa: numa_node(), ..Locality::default() }; n].into();
    let ranks = recorders.into_iter().map(|recorder| {
        let context = Context {
            connector: connector.clone(),
            fault: fault.clone(),
            recorder,
            timeout: OpTimeout::new(timeouts),
            localities: localities.clone(),
            algorithm: Algorithm::Auto,
            table: [].into(),
        };
        match Group::world(context, (0..n).collect()) {
            Ok(group) => group,
            Err(error) => panic!("a world of {n} threads: {error}"),
        }
    });
    ranks.collect()
}

/// Connects groups of threads: both ends of a link are handed over here.
struct ThreadConnector {
    recorders: Vec<Arc<Recorder>>,
    fault: Arc<Fault>,
    links: Mutex<ThreadLinks>,
}

#[derive(Default)]
struct ThreadLinks {
    /// By group and rank.
    event_fds: HashMap<(u64, usize), Arc<EventFd>>,
    /// Ends of links that the other rank has made: by group, the rank that is to take it, the other one, and role.
    ends: HashMap<(u64, usize, usize, LinkRole), Link>,
    left: HashSet<(u64, usize)>,
}

impl ThreadLinks {
    fn event_fd(&mut self, group: u64, rank: usize) -> Result<Arc<EventFd>, Error> {
        match self.event_fds.get(&(group, rank)) {
            Some(event_fd) => Ok(event_fd.clone()),
            None => {
                let event_fd = Arc::new(EventFd::new()?);
                self.event_fds.insert((group, rank), event_fd.clone());
                Ok(event_fd)
            }
        }
    }
}

impl Connector for ThreadConnector {
    fn join_group(&self, group: u64, rank: usize) -> Result<Arc<EventFd>, Error> {
        lock(&self.links).event_fd(group, rank)
    }

    /// Ends that it has made for other ranks remain theirs; ranks that wait for it are woken.
    fn leave_group(&self, group: u64, rank: usize) {
        let mut links = lock(&self.links);
        links.left.insert((group, rank));
        links.ends.retain(|(of, owner, ..), _| (*of, *owner) != (group, rank));
        links.event_fds.remove(&(group, rank));
        let others = links.event_fds.iter().filter(|((of, _), _)| *of == group);
        others.for_each(|(_, event_fd)| event_fd.notify());
    }

    /// The first of the two ranks makes both ends.
    fn link(&self, link_spec: &LinkSpec<'_>) -> Result<Option<Link>, LinkUnavailable> {
        let LinkSpec { group, rank, peer, role, members, .. } = *link_spec;
        let mut links = lock(&self.links);
        if let Some(link) = links.ends.remove(&(group, rank, peer, role)) {
            return Ok(Some(link));
        }
        if links.left.contains(&(group, peer)) {
            return Err(LinkUnavailable::Left);
        }
        let segment = Arc::new(Segment::anonymous(segment_bytes(members))?);
        let (ours, theirs) = (links.event_fd(group, rank)?, links.event_fd(group, peer)?);
        let end = |side, other| Link::Shared(SharedLink::new(segment.clone(), side, other));
        links.ends.insert((group, peer, rank, role.at_peer()), end(1, ours));
        theirs.notify();
        Ok(Some(end(0, theirs)))
    }

    fn diagnose(&self, asker: usize) -> Diagnosis {
        self.recorders.iter().for_each(|recorder| recorder.request_status());
        self.fault.wake_all();
        std::thread::sleep(STATUS_DELAY);
        let statuses = self.recorders.iter().map(|recorder| recorder.status()).enumerate().collect();
        diagnose_stall(&statuses, asker, &[])
    }

    fn has_core_per_rank(&self) -> bool {
        has_cores_for(self.recorders.len())
    }
}
