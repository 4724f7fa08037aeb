//! What every storage must do with checkpoints: whole or absent, on any mesh, in the same bits.

mod background;
mod damage;
mod death;
mod kept;
mod publishing;
mod round_trip;
mod sample;
mod space;
mod storages;
