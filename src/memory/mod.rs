//! What a run will hold, against what its machine has: computed and measured before it trains.

mod machine;
mod need;
mod plan;
mod sampled;

pub(crate) use plan::MemoryPlan;
pub(crate) use sampled::{Measurable, Sampled};
