//! The device of a rank.

use std::sync::{Mutex, PoisonError};

use burn::tensor::wgpu::{WgpuBackend, WgpuInitError};
use burn::tensor::{Device, DeviceKind};

use crate::adapter_choice::{choose, usable};
use crate::adapters::{Adapter, GraphicsApi, adapters};
use crate::error::Error;

/// Opens the device of local rank `local_rank`. Returns its adapter, too.
///
/// Discrete GPUs come first, then integrated ones, then those of virtual machines; software drivers are used only if there is no
/// GPU. Ranks beyond the number of adapters start again at the first, if all adapters are of one kind.
///
/// # Errors
/// [`Error::NoAdapter`], [`Error::TooFewAdapters`], or [`Error::Open`] if the driver refuses.
pub fn device(local_rank: usize) -> Result<(Device, &'static Adapter), Error> {
    let adapter = choose(adapters(), local_rank)?;
    Ok((open(adapter)?, adapter))
}

/// The number of adapters that ranks of this node may use.
pub fn adapter_count() -> usize {
    usable(adapters()).len()
}

/// Opens an adapter, or returns the device if it is open already.
fn open(adapter: &Adapter) -> Result<Device, Error> {
    static OPENED: Mutex<Vec<(DeviceKind, Device)>> = Mutex::new(Vec::new());
    let kind = adapter.device_kind();
    // Locked while a device is opened, so that ranks that are threads open each device once.
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, device)) = opened.iter().find(|(other, _)| *other == kind) {
        return Ok(device.clone());
    }
    let api = match adapter.api {
        GraphicsApi::Vulkan => WgpuBackend::Vulkan,
        GraphicsApi::Metal => WgpuBackend::Metal,
        GraphicsApi::Dx12 => WgpuBackend::Dx12,
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

    /// Burn must count adapters in the order in which they are listed. Without an adapter, this checks nothing.
    #[test]
    fn each_adapter_is_opened_as_itself_and_once() {
        for adapter in adapters() {
            let device = open(adapter).unwrap();
            assert_eq!(device.identity().unwrap().name, adapter.name);
            assert_eq!(open(adapter).unwrap(), device);
        }
    }
}
