//! How a layer inside a block reaches the ranks that run the same block at the same time, on other micro-batches.
//!
//! The engine says which they are, around each forward and backward of a block in training; outside of these a layer is alone. A block is run
//! equally often on all of them and in the same order, recomputations and checks included, because they run the same schedule.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::Tensor;

use crate::dist::{Collectives, PendingTensor};
use crate::error::{Error, Result};
use crate::metrics::Clock;
use crate::model::random_state::without_generator;

thread_local! {
    static CURRENT: RefCell<Current> = const { RefCell::new(Current::Alone) };
}

/// What this thread's layers find.
enum Current {
    Alone,
    /// They are alone, and leave the running state that they would change together with others.
    Leaving,
    Group(DataGroup, Outcome),
}

/// What a layer cannot return from a forward or a backward.
#[derive(Default)]
struct Outcome {
    waits: Vec<(&'static str, Instant, Duration)>,
    error: Option<Error>,
}

/// Runs a block's forward or backward, whose layers may compute together with those of other ranks.
///
/// # Errors
/// If one of their collectives failed; what `run` gave is worth nothing then.
pub(crate) fn with_data_group<R>(
    group: &Arc<dyn Collectives>,
    clock: &mut Clock,
    run: impl FnOnce() -> R,
) -> Result<R> {
    let (result, outcome) = within(Current::Group(DataGroup(group.clone()), Outcome::default()), run);
    let Current::Group(_, Outcome { waits, error }) = outcome else { return Ok(result) };
    waits.into_iter().for_each(|(what, start, duration)| clock.waited(what, None, start, duration));
    error.map_or(Ok(result), Err)
}

/// Runs a block without other ranks and without a change of the running state that its layers change together with those.
pub(crate) fn leaving_running_state<R>(run: impl FnOnce() -> R) -> R {
    within(Current::Leaving, run).0
}

fn within<R>(current: Current, run: impl FnOnce() -> R) -> (R, Current) {
    let before = Restore(CURRENT.replace(current));
    let result = run();
    let current = CURRENT.replace(Current::Alone);
    drop(before);
    (result, current)
}

struct Restore(Current);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(std::mem::replace(&mut self.0, Current::Alone));
    }
}

/// With whom a layer in training computes.
pub(super) enum Peers {
    /// With nobody; `leaves`: without a change of its running state.
    None {
        leaves: bool,
    },
    Some(DataGroup),
}

impl Peers {
    pub(super) fn now() -> Self {
        CURRENT.with_borrow(|current| match current {
            Current::Group(group, _) if group.0.size() > 1 => Self::Some(group.clone()),
            Current::Alone | Current::Group(..) => Self::None { leaves: false },
            Current::Leaving => Self::None { leaves: true },
        })
    }
}

/// The ranks that run the same block at the same time.
#[derive(Clone)]
pub(super) struct DataGroup(Arc<dyn Collectives>);

impl fmt::Debug for DataGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataGroup(rank {} of {})", self.0.rank(), self.0.size())
    }
}

impl DataGroup {
    /// The tensors of all ranks, a row each. After a failure that of this one in each row.
    pub(super) fn all_gather(&self, own: Tensor<1>) -> Tensor<2> {
        let size = self.0.size();
        let all = self.wait("all_gather", || self.0.all_gather(own.clone()));
        all.unwrap_or_else(|| own.repeat_dim(0, size)).reshape([size as i32, -1])
    }

    /// The sum over all ranks. After a failure this rank's term.
    pub(super) fn all_reduce(&self, own: Tensor<1>) -> Tensor<1> {
        self.wait("all_reduce", || self.0.all_reduce(own.clone())).unwrap_or(own)
    }

    /// The result, or nothing where this or an earlier collective of the same pass failed. Other ranks that are threads of this process may draw
    /// meanwhile.
    fn wait(&self, what: &'static str, start: impl FnOnce() -> PendingTensor) -> Option<Tensor<1>> {
        if has_failed() {
            return None;
        }
        let started = Instant::now();
        let result = without_generator(|| start().wait());
        CURRENT.with_borrow_mut(|current| match (current, result) {
            (Current::Group(_, outcome), result) => {
                outcome.waits.push((what, started, started.elapsed()));
                result.map_err(|error| outcome.error = Some(error)).ok()
            }
            (_, Ok(result)) => Some(result),
            (_, Err(error)) => panic!("{error}"),
        })
    }
}

fn has_failed() -> bool {
    CURRENT.with_borrow(|current| matches!(current, Current::Group(_, Outcome { error: Some(_), .. })))
}
