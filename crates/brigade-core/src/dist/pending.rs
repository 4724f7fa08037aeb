//! Operations in flight.

use burn::tensor::Tensor;

use crate::error::Result;

/// An operation in flight, whose result [`wait`](Self::wait) returns.
pub struct Pending<T>(Box<dyn FnOnce() -> Result<T> + Send>);

/// An operation that gives a tensor.
pub type PendingTensor = Pending<Tensor<1>>;

/// An all-gather of scalars: one list per rank, in rank order.
pub type PendingValues = Pending<Vec<Vec<f64>>>;

impl<T: Send + 'static> Pending<T> {
    /// From a closure that waits for the result.
    pub fn new(wait: impl FnOnce() -> Result<T> + Send + 'static) -> Self {
        Self(Box::new(wait))
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
        (self.0)()
    }
}
