//! Operations that were started and not yet waited for.

use burn::tensor::Tensor;

use crate::error::Result;

/// Something on its way: the operation was started, and [`wait`](Self::wait) gives its result.
pub struct Pending<T>(Box<dyn FnOnce() -> Result<T> + Send>);

/// A tensor on its way.
pub type PendingTensor = Pending<Tensor<1>>;

/// Numbers on their way from every rank: one list per rank, in rank order.
pub type PendingValues = Pending<Vec<Vec<f64>>>;

impl<T: Send + 'static> Pending<T> {
    /// From a closure that waits.
    pub fn new(wait: impl FnOnce() -> Result<T> + Send + 'static) -> Self {
        Self(Box::new(wait))
    }

    /// A result that is there already.
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
