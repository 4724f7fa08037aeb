//! The connections of a server to workers that are worlds of their own.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use brigade_sorted::SortedMap;
use burn::tensor::Device;

use crate::dist::{Collectives, Message, Pending, Traffic, add_traffic};
use crate::error::{Error, Result};
use crate::step::engine::rounds::held_pushes::HeldPushes;
use crate::step::engine::rounds::message::{Request, RoundState};
use crate::step::engine::rounds::server::Push;

/// The rank of a worker in the group that it has with all servers.
pub(super) const WORKER: usize = 0;

/// A worker that has connected to this server.
pub struct WorkerLink {
    /// Its number among the workers.
    pub worker: usize,
    /// Distinguishes its connections from each other: the same number on all servers.
    pub connection: u64,
    /// The worker, and then all servers.
    pub group: Arc<dyn Collectives>,
    /// Waits until all have left the group. If it is dropped without having been called, the group fails for all of them.
    pub leave: Box<dyn FnOnce() + Send>,
}

/// A server's connections to workers, which come and go.
pub struct WorkerLinks {
    sender: Sender<Event>,
    events: Receiver<Event>,
    links: SortedMap<usize, Link>,
    /// How long there may be no worker, and since when there is none.
    patience: Duration,
    alone_since: Instant,
    /// How long a worker may take for a share.
    deadline: Duration,
    /// On servers but the first one: what workers have pushed that the first one has not counted; none for a share that is left out.
    pub(super) held: HeldPushes<Option<Push>>,
    /// What has happened since it was asked.
    messages: Vec<String>,
    /// Workers that were lost since it was asked.
    lost: u64,
    /// The pushes of connections that were lost since the round began.
    gone: Vec<(u64, u64)>,
    /// What was sent to workers that are not there any more.
    sent_before: Traffic,
}

/// Gives a server the workers that connect.
#[derive(Clone)]
pub struct WorkerLinkSender(Sender<Event>);

impl WorkerLinkSender {
    /// Adds a worker. One with its number that is there already is replaced.
    pub fn add(&self, link: WorkerLink) {
        // Where nobody serves any more, the link is dropped.
        drop(self.0.send(Event::Connected(link)));
    }
}

/// What a server is told.
pub(super) enum Event {
    Connected(WorkerLink),
    /// A worker, its connection, and what it asked for or why nothing more is received from it.
    Asked(usize, u64, Result<(Request, Message)>),
    /// What the first server says of the round.
    Round(Result<RoundState>),
}

struct Link {
    connection: u64,
    group: Arc<dyn Collectives>,
    /// Takes the answer to each question, for which the thread waits that listens.
    answers: Sender<Pending<()>>,
    thread: JoinHandle<()>,
    /// Whether it waits for a share.
    asks: bool,
    pushes: u64,
}

impl WorkerLinks {
    /// None yet. There may be no worker for as long as `patience` says; `deadline` is that of their groups: how long a worker may take for a share.
    pub fn new(patience: Duration, deadline: Duration) -> Self {
        let (sender, events) = channel();
        Self {
            sender,
            events,
            links: SortedMap::new(),
            patience,
            alone_since: Instant::now(),
            deadline,
            held: HeldPushes::default(),
            messages: Vec::new(),
            lost: 0,
            gone: Vec::new(),
            sent_before: Traffic::new(),
        }
    }

    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Forgets what was pushed over connections that are not there any more.
    pub(super) fn begin_round(&mut self) {
        self.gone.clear();
        let Self { links, held, .. } = self;
        held.retain(|connection| links.values().any(|link| link.connection == connection));
    }

    /// What new workers are given to.
    pub fn sender(&self) -> WorkerLinkSender {
        WorkerLinkSender(self.sender.clone())
    }

    /// What has happened since this was asked before: who came and went.
    pub fn drain_messages(&mut self) -> Vec<String> {
        std::mem::take(&mut self.messages)
    }

    /// How many workers were lost since this was asked before.
    pub(super) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    /// Calls and bytes to all workers since the beginning, also to those that are gone.
    pub(super) fn traffic(&self) -> Traffic {
        let mut traffic = self.sent_before.clone();
        self.links.values().for_each(|link| add_traffic(&mut traffic, link.group.traffic()));
        traffic
    }

    /// How many workers are there.
    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    pub(super) fn events(&self) -> Sender<Event> {
        self.sender.clone()
    }

    /// For how long no worker has been connected.
    pub(super) fn alone(&self) -> Duration {
        if self.links.is_empty() { self.alone_since.elapsed() } else { Duration::ZERO }
    }

    /// The next event, if there is one in time.
    ///
    /// # Errors
    /// If there has been no worker for too long.
    pub(super) fn next(&mut self, wait: Duration) -> Result<Option<Event>> {
        if !self.links.is_empty() {
            self.alone_since = Instant::now();
        }
        match self.events.recv_timeout(wait) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) if self.alone_since.elapsed() < self.patience => Ok(None),
            Err(_) => Err(Error::Model(format!(
                "no worker has been connected for {} s (comm.init_timeout_seconds)",
                self.patience.as_secs_f64()
            ))),
        }
    }

    /// Begins to listen to a worker.
    pub(super) fn insert(&mut self, link: WorkerLink, device: &Device) -> Result<()> {
        let WorkerLink { worker, connection, group, leave } = link;
        let (answers, answered) = channel();
        let listener = Listener {
            worker,
            connection,
            group: group.clone(),
            device: device.clone(),
            events: self.sender.clone(),
            answered,
        };
        let started = thread::Builder::new().name(format!("worker {worker}")).spawn(|| listener.run(leave));
        let thread = started.map_err(|error| Error::Model(format!("no thread can be started: {error}")))?;
        self.messages.push(format!("worker {worker} joined"));
        let link = Link { connection, group, answers, thread, asks: false, pushes: 0 };
        if let Some(before) = self.links.insert(worker, link) {
            add_traffic(&mut self.sent_before, before.group.traffic());
        }
        Ok(())
    }

    /// Whether this is a worker's connection now.
    pub(super) fn is_current(&self, worker: usize, connection: u64) -> bool {
        self.links.get(&worker).is_some_and(|link| link.connection == connection)
    }

    /// Forgets a worker that was lost, if it is there.
    pub(super) fn disconnect(&mut self, worker: usize, share: Option<u64>, why: &str) {
        if self.forget(worker).is_some() {
            self.lost += 1;
            let share = if share.is_some() { "; its share goes to another" } else { "" };
            let why = why.lines().next().unwrap_or_default();
            self.messages.push(format!("worker {worker} is gone{share}: {why}"));
        }
    }

    /// A worker has nothing more to do; waits until all have left its group.
    pub(super) fn leave(&mut self, worker: usize) {
        if let Some(link) = self.forget(worker) {
            drop(link.answers);
            // Its waits have deadlines.
            drop(link.thread.join());
        }
    }

    fn forget(&mut self, worker: usize) -> Option<Link> {
        let link = self.links.remove(&worker)?;
        add_traffic(&mut self.sent_before, link.group.traffic());
        self.gone.push((link.connection, link.pushes));
        Some(link)
    }

    /// Notes that a worker waits for a share.
    pub(super) fn asks(&mut self, worker: usize) {
        if let Some(link) = self.links.get_mut(&worker) {
            link.asks = true;
        }
    }

    /// The workers that wait for a share.
    pub(super) fn asking(&self) -> Vec<usize> {
        self.links.iter().filter(|(_, link)| link.asks).map(|(worker, _)| *worker).collect()
    }

    /// Answers a worker.
    pub(super) fn answer(&mut self, worker: usize, message: Message) {
        if let Some(link) = self.links.get_mut(&worker) {
            link.asks = false;
            // Where it was lost meanwhile, its thread says so.
            drop(link.answers.send(link.group.send(message, WORKER)));
        }
    }

    /// Counts a push of a worker.
    pub(super) fn count_push(&mut self, worker: usize) {
        if let Some(link) = self.links.get_mut(&worker) {
            link.pushes += 1;
        }
    }

    /// The number of pushes of each connection of the round, also of those that were lost.
    pub(super) fn pushes(&self) -> Vec<(u64, u64)> {
        let present = self.links.values().map(|link| (link.connection, link.pushes));
        present.chain(self.gone.iter().copied()).collect()
    }

    /// Whether what the first server has counted has come over all connections that are still there.
    pub(super) fn have_pushed(&self) -> bool {
        !self.links.values().any(|link| self.held.lacks(link.connection))
    }
}

/// What the thread has that listens to a worker.
struct Listener {
    worker: usize,
    connection: u64,
    group: Arc<dyn Collectives>,
    device: Device,
    events: Sender<Event>,
    answered: Receiver<Pending<()>>,
}

impl Listener {
    /// Passes on what the worker asks for, until it leaves or is lost.
    fn run(self, leave: Box<dyn FnOnce() + Send>) {
        loop {
            let message = self.group.receive(WORKER, &self.device).wait();
            let asked = message.and_then(|message| Request::read(message, WORKER));
            let request = asked.as_ref().ok().map(|(request, _)| *request);
            if !self.tell(asked) {
                return;
            }
            match request {
                None => return,
                Some(Request::Leave) => return leave(),
                Some(Request::Update { .. }) => {}
                Some(Request::Share | Request::Parameters) => {
                    let Ok(answer) = self.answered.recv() else { return };
                    if let Err(error) = answer.wait() {
                        self.tell(Err(error));
                        return;
                    }
                }
            }
        }
    }

    /// Whether somebody still serves.
    fn tell(&self, asked: Result<(Request, Message)>) -> bool {
        self.events.send(Event::Asked(self.worker, self.connection, asked)).is_ok()
    }
}
