//! The device of a rank.

use std::sync::{Mutex, PoisonError};

use burn::tensor::wgpu::{WgpuBackend, WgpuInitError};
use burn::tensor::{Device, DeviceKind};

use crate::adapters::{Adapter, Api, adapters};
use crate::choice::{choose, usable};
use crate::error::Error;

/// The device of the node's rank `local_rank`, opened, and the adapter that it is.
///
/// Discrete GPUs come first, then integrated ones, then those of virtual machines; drivers in software only where there
/// is no GPU. Ranks beyond the number of adapters share them in turn if all are of one kind.
///
/// # Errors
/// [`Error::NoAdapter`], [`Error::TooFewAdapters`], or [`Error::Open`] if the driver refuses.
pub fn device(local_rank: usize) -> Result<(Device, &'static Adapter), Error> {
    let adapter = choose(adapters(), local_rank)?;
    Ok((open(adapter)?, adapter))
}

/// How many ranks of this node can have an adapter of their own; 0 if there is none.
pub fn room() -> usize {
    usable(adapters()).len()
}

/// Opens an adapter, or gives the device that it was opened as before.
fn open(adapter: &Adapter) -> Result<Device, Error> {
    static OPENED: Mutex<Vec<(DeviceKind, Device)>> = Mutex::new(Vec::new());
    let kind = adapter.device_kind();
    // Held while a device is opened, so that ranks that are threads open each once.
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, device)) = opened.iter().find(|(other, _)| *other == kind) {
        return Ok(device.clone());
    }
    let api = match adapter.api {
        Api::Vulkan => WgpuBackend::Vulkan,
        Api::Metal => WgpuBackend::Metal,
        Api::Dx12 => WgpuBackend::Dx12,
    };
    let device = Device::wgpu_options().graphics_api(api).device_kind(kind.clone()).init();
    let refused =
        |error: WgpuInitError| Error::Open { adapter: adapter.to_string(), reason: error.to_string() };
    let device = device.map_err(refused)?;
    opened.push((kind, device.clone()));
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Burn counts adapters as they are listed. Without an adapter there is nothing to see.
    #[test]
    fn each_adapter_is_opened_as_itself_and_once() {
        for adapter in adapters() {
            let device = open(adapter).unwrap();
            assert_eq!(device.identity().unwrap().name, adapter.name);
            assert_eq!(open(adapter).unwrap(), device);
        }
    }
}
