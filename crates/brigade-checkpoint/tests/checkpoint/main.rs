//! What every storage must do with checkpoints: whole or absent, on any mesh, in the same bits.
#![allow(clippy::unwrap_used)]

mod damage;
mod death;
mod frozen;
mod kept;
mod meanwhile;
mod publishing;
#[cfg(feature = "object-store")]
mod real_stores;
mod round_trip;
mod sample;
mod space;
mod storages;
