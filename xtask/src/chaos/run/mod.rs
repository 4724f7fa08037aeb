//! Training runs as seen from outside: their meshes, their directory, and the reference that they must equal.

mod dir;
pub mod mesh;
mod reference;

pub use dir::{Activity, Before, RunDir, TEXT, count_steps, make_root, remove};
pub use mesh::Mesh;
pub use reference::{EVERY, KEEP, RACE_STEPS, REFERENCE, Reference, STEPS, WEIGHTS, settings};
