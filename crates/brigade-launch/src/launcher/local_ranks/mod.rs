//! The ranks of this node, from one start until all of them have exited.

mod heartbeats;
mod interruption;
mod phase;
mod report;
mod start;
mod stop;
mod supervisor;

pub use self::{
    start::start_ranks,
    supervisor::{LocalRanks, LocalRanksResult},
};
