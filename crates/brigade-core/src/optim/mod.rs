//! Optimizers on flat buffers, their state, learning rates, and the gradient norm.

mod factory;
mod learning_rate;
mod norm;
mod one_pass;
mod optimizer;
mod optimizer_state;
mod segmented;
mod tile;

pub use factory::OptimizerFactory;
pub use learning_rate::{LearningRateScaling, LrScheduler, LrSchedulerKind};
pub use norm::clip_factor;
pub use optimizer::{Elementwise, FlatOptimizer};
pub use optimizer_state::{FlatState, SavedState};

pub(crate) use norm::sum_of_squares;
pub(crate) use tile::tile;
