//! The devices of all ranks, for reports.

use brigade_core::Dtype;
use brigade_report::{PeakDtype, peak_flops};
use brigade_sorted::SortedMap;

use crate::run::Session;
use crate::settings::Backend;
use crate::world::all_gather_text;

/// The devices of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Devices {
    /// Their number and names (`8 x NVIDIA H100 80GB HBM3`); `None` on the CPU.
    pub names: Option<String>,
    /// Peak FLOP/s of one device, the mean over the ranks; `None` unless it is known for all.
    pub peak_flops: Option<f64>,
    /// The number type of products, for messages.
    number: &'static str,
}

/// The number types in which products of `dtype` may be computed; a device uses the first that it supports. Burn's CUDA kernels
/// multiply f32 as TF32 on tensor cores, and this cannot be turned off.
fn peak_dtypes(backend: Backend, dtype: Dtype) -> &'static [PeakDtype] {
    match (dtype, backend) {
        (Dtype::F32, Backend::Cuda) => &[PeakDtype::Tf32, PeakDtype::F32],
        (Dtype::F32, _) => &[PeakDtype::F32],
        (Dtype::Bf16, _) => &[PeakDtype::Bf16],
    }
}

/// The number type of a device's products, and its peak FLOP/s in it; `None` if unknown.
fn peak(name: &str, numbers: &[PeakDtype]) -> Option<(PeakDtype, f64)> {
    numbers.iter().find_map(|number| Some((*number, peak_flops(name, *number)?)))
}

impl Session {
    /// Gathers the devices of all ranks; all ranks call it.
    pub(super) fn devices(&self) -> anyhow::Result<Devices> {
        let names = all_gather_text(self.group(), &self.device_name().unwrap_or_default())?;
        let compute = &self.settings.compute;
        let numbers = peak_dtypes(compute.backend, compute.resolved_dtype());
        Ok(Devices::new(&names, numbers, self.settings.output.peak_tflops))
    }
}

impl Devices {
    /// From the device name of each rank, empty if it has none. `peak_tflops` is that of each device; 0 looks it up by name.
    fn new(names: &[String], numbers: &[PeakDtype], peak_tflops: f64) -> Self {
        let peaks = || names.iter().map(|name| Some(peak(name, numbers)?.1)).sum::<Option<f64>>();
        let rounds = names.iter().any(|name| peak(name, numbers).is_some_and(|(n, _)| n == PeakDtype::Tf32));
        let number = match numbers {
            [PeakDtype::Bf16] => "bf16",
            _ if rounds => "fp32, whose products are TF32",
            _ => "fp32",
        };
        let peak = if peak_tflops > 0.0 {
            Some(peak_tflops * 1e12)
        } else {
            peaks().map(|sum| sum / names.len() as f64)
        };
        let mut counts: SortedMap<&str, usize> = SortedMap::new();
        for name in names.iter().filter(|name| !name.is_empty()) {
            *counts.entry(name).or_default() += 1;
        }
        let texts: Vec<_> = counts.iter().map(|(name, count)| format!("{count} x {name}")).collect();
        Self { names: (!texts.is_empty()).then(|| texts.join(", ")), peak_flops: peak, number }
    }

    /// A line about them; `None` on the CPU.
    pub fn summary_line(&self) -> Option<String> {
        let names = self.names.as_ref()?;
        let number = self.number;
        Some(match self.peak_flops {
            Some(peak) => format!("{names}; peak of each {:.1} TFLOP/s in {number}", peak / 1e12),
            None => format!(
                "{names}; no MFU, because their peak in {number} is unknown (--peak-tflops N sets it)"
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
        dtype: Dtype,
        peak_tflops: f64,
    ) -> (Option<f64>, Option<String>) {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let devices = Devices::new(&names, peak_dtypes(backend, dtype), peak_tflops);
        (devices.peak_flops, devices.summary_line())
    }

    fn devices(names: &[&str], dtype: Dtype, peak_tflops: f64) -> (Option<f64>, Option<String>) {
        devices_of(Backend::Cuda, names, dtype, peak_tflops)
    }

    const H100: &str = "NVIDIA H100 80GB HBM3";

    #[test]
    fn the_peak_comes_from_the_names_and_the_number_type() {
        let (peak, text) = devices(&[H100; 8], Dtype::Bf16, 0.0);
        assert_eq!(peak, Some(989.4e12));
        assert_eq!(text.as_deref(), Some("8 x NVIDIA H100 80GB HBM3; peak of each 989.4 TFLOP/s in bf16"));
        let (peak, text) = devices(&[H100, "NVIDIA A100-SXM4-80GB"], Dtype::Bf16, 0.0);
        assert_eq!(peak, Some(650.7e12), "the mean of 989.4 and 312");
        assert!(
            text.is_some_and(
                |text| text.starts_with("1 x NVIDIA A100-SXM4-80GB, 1 x NVIDIA H100 80GB HBM3; ")
            )
        );
    }

    #[test]
    fn products_of_f32_are_tf32_on_cuda_where_tensor_cores_take_it() {
        let (peak, text) = devices(&[H100; 2], Dtype::F32, 0.0);
        assert_eq!(peak, Some(494.7e12));
        assert_eq!(
            text.as_deref(),
            Some("2 x NVIDIA H100 80GB HBM3; peak of each 494.7 TFLOP/s in fp32, whose products are TF32")
        );
        let (peak, text) = devices(&["Tesla T4"], Dtype::F32, 0.0);
        assert_eq!(peak, Some(8.1e12));
        assert!(text.is_some_and(|text| text.ends_with("8.1 TFLOP/s in fp32")));
        let (peak, text) = devices_of(Backend::Wgpu, &[H100], Dtype::F32, 0.0);
        assert_eq!(peak, Some(66.9 * 1e12));
        assert!(text.is_some_and(|text| text.ends_with("66.9 TFLOP/s in fp32")));
    }

    #[test]
    fn an_unknown_device_has_no_peak_but_the_given_one() {
        let (peak, text) = devices(&[H100, "Some GPU"], Dtype::Bf16, 0.0);
        assert_eq!(peak, None);
        assert!(text.is_some_and(|text| text.contains("--peak-tflops")));
        assert_eq!(devices(&[H100, "Some GPU"], Dtype::Bf16, 500.0).0, Some(500e12));
    }

    #[test]
    fn a_cpu_has_no_line_and_a_peak_only_if_given() {
        assert_eq!(devices(&["", ""], Dtype::F32, 0.0), (None, None));
        assert_eq!(devices(&["", ""], Dtype::F32, 0.5), (Some(0.5e12), None));
    }
}
