//! What the ranks compute on, as reports tell it.

use std::collections::BTreeMap;

use brigade_core::Float;
use brigade_report::{NumberType, peak_flops};

use crate::run::Session;
use crate::settings::Backend;
use crate::world::texts;

/// The devices of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Devices {
    /// Their names and numbers (`8 x NVIDIA H100 80GB HBM3`); none on the CPU.
    pub names: Option<String>,
    /// Operations per second that one could do at best, the mean over the ranks; none unless it is known of all.
    pub peak_flops: Option<f64>,
    /// The number type of products, in words.
    number: &'static str,
}

/// The number types in which products of `float` may be computed; the first that a device has is the one. Burn's CUDA
/// kernels multiply f32 as TF32 where tensor cores take that, and nothing can tell them not to.
fn numbers(backend: Backend, float: Float) -> &'static [NumberType] {
    match (float, backend) {
        (Float::F32, Backend::Cuda) => &[NumberType::Tf32, NumberType::F32],
        (Float::F32, _) => &[NumberType::F32],
        (Float::Bf16, _) => &[NumberType::Bf16],
    }
}

/// The number type of a device's products, and how many it can do in a second; none where it is not known.
fn peak(name: &str, numbers: &[NumberType]) -> Option<(NumberType, f64)> {
    numbers.iter().find_map(|number| Some((*number, peak_flops(name, *number)?)))
}

impl Session {
    /// Hears of all ranks' devices; all ranks call it.
    pub(super) fn devices(&self) -> anyhow::Result<Devices> {
        let names = texts(self.group(), &self.device_name().unwrap_or_default())?;
        let compute = &self.settings.compute;
        let numbers = numbers(compute.backend, compute.float());
        Ok(Devices::new(&names, numbers, self.settings.output.peak_tflops))
    }
}

impl Devices {
    /// Of one name a rank, empty where there is none. `peak_tflops` is that of each device, 0 for what their names say.
    fn new(names: &[String], numbers: &[NumberType], peak_tflops: f64) -> Self {
        let peaks = || names.iter().map(|name| Some(peak(name, numbers)?.1)).sum::<Option<f64>>();
        let rounds = names.iter().any(|name| peak(name, numbers).is_some_and(|(n, _)| n == NumberType::Tf32));
        let number = match numbers {
            [NumberType::Bf16] => "bf16",
            _ if rounds => "f32, whose products are TF32",
            _ => "f32",
        };
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
        Self { names: (!texts.is_empty()).then(|| texts.join(", ")), peak_flops: peak, number }
    }

    /// A line about them; none on the CPU.
    pub fn introduction(&self) -> Option<String> {
        let names = self.names.as_ref()?;
        let number = self.number;
        Some(match self.peak_flops {
            Some(peak) => format!("{names}; each at most {:.1} TFLOP/s in {number}", peak / 1e12),
            None => format!(
                "{names}; without MFU, as their peak in {number} is not known (--peak-tflops N gives it)"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices_of(
        backend: Backend,
        names: &[&str],
        float: Float,
        peak_tflops: f64,
    ) -> (Option<f64>, Option<String>) {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let devices = Devices::new(&names, numbers(backend, float), peak_tflops);
        (devices.peak_flops, devices.introduction())
    }

    fn devices(names: &[&str], float: Float, peak_tflops: f64) -> (Option<f64>, Option<String>) {
        devices_of(Backend::Cuda, names, float, peak_tflops)
    }

    const H100: &str = "NVIDIA H100 80GB HBM3";

    #[test]
    fn the_peak_comes_from_the_names_and_the_number_type() {
        let (peak, text) = devices(&[H100; 8], Float::Bf16, 0.0);
        assert_eq!(peak, Some(989.4e12));
        assert_eq!(text.as_deref(), Some("8 x NVIDIA H100 80GB HBM3; each at most 989.4 TFLOP/s in bf16"));
        let (peak, text) = devices(&[H100, "NVIDIA A100-SXM4-80GB"], Float::Bf16, 0.0);
        assert_eq!(peak, Some(650.7e12), "the mean of 989.4 and 312");
        assert!(
            text.is_some_and(
                |text| text.starts_with("1 x NVIDIA A100-SXM4-80GB, 1 x NVIDIA H100 80GB HBM3; ")
            )
        );
    }

    #[test]
    fn products_of_f32_are_tf32_on_cuda_where_tensor_cores_take_it() {
        let (peak, text) = devices(&[H100; 2], Float::F32, 0.0);
        assert_eq!(peak, Some(494.7e12));
        assert_eq!(
            text.as_deref(),
            Some("2 x NVIDIA H100 80GB HBM3; each at most 494.7 TFLOP/s in f32, whose products are TF32")
        );
        let (peak, text) = devices(&["Tesla T4"], Float::F32, 0.0);
        assert_eq!(peak, Some(8.1e12));
        assert!(text.is_some_and(|text| text.ends_with("8.1 TFLOP/s in f32")));
        let (peak, text) = devices_of(Backend::Wgpu, &[H100], Float::F32, 0.0);
        assert_eq!(peak, Some(66.9 * 1e12));
        assert!(text.is_some_and(|text| text.ends_with("66.9 TFLOP/s in f32")));
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
