//! What ranks send each other while they compute.
//!
//! All messages from one rank to another, activations and gradients alike, are matched in the order of
//! their sending. A rank therefore posts its receives in the order in which the other one sends.

use std::collections::HashMap;

use crate::schedule::shape::Shape;
use crate::schedule::{Action, Pass, StageTask};

/// A rank posts the receives of this many forwards and backwards before it starts the first of them. With 2, an interleaved pipeline would lock up if sends waited for
/// their receives: the last rank sends activations to the first and gets gradients from it, so waits can
/// close a ring.
pub(super) const LOOK_AHEAD: usize = 3;

/// Receives that are posted and not used yet. A rank of a V gets activations and gradients from one neighbour, and uses one of them in
/// another order than they are sent.
pub(in crate::schedule) const MAX_POSTED: usize = LOOK_AHEAD + 1;

/// Puts sends, receives and reductions between what the ranks compute.
pub(super) fn complete(shape: Shape, computes: &[Vec<Action>]) -> Vec<Vec<Action>> {
    let of_rank = |(rank, own): (usize, &Vec<Action>)| {
        let mut inbox = Inbox::new(shape, rank, computes);
        let mut actions = Vec::with_capacity(3 * own.len());
        for (at, &action) in own.iter().enumerate() {
            let receiving = own.iter().skip(at).filter(|action| action.pass().is_some());
            for ahead in receiving.take(LOOK_AHEAD) {
                inbox.post(*ahead, &mut actions);
            }
            actions.push(action);
            actions.extend(send(shape, rank, action));
            actions.extend(reduce(shape, action));
        }
        actions
    };
    computes.iter().enumerate().map(of_rank).collect()
}

fn send(shape: Shape, rank: usize, action: Action) -> Option<Action> {
    let (pass, task) = action.pass()?;
    let (to, _) = shape.receiver(pass, rank, task)?;
    Some(Action::Send { pass, task, to })
}

/// A chunk's backwards, and their halves, come in the order of the micro-batches.
fn reduce(shape: Shape, action: Action) -> Option<Action> {
    let task = action.frees()?;
    (task.micro_batch + 1 == shape.micro_batches).then_some(Action::Reduce { chunk: task.chunk })
}

/// The messages that a rank gets.
struct Inbox {
    shape: Shape,
    rank: usize,
    queues: HashMap<usize, Queue>,
}

/// The messages from one rank, in the order of their sending.
#[derive(Default)]
struct Queue {
    messages: Vec<(Pass, StageTask)>,
    places: HashMap<(Pass, StageTask), usize>,
    posted: usize,
}

impl Inbox {
    fn new(shape: Shape, rank: usize, computes: &[Vec<Action>]) -> Self {
        let neighbours = [(rank + shape.stages - 1) % shape.stages, (rank + 1) % shape.stages];
        let queue = |from: usize| {
            let to_me = |action: &Action| {
                let (pass, task) = action.pass()?;
                let (to, task) = shape.receiver(pass, from, task)?;
                (to == rank).then_some((pass, task))
            };
            let messages: Vec<_> = computes[from].iter().filter_map(to_me).collect();
            let places = messages.iter().enumerate().map(|(place, message)| (*message, place)).collect();
            Queue { messages, places, posted: 0 }
        };
        Self { shape, rank, queues: neighbours.into_iter().map(|from| (from, queue(from))).collect() }
    }

    /// Posts the receive that `action` needs, if it is not posted yet, and those of all that the same
    /// rank sends before.
    fn post(&mut self, action: Action, actions: &mut Vec<Action>) {
        let Some((pass, task)) = action.pass() else { return };
        let Some((from, _)) = self.shape.sender(pass, self.rank, task) else { return };
        let Some(queue) = self.queues.get_mut(&from) else { return };
        let Some(&place) = queue.places.get(&(pass, task)) else { return };
        for &(pass, task) in queue.messages.iter().take(place + 1).skip(queue.posted) {
            actions.push(Action::Receive { pass, task, from });
        }
        queue.posted = queue.posted.max(place + 1);
    }
}
