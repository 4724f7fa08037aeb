//! Memory in a record: of tensors by what they are for, as it is and as it was planned, and of devices.

use serde::{Deserialize, Serialize};

use super::percent;

/// Bytes of tensors by what they are for, on the rank that holds most of each kind: at the end of the step, and the most
/// so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryRecord {
    /// Parameters: whole, sharded, gathered, fp32 masters.
    pub parameter_bytes: u64,
    /// The most of them so far.
    pub parameter_bytes_peak: u64,
    /// Gradients: being accumulated, being communicated, and reduced.
    pub gradient_bytes: u64,
    /// The most of them so far.
    pub gradient_bytes_peak: u64,
    /// The optimizer's state.
    pub optimizer_bytes: u64,
    /// The most of it so far.
    pub optimizer_bytes_peak: u64,
    /// Activations that micro-batches in flight keep at the boundaries of blocks.
    pub activation_bytes: u64,
    /// The most of it so far.
    pub activation_bytes_peak: u64,
}

/// The file, in a run's folder, with what a rank is planned to hold, before the first step: [`PlannedMemory`] as JSON.
pub const PLANNED_MEMORY_FILE: &str = "logs/memory-plan.json";

/// Bytes that a rank is planned to hold at its peak, by what they are for, on the rank that needs most of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMemory {
    /// Parameters: whole, sharded, gathered, fp32 masters.
    pub parameter_bytes: u64,
    /// Gradients.
    pub gradient_bytes: u64,
    /// The optimizer's state.
    pub optimizer_bytes: u64,
    /// Activations that micro-batches in flight keep at the boundaries of blocks.
    pub activation_bytes: u64,
    /// What blocks keep inside for the backward, which a run does not count; 0 where it is unknown.
    pub saved_activation_bytes: u64,
}

/// Memory of a device, in bytes: of one rank's device, or the most of any rank's. Old files have none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// Used by tensors that are alive at the end of the step.
    #[serde(rename = "device_memory_bytes")]
    pub in_use: u64,
    /// Taken from the device at the end of the step: what is in use, and what is cached for later tensors.
    #[serde(rename = "device_memory_reserved_bytes")]
    pub reserved: u64,
    /// The most reserved at the end of any step so far.
    #[serde(rename = "device_memory_reserved_bytes_peak")]
    pub reserved_peak: u64,
    /// What the device has, or the smallest device; none where the device does not say.
    #[serde(rename = "device_memory_total_bytes", default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
}

impl DeviceMemory {
    /// The most of each, and the smaller total.
    #[must_use]
    pub fn most(self, other: Self) -> Self {
        let total = self.total.into_iter().chain(other.total).min();
        Self {
            in_use: self.in_use.max(other.in_use),
            reserved: self.reserved.max(other.reserved),
            reserved_peak: self.reserved_peak.max(other.reserved_peak),
            total,
        }
    }

    /// The most reserved so far, in percent of the device's memory.
    pub fn peak_percent(&self) -> Option<f64> {
        self.total.map(|total| percent(self.reserved_peak as f64, total as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::StepRecord;

    #[test]
    fn memory_of_a_device_is_read_as_it_was_written() {
        let memory = DeviceMemory { in_use: 3, reserved: 4, reserved_peak: 5, total: Some(7) };
        let record = StepRecord { device_memory: Some(memory), ..StepRecord::default() };
        let text = serde_json::to_string(&record).unwrap();
        let fields = concat!(
            r#""device_memory_bytes":3,"device_memory_reserved_bytes":4,"device_memory_reserved_bytes_peak":5,"#,
            r#""device_memory_total_bytes":7,"peak_rss_bytes""#
        );
        assert!(text.contains(fields), "{text}");
        assert_eq!(serde_json::from_str::<StepRecord>(&text).unwrap(), record);
        let unsaid = StepRecord { device_memory: Some(DeviceMemory { total: None, ..memory }), ..record };
        let text = serde_json::to_string(&unsaid).unwrap();
        assert!(!text.contains("device_memory_total_bytes"), "{text}");
        assert_eq!(serde_json::from_str::<StepRecord>(&text).unwrap(), unsaid);
        let none = serde_json::to_string(&StepRecord::default()).unwrap();
        assert!(
            !none.contains("device_memory") && !none.contains("tflops") && !none.contains("mfu"),
            "{none}"
        );
    }

    #[test]
    fn the_fullest_and_the_smallest_device_count() {
        let (a, b) = (
            DeviceMemory { in_use: 1, reserved: 4, reserved_peak: 9, total: Some(20) },
            DeviceMemory { in_use: 2, reserved: 3, reserved_peak: 5, total: Some(10) },
        );
        let most = DeviceMemory { in_use: 2, reserved: 4, reserved_peak: 9, total: Some(10) };
        assert_eq!(a.most(b), most);
        assert_eq!(b.most(DeviceMemory { total: None, ..a }).total, Some(10));
        assert_eq!(DeviceMemory::default().most(b), b);
        assert_eq!((b.peak_percent(), DeviceMemory::default().peak_percent()), (Some(50.0), None));
    }
}
