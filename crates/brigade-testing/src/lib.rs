//! What the tests of several crates need.

mod mpirun;
#[cfg(target_os = "linux")]
mod small_disk;

pub use mpirun::{MpiRun, mpirun};
#[cfg(target_os = "linux")]
pub use small_disk::on_small_disk;
