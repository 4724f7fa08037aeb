//! Which of two values of a metric is the better one.

use serde::{Deserialize, Serialize};

/// Which of two values of a metric is the better one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricMode {
    /// The lower where the metric's name ends in `loss`, `error` or `perplexity`, and else the higher.
    #[default]
    Auto,
    /// The lower.
    Min,
    /// The higher.
    Max,
}

/// The name of the loss among the metrics of a validation.
pub(crate) const LOSS: &str = "loss";

/// Ends of the names of metrics whose lower values are better.
const LOWER_IS_BETTER: [&str; 3] = ["loss", "error", "perplexity"];

impl MetricMode {
    /// Whether a lower value of this metric is better.
    pub(crate) fn is_min(self, metric: &str) -> bool {
        match self {
            Self::Auto => LOWER_IS_BETTER.iter().any(|ending| metric.ends_with(ending)),
            Self::Min => true,
            Self::Max => false,
        }
    }
}
