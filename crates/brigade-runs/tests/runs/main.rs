//! Runs beside what is said of them: in pages, in a browser, over HTTP, in lists, and by diagnosis.

#![allow(clippy::unwrap_used)]

mod browser;
mod causes;
mod causes_on_ranks;
mod compared_sizes;
mod data;
mod gpus;
mod idle;
mod made;
mod served;
mod simulated;
mod wrong;
