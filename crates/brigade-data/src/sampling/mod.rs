//! Which samples each rank reads: pure functions of seed, step and rank.

mod permutation;
mod sampler;
mod shares;
mod validation;

pub use permutation::Permutation;
pub use sampler::Sampler;
pub use shares::SourceShare;
pub use validation::ValidationSampler;
