//! Where operations are tested.

use std::sync::OnceLock;

use burn::tensor::Device;

/// A device, and the shares that comparisons with fp64 may differ by in fp32 and in bf16, if it has that.
pub type Tested = (&'static str, Device, [f64; 2], Option<[f64; 2]>);

const HALF: [f64; 2] = [1.0 / 64.0, 1.0 / 128.0];

/// The CPU, and devices with kernels: of CUDA with the variable `BRIGADE_REQUIRE_CUDA` set to 1, and of wgpu where there is an adapter.
pub fn devices() -> &'static [Tested] {
    static DEVICES: OnceLock<Vec<Tested>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        #[allow(unused_mut, reason = "without these features there are no others")]
        let mut devices = vec![("cpu", Device::flex(), [4e-6, 1e-6], Some(HALF))];
        #[cfg(feature = "wgpu")]
        match Device::wgpu_options().init() {
            // Drivers' functions have a few units in the last place less.
            Ok(device) => {
                brigade_kernels::trust_software();
                devices.push(("wgpu", device, [6e-5, 3e-5], None));
            }
            Err(error) => {
                assert!(std::env::var("BRIGADE_REQUIRE_WGPU").as_deref() != Ok("1"), "{error}");
                println!("skipped: wgpu has no device");
            }
        }
        #[cfg(feature = "cuda")]
        if std::env::var("BRIGADE_REQUIRE_CUDA").as_deref() == Ok("1") {
            // Tensor cores multiply f32 as TF32.
            devices.push(("cuda", Device::cuda(0), [4e-3, 2e-3], Some(HALF)));
        }
        devices
    })
}
