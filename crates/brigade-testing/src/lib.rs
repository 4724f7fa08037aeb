//! What the tests of several crates need.

#[cfg(target_os = "linux")]
mod small_disk;

#[cfg(target_os = "linux")]
pub use small_disk::on_small_disk;
