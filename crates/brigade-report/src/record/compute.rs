//! How much of what the devices can do a step used.

use super::{StepRecord, percent};

/// What is known about the arithmetic of a step. The columns that depend on it appear only if it is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compute {
    /// Floating-point operations per token, forward and backward: `6·N + 12·L·h·seq` for a transformer with
    /// `N` parameters, `L` layers of width `h`, and sequences of length `seq`. The caller decides whether `N`
    /// counts the embedding, and says so.
    pub flops_per_token: Option<f64>,
    /// Ranks of the world, with one device each, which share the operations of a step.
    pub ranks: usize,
    /// The most operations per second that one device can do, e.g. by [`peak_flops`](crate::peak_flops); the mean if devices
    /// differ.
    pub peak_flops: Option<f64>,
}

impl Default for Compute {
    fn default() -> Self {
        Self { flops_per_token: None, ranks: 1, peak_flops: None }
    }
}

impl Compute {
    /// TFLOP/s of a step on each rank: its operations, over its seconds and the number of ranks.
    pub fn tflops(&self, record: &StepRecord) -> Option<f64> {
        let ranks = self.ranks.max(1) as f64;
        self.flops_per_token.map(|flops| flops * record.tokens_per_second / ranks / 1e12)
    }

    /// The share of a device's peak that a step used (model FLOPs utilization), in percent.
    pub fn mfu_percent(&self, record: &StepRecord) -> Option<f64> {
        let peak = self.peak_flops.filter(|peak| *peak > 0.0)?;
        self.tflops(record).map(|tflops| percent(tflops * 1e12, peak))
    }

    /// The record with its rates.
    pub(crate) fn rate(&self, record: &StepRecord) -> StepRecord {
        StepRecord { tflops: self.tflops(record), mfu_percent: self.mfu_percent(record), ..record.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilization_is_known_only_with_its_parts() {
        let record = StepRecord { tokens_per_second: 2e3, ..StepRecord::default() };
        let mut compute = Compute { flops_per_token: Some(1e9), ..Compute::default() };
        assert_eq!((compute.tflops(&record), compute.mfu_percent(&record)), (Some(2.0), None));
        compute.peak_flops = Some(8e12);
        assert_eq!(compute.mfu_percent(&record), Some(25.0));
        assert_eq!(StepRecord::default().data_wait_percent(), 0.0);
    }

    #[test]
    fn rates_are_those_of_one_device() {
        // 8 devices at 400,000 tokens/s together, 8 GFLOP a token: 400 of 1000 TFLOP/s each.
        let record = StepRecord { tokens_per_second: 4e5, ..StepRecord::default() };
        let compute = Compute { flops_per_token: Some(8e9), ranks: 8, peak_flops: Some(1e15) };
        let rated = compute.rate(&record);
        assert_eq!((rated.tflops, rated.mfu_percent), (Some(400.0), Some(40.0)));
        let text = serde_json::to_string(&rated).unwrap();
        assert!(text.contains(r#""tflops":400.0,"mfu_percent":40.0"#), "{text}");
        assert_eq!(serde_json::from_str::<StepRecord>(&text).unwrap(), rated);
        let broken = compute.rate(&StepRecord { tokens_per_second: f64::INFINITY, ..record });
        let text = serde_json::to_string(&broken).unwrap();
        assert!(text.contains(r#""tflops":null,"mfu_percent":null"#), "{text}");
        assert_eq!(serde_json::from_str::<StepRecord>(&text).unwrap().tflops, None);
    }
}
