//! Where the second halves of backwards go.

use std::collections::VecDeque;

use crate::schedule::shape::Shape;
use crate::schedule::{Action, Pass, StageTask};

/// Puts the second halves between the ranks' passes, whose backwards are first halves.
///
/// Performs the passes in slots that each hold one forward or one half. A rank whose next pass has to wait, or would keep the activations of
/// more than `kept` tasks, runs the oldest second half that it has left.
pub(super) fn with_weights(shape: Shape, passes: &[Vec<Action>], kept: usize) -> Vec<Vec<Action>> {
    let mut ranks: Vec<Rank> = passes.iter().map(|passes| Rank::new(shape, passes)).collect();
    loop {
        let chosen: Vec<Option<Action>> =
            (0..ranks.len()).map(|rank| next(shape, &ranks, rank, kept)).collect();
        if chosen.iter().all(Option::is_none) {
            break;
        }
        for (rank, action) in ranks.iter_mut().zip(chosen) {
            action.into_iter().for_each(|action| rank.perform(shape, action));
        }
    }
    ranks.into_iter().map(|rank| rank.order).collect()
}

/// What a rank does in this slot.
fn next(shape: Shape, ranks: &[Rank], rank: usize, kept: usize) -> Option<Action> {
    let me = &ranks[rank];
    let pass = me.passes.get(me.at).copied().filter(|action| {
        let fits = !matches!(action, Action::Forward(_)) || me.kept < kept;
        fits && action.pass().is_some_and(|(pass, task)| match shape.before(pass, rank, task) {
            Some((from, before)) => ranks[from].is_done(shape, pass, before),
            None => true,
        })
    });
    pass.or_else(|| me.waiting.front().copied().map(Action::BackwardWeights))
}

/// What a rank has done.
struct Rank<'a> {
    passes: &'a [Action],
    /// The next of them.
    at: usize,
    order: Vec<Action>,
    forward: Vec<bool>,
    backward: Vec<bool>,
    /// Between the halves of their backward.
    waiting: VecDeque<StageTask>,
    /// Tasks whose activations are kept.
    kept: usize,
}

impl<'a> Rank<'a> {
    fn new(shape: Shape, passes: &'a [Action]) -> Self {
        let none = vec![false; shape.chunks * shape.micro_batches];
        let (forward, backward) = (none.clone(), none);
        Self { passes, at: 0, order: Vec::new(), forward, backward, waiting: VecDeque::new(), kept: 0 }
    }

    fn is_done(&self, shape: Shape, pass: Pass, task: StageTask) -> bool {
        let done = match pass {
            Pass::Forward => &self.forward,
            Pass::Backward => &self.backward,
        };
        done[shape.index(task)]
    }

    fn perform(&mut self, shape: Shape, action: Action) {
        self.order.push(action);
        match action {
            Action::Forward(task) => {
                self.forward[shape.index(task)] = true;
                self.kept += 1;
                self.at += 1;
            }
            Action::BackwardInput(task) => {
                self.backward[shape.index(task)] = true;
                self.waiting.push_back(task);
                self.at += 1;
            }
            _ => {
                self.waiting.pop_front();
                self.kept -= 1;
            }
        }
    }
}
