//! Actions: the entries of a stage schedule.

use std::fmt;

/// One micro-batch through one of a rank's chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StageTask {
    /// The rank's chunk, counted from 0 in the order of the pass through the model.
    pub chunk: usize,
    /// The micro-batch, counted from 0 within the step.
    pub micro_batch: usize,
}

/// What is sent between two stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pass {
    /// An activation, to the next stage.
    Forward,
    /// The gradient of an activation, to the previous stage.
    Backward,
}

/// One entry of a stage schedule. Tasks have the numbers that they have on the rank that performs the action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Run the chunk forward on the micro-batch.
    Forward(StageTask),
    /// Run the chunk backward: the gradients of its input and of its weights.
    Backward(StageTask),
    /// The first half of a backward: the gradient of the input, which the previous stage waits for (`B` in Qi et al. 2023,
    /// "Zero Bubble Pipeline Parallelism").
    BackwardInput(StageTask),
    /// The second half of a backward: the gradients of the weights (`W` there). It reads no parameters.
    BackwardWeights(StageTask),
    /// Send the result of `pass` of `task` to another rank; does not wait for its arrival.
    Send {
        /// `Forward`: the output of `task`. `Backward`: the gradient of the input of `task`.
        pass: Pass,
        /// What was computed.
        task: StageTask,
        /// The pipeline rank that receives it.
        to: usize,
    },
    /// Start to receive what `pass` of `task` needs; `pass` of `task` waits for its arrival.
    Receive {
        /// `Forward`: the input of `task`. `Backward`: the gradient of the output of `task`.
        pass: Pass,
        /// What will be computed from it.
        task: StageTask,
        /// The pipeline rank that sends it.
        from: usize,
    },
    /// The chunk's gradients are complete: sum them over the data-parallel ranks.
    Reduce {
        /// The rank's chunk.
        chunk: usize,
    },
}

impl Action {
    /// The pass whose result another stage may wait for; `None` for transfers, reductions and the half of a backward that no other stage
    /// waits for.
    pub(super) fn pass(self) -> Option<(Pass, StageTask)> {
        match self {
            Self::Forward(task) => Some((Pass::Forward, task)),
            Self::Backward(task) | Self::BackwardInput(task) => Some((Pass::Backward, task)),
            Self::BackwardWeights(_) | Self::Send { .. } | Self::Receive { .. } | Self::Reduce { .. } => None,
        }
    }

    /// The label in tables and timelines: `F3`, or `F3.1` for micro-batch 3 of chunk 1 if there are several `chunks`. `B` is a backward,
    /// `I` and `W` are its halves. Empty for actions that do not compute.
    pub(super) fn label(self, chunks: usize) -> String {
        let (letter, task) = match self {
            Self::Forward(task) => ('F', task),
            Self::Backward(task) => ('B', task),
            Self::BackwardInput(task) => ('I', task),
            Self::BackwardWeights(task) => ('W', task),
            Self::Send { .. } | Self::Receive { .. } | Self::Reduce { .. } => return String::new(),
        };
        if chunks > 1 { format!("{letter}{task}") } else { format!("{letter}{}", task.micro_batch) }
    }

    /// The task whose activations this action is the last to need.
    pub(super) fn frees(self) -> Option<StageTask> {
        match self {
            Self::Backward(task) | Self::BackwardWeights(task) => Some(task),
            _ => None,
        }
    }
}

impl fmt::Display for StageTask {
    /// Micro-batch, dot, chunk.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.micro_batch, self.chunk)
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forward => "activation",
            Self::Backward => "gradient",
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forward(task) => write!(f, "forward {task}"),
            Self::Backward(task) => write!(f, "backward {task}"),
            Self::BackwardInput(task) => write!(f, "backward-input {task}"),
            Self::BackwardWeights(task) => write!(f, "backward-weights {task}"),
            Self::Send { pass, task, to } => write!(f, "send {pass} {task} to {to}"),
            Self::Receive { pass, task, from } => write!(f, "receive {pass} {task} from {from}"),
            Self::Reduce { chunk } => write!(f, "reduce chunk {chunk}"),
        }
    }
}
