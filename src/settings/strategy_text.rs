//! What a run says of its strategy.

use brigade_core::{Fragments, OuterDtype};
use brigade_report::counted;

use super::{StrategyName, StrategySettings};

impl StrategySettings {
    /// A note on settings that are set and that the strategy does not use, if there are any.
    pub(crate) fn note_unused(&self) -> Option<String> {
        let usual = Self::default();
        let has_steps = self.has_workers() || self.rounds().is_some();
        let is_diloco = self.name == StrategyName::Diloco;
        let unused = [
            ("strategy.inner_steps (--inner-steps)", !has_steps && self.inner_steps != usual.inner_steps),
            ("strategy.outer_dtype", !is_diloco && self.outer_dtype != usual.outer_dtype),
            (
                "strategy.outer_learning_rate",
                !is_diloco && self.outer_learning_rate != usual.outer_learning_rate,
            ),
            ("strategy.outer_momentum", !is_diloco && self.outer_momentum != usual.outer_momentum),
            ("strategy.outer_nesterov", !is_diloco && self.outer_nesterov != usual.outer_nesterov),
            ("strategy.outer_mixing", !is_diloco && self.outer_mixing != usual.outer_mixing),
        ];
        let names: Vec<&str> =
            unused.into_iter().filter(|(_, is_unused)| *is_unused).map(|(name, _)| name).collect();
        (!names.is_empty()).then(|| format!("note: this strategy does not use {}", names.join(", ")))
    }

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
