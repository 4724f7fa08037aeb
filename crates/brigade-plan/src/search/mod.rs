//! Which configurations there are, which fit, and which is fastest.
//!
//! Every configuration's memory is computed and its time estimated in closed form; those with the best estimates are [simulated](crate::time::simulate) and ranked by
//! what that says.

mod advice;
mod axes;
mod calibrate;
mod candidate;
mod context;
mod evaluate;
mod rank;
mod shortage;
mod workload;

pub use advice::{FitAdvice, TechniqueAlone};
pub use axes::{Axes, TensorParallelSearch};
pub use calibrate::{Calibrated, MeasuredStep, calibrate};
pub use candidate::Candidate;
pub use evaluate::{Evaluator, PlanEvaluation};
pub use rank::{Plan, plan};
pub use shortage::Shortage;
pub use workload::{PlanError, StageBalance, Workload};
