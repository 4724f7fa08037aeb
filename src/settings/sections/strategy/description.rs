//! What a run says of its strategy.

use brigade_core::{Fragments, OuterDtype};
use brigade_report::counted;

use super::{StrategyName, StrategySettings};

impl StrategySettings {
    /// A line about how this many workers train together, if they do.
    pub(crate) fn describe(&self, workers: usize) -> Option<String> {
        let how = match self.name {
            StrategyName::Sync | StrategyName::AsyncServer => return None,
            StrategyName::LocalSgd => "they average their parameters".to_owned(),
            StrategyName::Diloco => format!(
                "an outer SGD steps along the mean of their changes (learning rate {}, {}momentum {}, summed in {})",
                self.outer_learning_rate,
                if self.outer_nesterov { "Nesterov " } else { "" },
                self.outer_momentum,
                match self.outer_dtype {
                    OuterDtype::F32 => "fp32",
                    OuterDtype::Bf16 => "bf16",
                    OuterDtype::Int8 => "fp32, sent as int8",
                }
            ),
        };
        let each = match self.inner_steps {
            1 => "every step".to_owned(),
            steps => format!("every {steps} steps"),
        };
        let each = match self.fragments() {
            None => each,
            Some(Fragments { count, overlap, .. }) => format!(
                "{each}, {} in turn, overlapped with {},",
                counted(count, "fragment"),
                counted(overlap as usize, "inner step"),
            ),
        };
        Some(format!(
            "{}, each with its own updates; after {each} {how}; the weights depend on the number of workers",
            counted(workers, "worker")
        ))
    }
}
