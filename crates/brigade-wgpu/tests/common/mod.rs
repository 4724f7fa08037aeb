//! The device that tests run on.

use brigade_wgpu::{Error, device};
use burn::tensor::Device;

/// The first adapter's device, or nothing, said so, where there is no adapter. With `BRIGADE_REQUIRE_WGPU=1` that fails.
pub fn device_or_skip() -> Option<Device> {
    match device(0) {
        Ok((device, _)) => Some(device),
        Err(Error::NoAdapter) if std::env::var("BRIGADE_REQUIRE_WGPU").as_deref() != Ok("1") => {
            println!("skipped: {}", Error::NoAdapter);
            None
        }
        Err(error) => panic!("{error}"),
    }
}
