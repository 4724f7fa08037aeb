//! Which of two values of a metric is the better one.

use serde::{Deserialize, Serialize};

/// Which of two values of a metric is the better one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricMode {
    /// Of `loss` the lower, of any other metric the higher.
    #[default]
    Auto,
    /// The lower.
    Min,
    /// The higher.
    Max,
}

/// The name of the loss among the metrics of a validation.
pub(crate) const LOSS: &str = "loss";

impl MetricMode {
    /// Whether a lower value of this metric is better.
    pub(crate) fn is_min(self, metric: &str) -> bool {
        match self {
            Self::Auto => metric == LOSS,
            Self::Min => true,
            Self::Max => false,
        }
    }
}
