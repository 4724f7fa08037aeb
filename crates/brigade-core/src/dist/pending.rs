//! Operations in flight.

use burn::tensor::Tensor;

use crate::error::Result;

/// An operation in flight, whose result [`wait`](Self::wait) returns. It may have several phases, each of which begins once the one before
/// it has ended.
pub struct Pending<T>(Phase<T>);

enum Phase<T> {
    Last(Box<dyn FnOnce() -> Result<T> + Send>),
    /// Waits for this phase, and begins the next one.
    Earlier(Box<dyn FnOnce() -> Result<Pending<T>> + Send>),
}

/// An operation that gives a tensor.
pub type PendingTensor = Pending<Tensor<1>>;

/// An all-gather of scalars: one list per rank, in rank order.
pub type PendingValues = Pending<Vec<Vec<f64>>>;

impl<T: Send + 'static> Pending<T> {
    /// From a closure that waits for the result.
    pub fn new(wait: impl FnOnce() -> Result<T> + Send + 'static) -> Self {
        Self(Phase::Last(Box::new(wait)))
    }

    /// From a closure that waits for a phase and begins the next one.
    pub fn in_phases(next: impl FnOnce() -> Result<Self> + Send + 'static) -> Self {
        Self(Phase::Earlier(Box::new(next)))
    }

    /// A finished operation.
    pub fn ready(result: T) -> Self {
        Self::new(move || Ok(result))
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// If the operation failed on any rank, a rank died, or the deadline passed.
    pub fn wait(self) -> Result<T> {
        match self.0 {
            Phase::Last(wait) => wait(),
            Phase::Earlier(next) => next()?.wait(),
        }
    }

    /// Whether a phase follows the one that is under way.
    pub fn has_next_phase(&self) -> bool {
        matches!(self.0, Phase::Earlier(_))
    }

    /// Waits for the phase that is under way and begins the next one; the last phase stays as it is.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn next_phase(self) -> Result<Self> {
        match self.0 {
            Phase::Last(_) => Ok(self),
            Phase::Earlier(next) => next(),
        }
    }
}
