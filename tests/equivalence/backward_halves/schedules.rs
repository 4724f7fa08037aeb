//! Schedules with backwards in two halves: those that have names, and others made by hand from schedules in one piece.

use std::collections::VecDeque;

use brigade::core::plan::{Action, Pass, Pipeline, PipelineScheduleKind, StageTask};

use Second::After;

/// When the second halves run.
#[derive(Clone, Copy, Debug)]
pub enum Second {
    /// With the first ones: backwards in one piece.
    AtOnce,
    /// When this many more first ones of the rank were run.
    After(usize),
    /// When a schedule says that has them.
    Named(PipelineScheduleKind),
}

/// The same schedule with backwards in two halves.
pub fn in_halves(plain: &Pipeline, second: Second) -> Pipeline {
    let After(delay) = second else { return plain.clone() };
    let of_rank = |rank: usize| {
        let actions = plain.actions(rank);
        let (mut list, mut waiting) = (Vec::new(), VecDeque::new());
        let release = |list: &mut Vec<Action>, waiting: &mut VecDeque<StageTask>, delay: usize| {
            while waiting.len() > delay
                && let Some(task) = waiting.pop_front()
            {
                list.push(Action::BackwardWeights(task));
                if task.micro_batch + 1 == plain.micro_batches {
                    list.push(Action::Reduce { chunk: task.chunk });
                }
            }
        };
        for (at, action) in actions.iter().enumerate() {
            match *action {
                Action::Backward(task) => {
                    list.push(Action::BackwardInput(task));
                    waiting.push_back(task);
                    let sends =
                        matches!(actions.get(at + 1), Some(Action::Send { pass: Pass::Backward, .. }));
                    if !sends {
                        release(&mut list, &mut waiting, delay);
                    }
                }
                Action::Send { pass: Pass::Backward, .. } => {
                    list.push(*action);
                    release(&mut list, &mut waiting, delay);
                }
                Action::Reduce { .. } => {}
                other => list.push(other),
            }
        }
        release(&mut list, &mut waiting, 0);
        list
    };
    let lists = (0..plain.stages).map(of_rank).collect();
    Pipeline::from_actions(plain.placement(), plain.stages, plain.chunks, plain.micro_batches, lists).unwrap()
}
