//! Signals, deaths, races and full disks.

mod chaos;
mod early_signals;
mod elastic;
mod endings;
mod exhaustion;
mod servers;
mod shared_folders;
mod survival;
mod workers;
mod worlds;
