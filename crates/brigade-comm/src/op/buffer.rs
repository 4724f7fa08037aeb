//! Memory that an operation may hold while it is in flight.

use crate::op::dtype::Element;

/// Host memory that is handed to an operation and comes back from [`Work::wait`](crate::Work::wait).
///
/// Implemented for `Vec` of every [`Element`]. A foreign owner of memory (a tensor library's storage, a pinned
/// allocation) implements it on a wrapper; both methods must give the same region, of constant length, for as long
/// as the value lives. The bytes need no alignment: the element type is passed to the operation separately.
pub trait HostBuffer: Send + 'static {
    /// The memory, for reading.
    fn as_bytes(&self) -> &[u8];
    /// The same memory, for writing.
    fn as_bytes_mut(&mut self) -> &mut [u8];
}

impl<T: Element> HostBuffer for Vec<T> {
    fn as_bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    fn as_bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self)
    }
}
