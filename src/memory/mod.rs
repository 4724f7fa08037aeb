//! What a run will hold, against what its machine has: computed and measured before it trains.

mod machine;
mod need;
mod plan;

pub(crate) use plan::{MemoryPlan, Samples};
