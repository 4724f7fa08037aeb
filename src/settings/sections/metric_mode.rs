//! Which of two values of a metric is the better one.

use serde::{Deserialize, Serialize};

/// Which of two values of a metric is the better one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricMode {
    /// The lower where the metric's name ends in `loss`, `error`, `perplexity` or an abbreviation of one (`mae`, `mape`, `mse`, `rmse`, `nll`, `ppl`, `wer`, `cer`), and else the higher.
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

/// The last words of such names, as they are abbreviated.
const ABBREVIATIONS: [&str; 8] = ["mae", "mape", "mse", "rmse", "nll", "ppl", "wer", "cer"];

impl MetricMode {
    /// Whether a lower value of this metric is better.
    pub(crate) fn is_min(self, metric: &str) -> bool {
        match self {
            Self::Auto => {
                let last =
                    metric.rsplit(|character: char| !character.is_alphanumeric()).next().unwrap_or(metric);
                LOWER_IS_BETTER.iter().any(|ending| metric.ends_with(ending))
                    || ABBREVIATIONS.iter().any(|short| last.eq_ignore_ascii_case(short))
            }
            Self::Min => true,
            Self::Max => false,
        }
    }
}
