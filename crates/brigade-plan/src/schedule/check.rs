//! What must hold of every schedule.

use super::simulate::{Sends, simulate};
use super::{Action, Pass, Pipeline, ScheduleError, StageTask};

impl Pipeline {
    /// Whether there is a list for each rank, and they run a step: every forward and backward of every
    /// chunk and micro-batch exactly once and after what it starts from, every message asked for in the
    /// order of sending and used, no deadlock even where a send waits for its receive, each chunk's
    /// backwards in the order of the micro-batches and its reduction right after the last of them (only
    /// that backward's own send may come between), and no more than [`Self::MAX_POSTED`] receives posted
    /// ahead. Schedules made here hold it; it is for those that make new ones.
    ///
    /// # Errors
    /// [`ScheduleError::Fault`] with the rank and the first thing that is wrong.
    pub fn check(&self) -> Result<(), ScheduleError> {
        let (lists, ranks) = (self.actions.len(), self.stages);
        if lists != ranks {
            let fault = format!("there are {lists} lists for {ranks} ranks");
            return Err(ScheduleError::Fault { rank: lists.min(ranks), fault });
        }
        for (rank, actions) in self.actions.iter().enumerate() {
            self.check_rank(rank, actions).map_err(|fault| ScheduleError::Fault { rank, fault })?;
        }
        simulate(self, Sends::Blocking, |_, _| 1.0).map(|_| ())
    }

    /// What can be seen on one rank's list alone.
    fn check_rank(&self, rank: usize, actions: &[Action]) -> Result<(), String> {
        let mut posted: usize = 0;
        let (mut inputs, mut backwards) = (vec![0; self.chunks], vec![0; self.chunks]);
        let mut due = None;
        for &action in actions {
            if let Some(last) = due {
                match action {
                    Action::Send { pass: Pass::Backward, task, .. } if task == last => {}
                    Action::Reduce { chunk } if chunk == last.chunk => due = None,
                    _ => return Err(format!("{action} comes before the reduction of chunk {}", last.chunk)),
                }
                continue;
            }
            match action {
                Action::Receive { .. } => posted += 1,
                Action::Reduce { .. } => return Err(format!("{action} does not follow its last backward")),
                _ => {}
            }
            if posted > Self::MAX_POSTED {
                return Err(format!("{action} is posted with {} others unused", Self::MAX_POSTED));
            }
            if let Some((pass, task)) = action.pass() {
                if self.shape().sender(pass, rank, task).is_some() {
                    posted = posted.saturating_sub(1);
                }
                if pass == Pass::Backward {
                    take_turn(&mut inputs, action, task)?;
                }
            }
            if let Some(task) = action.frees() {
                if inputs.get(task.chunk).is_some_and(|next| task.micro_batch >= *next) {
                    return Err(format!("{action} comes before its first half"));
                }
                let done = take_turn(&mut backwards, action, task)?;
                due = (done == Some(self.micro_batches)).then_some(task);
            }
        }
        match due {
            Some(last) => Err(format!("the reduction of chunk {} is missing", last.chunk)),
            None => Ok(()),
        }
    }
}

/// Counts an action of a chunk that comes in the order of the micro-batches: how many of them there were.
fn take_turn(done: &mut [usize], action: Action, task: StageTask) -> Result<Option<usize>, String> {
    let Some(next) = done.get_mut(task.chunk) else { return Ok(None) };
    if task.micro_batch != *next {
        return Err(format!("{action} comes when it is the turn of micro-batch {next}"));
    }
    *next += 1;
    Ok(Some(*next))
}
