//! What the ranks compute on, as reports tell it.

use std::collections::BTreeMap;

use brigade_core::Float;
use brigade_report::{NumberType, peak_flops};

use crate::rank::texts;
use crate::session::Session;

/// The devices of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Devices {
    /// Their names and numbers (`8 x NVIDIA H100 80GB HBM3`); none on the CPU.
    pub names: Option<String>,
    /// Operations per second that one could do at best, the mean over the ranks; none unless it is known of all.
    pub peak_flops: Option<f64>,
    /// The number type of products.
    float: Float,
}

impl Session {
    /// Hears of all ranks' devices; all ranks call it.
    pub(super) fn devices(&self) -> anyhow::Result<Devices> {
        let names = texts(self.group(), &self.device_name().unwrap_or_default())?;
        Ok(Devices::new(&names, self.settings.compute.float(), self.settings.output.peak_tflops))
    }
}

impl Devices {
    /// Of one name a rank, empty where there is none. `peak_tflops` is that of each device, 0 for what their names say.
    fn new(names: &[String], float: Float, peak_tflops: f64) -> Self {
        let number = match float {
            Float::F32 => NumberType::F32,
            Float::Bf16 => NumberType::Bf16,
        };
        let peaks = || names.iter().map(|name| peak_flops(name, number)).sum::<Option<f64>>();
        let peak = if peak_tflops > 0.0 {
            Some(peak_tflops * 1e12)
        } else {
            peaks().map(|sum| sum / names.len() as f64)
        };
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for name in names.iter().filter(|name| !name.is_empty()) {
            *counts.entry(name).or_default() += 1;
        }
        let texts: Vec<_> = counts.iter().map(|(name, count)| format!("{count} x {name}")).collect();
        Self { names: (!texts.is_empty()).then(|| texts.join(", ")), peak_flops: peak, float }
    }

    /// A line about them; none on the CPU.
    pub fn introduction(&self) -> Option<String> {
        let names = self.names.as_ref()?;
        let float = match self.float {
            Float::F32 => "f32",
            Float::Bf16 => "bf16",
        };
        Some(match self.peak_flops {
            Some(peak) => format!("{names}; each at most {:.1} TFLOP/s in {float}", peak / 1e12),
            None => format!(
                "{names}; without MFU, as their peak in {float} is not known (--peak-tflops N gives it)"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(names: &[&str], float: Float, peak_tflops: f64) -> (Option<f64>, Option<String>) {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let devices = Devices::new(&names, float, peak_tflops);
        (devices.peak_flops, devices.introduction())
    }

    const H100: &str = "NVIDIA H100 80GB HBM3";

    #[test]
    fn the_peak_comes_from_the_names_and_the_number_type() {
        let (peak, text) = devices(&[H100; 8], Float::Bf16, 0.0);
        assert_eq!(peak, Some(989.4e12));
        assert_eq!(text.as_deref(), Some("8 x NVIDIA H100 80GB HBM3; each at most 989.4 TFLOP/s in bf16"));
        assert_eq!(devices(&[H100; 2], Float::F32, 0.0).0, Some(66.9 * 1e12));
        let (peak, text) = devices(&[H100, "NVIDIA A100-SXM4-80GB"], Float::Bf16, 0.0);
        assert_eq!(peak, Some(650.7e12), "the mean of 989.4 and 312");
        assert!(
            text.is_some_and(
                |text| text.starts_with("1 x NVIDIA A100-SXM4-80GB, 1 x NVIDIA H100 80GB HBM3; ")
            )
        );
    }

    #[test]
    fn a_device_that_is_not_known_has_no_peak_but_the_one_that_is_given() {
        let (peak, text) = devices(&[H100, "Some GPU"], Float::Bf16, 0.0);
        assert_eq!(peak, None);
        assert!(text.is_some_and(|text| text.contains("--peak-tflops")));
        assert_eq!(devices(&[H100, "Some GPU"], Float::Bf16, 500.0).0, Some(500e12));
    }

    #[test]
    fn a_processor_is_not_told_of_and_has_a_peak_only_if_given() {
        assert_eq!(devices(&["", ""], Float::F32, 0.0), (None, None));
        assert_eq!(devices(&["", ""], Float::F32, 0.5), (Some(0.5e12), None));
    }
}
