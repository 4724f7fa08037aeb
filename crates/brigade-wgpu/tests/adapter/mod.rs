//! The device that tests run on.

use brigade_wgpu::{Error, device};
use burn::tensor::Device;

/// The first adapter's device. Without an adapter it prints so and returns none, or fails if `BRIGADE_REQUIRE_WGPU=1`.
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
