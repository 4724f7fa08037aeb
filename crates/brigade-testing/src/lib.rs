//! What the tests of several crates need.

mod mpirun;
mod object_server;
#[cfg(target_os = "linux")]
mod small_disk;
mod store_server;

pub use mpirun::{MpiRun, mpiexec, mpirun};
pub use object_server::{Fault, ObjectServer, Request};
#[cfg(target_os = "linux")]
pub use small_disk::on_small_disk;
pub use store_server::{ABSENT, BUCKET, FORBIDDEN, Protocol, READ_ONLY, STORES_PYTHON, StoreServer};
