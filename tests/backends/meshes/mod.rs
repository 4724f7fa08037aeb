//! Models that draw random numbers or keep running state, which train to the same on every mesh of a backend.

mod batch_norm;
mod case;
mod dropout;
mod processes;
