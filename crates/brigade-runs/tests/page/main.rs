//! The page of a run, beside the run's own files and in a browser.

#![allow(clippy::unwrap_used)]

mod browser;
mod data;
mod made;
mod wrong;
