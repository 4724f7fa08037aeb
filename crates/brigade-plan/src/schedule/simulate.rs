//! Performing the actions of all ranks, on paper.
//!
//! Each rank performs its own list from top to bottom. A computing action takes its cost and waits for
//! the message that it needs; a message takes no time. What a real run would stumble over is a fault
//! here: a message that is not asked for, asked for in another order than sent, or never used; a result
//! that does not exist yet.

use std::collections::HashMap;

use super::shape::Shape;
use super::{Action, Pass, Pipeline, ScheduleError, StageTask};

/// A computing action in time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimulatedSpan {
    /// What was computed.
    pub action: Action,
    /// When it started, in units of one forward of one chunk.
    pub start: f64,
    /// When it was done, in the same unit.
    pub end: f64,
}

/// What each rank computes when.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedTimeline {
    /// The computing actions of each rank, in order.
    pub ranks: Vec<Vec<SimulatedSpan>>,
}

impl SimulatedTimeline {
    /// When the last rank is done.
    pub fn length(&self) -> f64 {
        self.ranks.iter().flatten().fold(0.0, |length, span| span.end.max(length))
    }

    /// The share of all ranks' time in which they compute nothing; 0 where there is nothing to do.
    pub fn bubble_fraction(&self) -> f64 {
        let all = self.length() * self.ranks.len() as f64;
        let busy: f64 = self.ranks.iter().flatten().map(|span| span.end - span.start).sum();
        if all > 0.0 { (1.0 - busy / all).max(0.0) } else { 0.0 }
    }
}

/// When a send is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sends {
    /// At once.
    Buffered,
    /// When the other rank has posted the receive.
    Blocking,
}

/// Performs everything.
pub(super) fn simulate(
    pipeline: &Pipeline,
    sends: Sends,
    cost: impl Fn(usize, Action) -> f64,
) -> Result<SimulatedTimeline, ScheduleError> {
    let mut run = Run {
        shape: pipeline.shape(),
        sends,
        cost,
        ranks: (0..pipeline.stages).map(|_| Rank::new(pipeline.shape())).collect(),
        channels: HashMap::new(),
    };
    let mut at = vec![0; pipeline.stages];
    loop {
        let mut moved = false;
        for (rank, at) in at.iter_mut().enumerate() {
            while let Some(&action) = pipeline.actions(rank).get(*at) {
                if !run.perform(rank, action).map_err(|fault| ScheduleError::Fault { rank, fault })? {
                    break;
                }
                *at += 1;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    for (rank, at) in at.into_iter().enumerate() {
        if let Some(action) = pipeline.actions(rank).get(at) {
            return Err(ScheduleError::Fault {
                rank,
                fault: format!("action {at} ({action}) waits forever"),
            });
        }
    }
    run.end()
}

struct Run<C> {
    shape: Shape,
    sends: Sends,
    cost: C,
    ranks: Vec<Rank>,
    /// By sender and receiver.
    channels: HashMap<(usize, usize), Channel>,
}

/// The messages from one rank to another, with the time of their sending or posting.
#[derive(Default)]
struct Channel {
    sent: Vec<(Pass, StageTask, f64)>,
    posted: Vec<(Pass, StageTask, f64)>,
}

/// What a rank has done, by [`Shape::index`].
struct Rank {
    clock: f64,
    spans: Vec<SimulatedSpan>,
    forward: Vec<bool>,
    backward: Vec<bool>,
    weights: Vec<bool>,
    /// Sender, and place in the channel.
    awaited: HashMap<(Pass, StageTask), (usize, usize)>,
}

impl Rank {
    fn new(shape: Shape) -> Self {
        let none = vec![false; shape.chunks * shape.micro_batches];
        Self {
            clock: 0.0,
            spans: Vec::new(),
            forward: none.clone(),
            backward: none.clone(),
            weights: none,
            awaited: HashMap::new(),
        }
    }

    fn done(&mut self, pass: Pass) -> &mut Vec<bool> {
        match pass {
            Pass::Forward => &mut self.forward,
            Pass::Backward => &mut self.backward,
        }
    }
}

impl<C: Fn(usize, Action) -> f64> Run<C> {
    /// Performs the next action of a rank, unless it must wait: then the answer is false.
    fn perform(&mut self, rank: usize, action: Action) -> Result<bool, String> {
        match action {
            Action::Send { pass, task, to } => self.send(rank, pass, task, to),
            Action::Receive { pass, task, from } => self.receive(rank, pass, task, from).map(|()| true),
            Action::Reduce { .. } => Ok(true),
            Action::BackwardWeights(task) => {
                let index = self.index(task)?;
                if !self.ranks[rank].backward[index] {
                    return Err(format!("{action} comes before its first half"));
                }
                self.compute(rank, action);
                self.finish_weights(rank, action, index).map(|()| true)
            }
            Action::Forward(task) => self.pass(rank, action, Pass::Forward, task),
            Action::Backward(task) | Action::BackwardInput(task) => {
                self.pass(rank, action, Pass::Backward, task)
            }
        }
    }

    fn pass(&mut self, rank: usize, action: Action, pass: Pass, task: StageTask) -> Result<bool, String> {
        let index = self.index(task)?;
        if pass == Pass::Backward && !self.ranks[rank].forward[index] {
            return Err(format!("{action} comes before its forward"));
        }
        match self.shape.before(pass, rank, task) {
            Some((from, before)) if from == rank => {
                let before = self.index(before)?;
                if !self.ranks[rank].done(pass)[before] {
                    return Err(format!("{action} comes before its input"));
                }
            }
            Some((from, _)) => {
                let awaited = self.ranks[rank].awaited.get(&(pass, task));
                let Some(&(_, place)) = awaited.filter(|(sender, _)| *sender == from) else {
                    return Err(format!("{action} needs the {pass} from {from}, which it has not asked for"));
                };
                let arrived = self.channels.get(&(from, rank)).and_then(|channel| channel.sent.get(place));
                let Some(&(_, _, sent)) = arrived else { return Ok(false) };
                let me = &mut self.ranks[rank];
                me.awaited.remove(&(pass, task));
                me.clock = me.clock.max(sent);
            }
            None => {}
        }
        self.compute(rank, action);
        if std::mem::replace(&mut self.ranks[rank].done(pass)[index], true) {
            return Err(format!("{action} stands twice"));
        }
        if matches!(action, Action::Backward(_)) {
            self.finish_weights(rank, action, index)?;
        }
        Ok(true)
    }

    fn compute(&mut self, rank: usize, action: Action) {
        let seconds = (self.cost)(rank, action);
        let me = &mut self.ranks[rank];
        let start = me.clock;
        me.clock += seconds;
        me.spans.push(SimulatedSpan { action, start, end: me.clock });
    }

    fn finish_weights(&mut self, rank: usize, action: Action, index: usize) -> Result<(), String> {
        let twice = std::mem::replace(&mut self.ranks[rank].weights[index], true);
        if twice { Err(format!("{action} stands twice")) } else { Ok(()) }
    }

    fn send(&mut self, rank: usize, pass: Pass, task: StageTask, to: usize) -> Result<bool, String> {
        let index = self.index(task)?;
        let Some((_, theirs)) = self.shape.receiver(pass, rank, task).filter(|(wanted, _)| *wanted == to)
        else {
            return Err(format!("the {pass} of {task} does not go to {to}"));
        };
        if !self.ranks[rank].done(pass)[index] {
            return Err(format!("the {pass} of {task} is sent before it is computed"));
        }
        let channel = self.channels.entry((rank, to)).or_default();
        let place = channel.sent.len();
        let me = &mut self.ranks[rank];
        match (self.sends, channel.posted.get(place)) {
            (Sends::Blocking, None) => return Ok(false),
            (Sends::Blocking, Some((_, _, posted))) => me.clock = me.clock.max(*posted),
            (Sends::Buffered, _) => {}
        }
        channel.sent.push((pass, theirs, me.clock));
        channel.compare(place).map(|()| true)
    }

    fn receive(&mut self, rank: usize, pass: Pass, task: StageTask, from: usize) -> Result<(), String> {
        self.index(task)?;
        if self.shape.sender(pass, rank, task).is_none_or(|(wanted, _)| wanted != from) {
            return Err(format!("the {pass} for {task} does not come from {from}"));
        }
        let me = &mut self.ranks[rank];
        let channel = self.channels.entry((from, rank)).or_default();
        let place = channel.posted.len();
        channel.posted.push((pass, task, me.clock));
        if me.awaited.insert((pass, task), (from, place)).is_some() {
            return Err(format!("the {pass} for {task} is asked for twice"));
        }
        channel.compare(place)
    }

    fn index(&self, task: StageTask) -> Result<usize, String> {
        let Shape { chunks, micro_batches, .. } = self.shape;
        if task.chunk >= chunks || task.micro_batch >= micro_batches {
            return Err(format!(
                "there is no task {task} (micro-batch.chunk): {micro_batches} micro-batches, {chunks} chunks"
            ));
        }
        Ok(self.shape.index(task))
    }

    /// Everything was performed: is everything done, and nothing left over?
    fn end(self) -> Result<SimulatedTimeline, ScheduleError> {
        let trains = self.ranks.iter().any(|rank| rank.backward.contains(&true));
        for (number, rank) in self.ranks.iter().enumerate() {
            let fault = |fault: &str| Err(ScheduleError::Fault { rank: number, fault: fault.into() });
            let missing = |done: &[bool]| {
                let index = done.iter().position(|done| !done)?;
                let Shape { micro_batches, .. } = self.shape;
                Some(StageTask { chunk: index / micro_batches, micro_batch: index % micro_batches })
            };
            if let Some(task) = missing(&rank.forward) {
                return fault(&format!("forward {task} is missing"));
            }
            if let Some(task) = missing(&rank.backward).filter(|_| trains) {
                return fault(&format!("backward {task} is missing"));
            }
            if let Some(task) = missing(&rank.weights).filter(|_| trains) {
                return fault(&format!("the second half of backward {task} is missing"));
            }
            if !rank.awaited.is_empty() {
                return fault("it receives a message that it does not use");
            }
        }
        let unread = self.channels.iter().filter(|(_, channel)| channel.sent.len() > channel.posted.len());
        if let Some(&(from, to)) = unread.map(|(pair, _)| pair).min() {
            let fault = format!("it does not ask for a message from {from}");
            return Err(ScheduleError::Fault { rank: to, fault });
        }
        Ok(SimulatedTimeline { ranks: self.ranks.into_iter().map(|rank| rank.spans).collect() })
    }
}

impl Channel {
    /// Refuses a message at a place where another is asked for, as far as both are known.
    fn compare(&self, place: usize) -> Result<(), String> {
        if let (Some(&(pass, task, _)), Some(&(asked_pass, asked, _))) =
            (self.sent.get(place), self.posted.get(place))
            && (pass, task) != (asked_pass, asked)
        {
            return Err(format!("{pass} {task} is sent where {asked_pass} {asked} is asked for"));
        }
        Ok(())
    }
}
