//! Signals, deaths, races and full disks.

mod chaos;
mod early_signals;
mod endings;
mod shared_folders;
mod survival;
mod worlds;
