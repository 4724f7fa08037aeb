//! The peak FLOP/s of a device, by its name.

/// The type of the numbers that are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeakDtype {
    /// 32 bits, outside of tensor cores.
    F32,
    /// 32 bits, of which tensor cores multiply the leading 11 significant ones.
    Tf32,
    /// 16 bits, IEEE half precision, on tensor cores.
    F16,
    /// 16 bits, bfloat16, on tensor cores.
    Bf16,
}

/// The most floating-point operations per second that one device can do on dense data, i.e. without the sparsity that
/// data sheets often assume; `None` if the device is not in the table, or has no tensor cores for such numbers.
///
/// `device` is the name that the CUDA driver reports (`NVIDIA H100 80GB HBM3`). Every word of it must be known: a name with a
/// further word (`Laptop`, `Ti`, `MIG 1g.5gb`) is another device, for which nothing is guessed.
///
/// Tensor cores accumulate in f32, as in training; GeForce devices then reach half of what they do with f16 accumulation.
///
/// # Sources
/// NVIDIA's data sheets of A2, A10, A30, A40, A100, H100, H200, GH200, L4, L40, L40S, T4, V100 and V100S, of HGX B200 and
/// GB200 NVL72 (their values for one GPU); NVIDIA's data sheet of the A10G for AWS; its white papers on the Hopper (H100),
/// GA102 (RTX 3090, RTX A6000), Ada (RTX 4090, RTX 6000 Ada) and RTX Blackwell (RTX 5090) architectures. Values with sparsity
/// are halved. Tensor cores take TF32 at half the rate of bfloat16 in every generation that has both (156 and 312 on A100, 494.7
/// and 989.4 on H100), so that one is not in the table.
pub fn peak_flops(device: &str, number: PeakDtype) -> Option<f64> {
    let name = device.to_uppercase();
    let words = || name.split([' ', '-']).filter(|word| !word.is_empty() && !MAKER.contains(word));
    let matches = |device: &&Device| {
        let (mut needed, allowed) =
            (device.name.split(' '), device.name.split(' ').chain(device.details.split(' ')));
        needed.all(|need| words().any(|word| word == need))
            && words().all(|word| allowed.clone().any(|w| w == word))
    };
    let Device { f32, f16, bf16, .. } = DEVICES.iter().find(matches)?;
    let tflops = match number {
        PeakDtype::F32 => *f32,
        PeakDtype::F16 => *f16,
        PeakDtype::Bf16 if *bf16 => *f16,
        PeakDtype::Tf32 if *bf16 => *f16 / 2.0,
        PeakDtype::Bf16 | PeakDtype::Tf32 => return None,
    };
    Some(tflops * 1e12)
}

/// Words that do not tell devices apart.
const MAKER: [&str; 3] = ["NVIDIA", "TESLA", "GEFORCE"];

struct Device {
    /// Words that a name must have.
    name: &'static str,
    /// Further words that its name may have.
    details: &'static str,
    /// TFLOP/s.
    f32: f64,
    f16: f64,
    /// Whether its tensor cores take bfloat16, as fast as f16, and TF32, half as fast.
    bf16: bool,
}

const fn device(name: &'static str, details: &'static str, f32: f64, f16: f64) -> Device {
    Device { name, details, f32, f16, bf16: true }
}

/// Of the generations before Ampere, whose tensor cores take neither bfloat16 nor TF32.
const fn older(name: &'static str, details: &'static str, f32: f64, f16: f64) -> Device {
    Device { name, details, f32, f16, bf16: false }
}

const DEVICES: [Device; 26] = [
    device("GB200", "186GB HBM3E", 80.0, 2500.0),
    device("B200", "180GB HBM3E", 75.0, 2250.0),
    device("GH200", "120GB 480GB 144G HBM3 HBM3E", 66.9, 989.4),
    device("H200", "141GB HBM3E", 66.9, 989.4),
    device("H200 NVL", "141GB HBM3E", 60.0, 835.5),
    device("H100", "SXM5 80GB HBM3", 66.9, 989.4),
    device("H100 PCIE", "80GB HBM2E", 51.2, 756.0),
    device("H100 NVL", "94GB HBM3", 60.0, 835.5),
    device("A100", "SXM SXM4 PCIE 40GB 80GB", 19.5, 312.0),
    device("A30", "PCIE 24GB", 10.3, 165.0),
    device("A40", "PCIE 48GB", 37.4, 149.7),
    device("A10", "PCIE 24GB", 31.2, 125.0),
    device("A10G", "24GB", 35.0, 70.0),
    device("A2", "PCIE 16GB", 4.5, 18.0),
    device("L4", "24GB", 30.3, 121.0),
    device("L40", "48GB", 90.5, 181.05),
    device("L40S", "48GB", 91.6, 362.05),
    device("RTX A6000", "48GB", 38.7, 154.8),
    device("RTX 6000 ADA", "GENERATION 48GB", 91.1, 364.2),
    device("RTX 3090", "24GB", 35.6, 71.0),
    device("RTX 4090", "24GB", 82.6, 165.2),
    device("RTX 5090", "32GB", 104.8, 209.5),
    older("T4", "16GB", 8.1, 65.0),
    older("V100 SXM2", "16GB 32GB", 15.7, 125.0),
    older("V100 PCIE", "16GB 32GB", 14.0, 112.0),
    older("V100S PCIE", "32GB", 16.4, 130.0),
];

#[cfg(test)]
mod tests {
    use PeakDtype::{Bf16, F16, F32, Tf32};

    use super::*;

    fn tflops(device: &str) -> [Option<f64>; 3] {
        [Bf16, F16, F32].map(|number| peak_flops(device, number).map(|flops| flops / 1e12))
    }

    #[test]
    fn names_as_the_driver_reports_them() {
        let known = [
            ("NVIDIA GB200", 2500.0, 80.0),
            ("NVIDIA B200", 2250.0, 75.0),
            ("NVIDIA GH200 480GB", 989.4, 66.9),
            ("NVIDIA H200", 989.4, 66.9),
            ("NVIDIA H200 NVL", 835.5, 60.0),
            ("NVIDIA H100 80GB HBM3", 989.4, 66.9),
            ("NVIDIA H100 PCIe", 756.0, 51.2),
            ("NVIDIA H100 NVL", 835.5, 60.0),
            ("NVIDIA A100", 312.0, 19.5),
            ("NVIDIA A100-SXM4-40GB", 312.0, 19.5),
            ("NVIDIA A100-SXM4-80GB", 312.0, 19.5),
            ("NVIDIA A100 80GB PCIe", 312.0, 19.5),
            ("A100-PCIE-40GB", 312.0, 19.5),
            ("NVIDIA A30", 165.0, 10.3),
            ("NVIDIA A40", 149.7, 37.4),
            ("NVIDIA A10", 125.0, 31.2),
            ("NVIDIA A10G", 70.0, 35.0),
            ("NVIDIA A2", 18.0, 4.5),
            ("NVIDIA L4", 121.0, 30.3),
            ("NVIDIA L40", 181.05, 90.5),
            ("NVIDIA L40S", 362.05, 91.6),
            ("NVIDIA RTX A6000", 154.8, 38.7),
            ("NVIDIA RTX 6000 Ada Generation", 364.2, 91.1),
            ("NVIDIA GeForce RTX 3090", 71.0, 35.6),
            ("NVIDIA GeForce RTX 4090", 165.2, 82.6),
            ("NVIDIA GeForce RTX 5090", 209.5, 104.8),
        ];
        for (name, half, single) in known {
            assert_eq!(tflops(name), [Some(half), Some(half), Some(single)], "{name}");
        }
    }

    #[test]
    fn older_tensor_cores_take_neither_bfloat16_nor_tf32() {
        let known = [
            ("Tesla T4", 65.0, 8.1),
            ("Tesla V100-SXM2-16GB", 125.0, 15.7),
            ("Tesla V100-SXM2-32GB", 125.0, 15.7),
            ("Tesla V100-PCIE-16GB", 112.0, 14.0),
            ("Tesla V100S-PCIE-32GB", 130.0, 16.4),
        ];
        for (name, half, single) in known {
            assert_eq!(tflops(name), [None, Some(half), Some(single)], "{name}");
            assert_eq!(peak_flops(name, Tf32), None, "{name}");
        }
    }

    /// Beside the values that NVIDIA publishes for TF32 without sparsity, which it rounds.
    #[test]
    fn tf32_is_half_of_bfloat16() {
        let published = [
            ("NVIDIA H100 80GB HBM3", 494.7),
            ("NVIDIA H100 PCIe", 378.0),
            ("NVIDIA A100-SXM4-80GB", 156.0),
            ("NVIDIA A30", 82.0),
            ("NVIDIA A40", 74.8),
            ("NVIDIA A10", 62.5),
            ("NVIDIA A10G", 35.0),
            ("NVIDIA A2", 9.0),
            ("NVIDIA L4", 60.0),
            ("NVIDIA L40", 90.5),
            ("NVIDIA RTX A6000", 77.4),
            ("NVIDIA RTX 6000 Ada Generation", 182.1),
            ("NVIDIA GeForce RTX 3090", 35.6),
            ("NVIDIA GeForce RTX 4090", 82.6),
            ("NVIDIA GeForce RTX 5090", 104.8),
        ];
        for (name, tflops) in published {
            let found = peak_flops(name, Tf32).unwrap() / 1e12;
            assert!((found / tflops - 1.0).abs() < 0.01, "{name}: {found}, not {tflops}");
        }
    }

    #[test]
    fn a_device_that_only_resembles_a_known_one_is_not_guessed() {
        for name in [
            "",
            "NVIDIA",
            "NVIDIA H",
            "NVIDIA H20",
            "NVIDIA H800",
            "NVIDIA A1000",
            "NVIDIA A100X",
            "NVIDIA A100-SXM-64GB",
            "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
            "NVIDIA A10-24Q",
            "GRID A100D-80C",
            "NVIDIA GeForce RTX 3090 Ti",
            "NVIDIA GeForce RTX 4090 D",
            "NVIDIA GeForce RTX 4090 Laptop GPU",
            "Quadro RTX 6000",
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "AMD Instinct MI300X",
            "llvmpipe (LLVM 19.1.7, 256 bits)",
        ] {
            assert_eq!(tflops(name), [None; 3], "{name}");
        }
    }

    #[test]
    fn no_device_hides_another() {
        for Device { name, f32, f16, .. } in DEVICES {
            let found = [F16, F32].map(|number| peak_flops(name, number));
            assert_eq!(found, [Some(f16 * 1e12), Some(f32 * 1e12)], "{name}");
        }
    }
}
