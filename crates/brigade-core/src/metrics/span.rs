//! What a rank did when, for a timeline of its steps.

use std::time::Instant;

use brigade_plan::Action;

/// Something that a rank did, from when to when.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// What it did.
    pub what: Activity,
    /// When it began.
    pub start: Instant,
    /// When it was done.
    pub end: Instant,
}

/// What a rank may do in a step. Actions and phases follow one another; blocks and waits lie within them, but for the wait for the message that
/// an action begins with, which lies before it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activity {
    /// An action of the schedule.
    Action(Action),
    /// A block's part of an action, by its place in the model.
    Block {
        /// The block.
        block: usize,
        /// The action.
        action: Action,
    },
    /// Waiting for others.
    Wait {
        /// For what: one of [`WAITS`](crate::WAITS).
        what: &'static str,
        /// For a message of this rank of the pipeline.
        from: Option<usize>,
    },
    /// What follows the schedule.
    Phase(&'static str),
}
