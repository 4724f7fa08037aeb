//! The GPUs that the driver knows.

use std::ffi::{c_char, c_int};

use cudarc::driver::sys::CUuuid;

use super::library::{Driver, Functions};
use crate::error::Error;
use crate::loading::text;

const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
const COMPUTE_CAPABILITY_MINOR: c_int = 76;

/// One GPU that the process sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its index among the visible ones, from 0.
    pub index: usize,
    /// Its model, as in `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Its UUID as nvidia-smi writes it (`GPU-…`), also for a part of a GPU (MIG).
    pub uuid: String,
    /// Its address on the PCI bus, as in `0000:3b:00.0`.
    pub pci_bus_id: String,
    /// Its memory in bytes.
    pub total_memory: usize,
    /// Its compute capability, as in (9, 0).
    pub compute_capability: (u32, u32),
}

impl Driver {
    /// How many GPUs the process sees.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn gpu_count(&self) -> Result<usize, Error> {
        let mut count = 0;
        // SAFETY: writes one number.
        let code = unsafe { (self.functions.device_get_count)(&mut count) };
        self.check(code, "cuDeviceGetCount", "counting GPUs")?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// All GPUs that the process sees, in the order of their indices.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn gpus(&self) -> Result<Vec<Gpu>, Error> {
        (0..self.gpu_count()?).map(|index| self.gpu(index)).collect()
    }

    fn gpu(&self, index: usize) -> Result<Gpu, Error> {
        let operation = format!("querying GPU {index}");
        let check = |code, call| self.check(code, call, &operation);
        let device = self.device(index)?;
        let (mut name, mut bus_id) = ([0 as c_char; 256], [0 as c_char; 32]);
        let mut uuid = CUuuid { bytes: [0; 16] };
        let mut total_memory = 0;
        let (mut major, mut minor) = (0, 0);
        let Functions {
            device_get_name,
            device_get_uuid,
            device_get_bus_id,
            device_total_memory,
            device_get_attribute,
            ..
        } = self.functions;
        // SAFETY: every pointer is to a local of the type and length that the call is given. Strings get one byte less, so that
        // they end with a zero.
        unsafe {
            check(device_get_name(name.as_mut_ptr(), 255, device), "cuDeviceGetName")?;
            check(device_get_uuid(&mut uuid, device), "cuDeviceGetUuid_v2")?;
            check(device_get_bus_id(bus_id.as_mut_ptr(), 31, device), "cuDeviceGetPCIBusId")?;
            check(device_total_memory(&mut total_memory, device), "cuDeviceTotalMem_v2")?;
            let (of_major, of_minor) = (COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR);
            check(device_get_attribute(&mut major, of_major, device), "cuDeviceGetAttribute")?;
            check(device_get_attribute(&mut minor, of_minor, device), "cuDeviceGetAttribute")?;
            Ok(Gpu {
                index,
                name: text(name.as_ptr(), ""),
                uuid: uuid_name(uuid),
                pci_bus_id: text(bus_id.as_ptr(), ""),
                total_memory,
                compute_capability: (major.unsigned_abs(), minor.unsigned_abs()),
            })
        }
    }

    /// Whether GPU `a` can read and write the memory of GPU `b` directly, by NVLink or PCIe.
    ///
    /// # Errors
    /// [`Error::Driver`], also if there is no such GPU.
    pub fn can_access_peer(&self, a: usize, b: usize) -> Result<bool, Error> {
        let (from, to) = (self.device(a)?, self.device(b)?);
        let mut can = 0;
        // SAFETY: writes one number.
        let code = unsafe { (self.functions.device_can_access_peer)(&mut can, from, to) };
        self.check(code, "cuDeviceCanAccessPeer", &format!("checking access from GPU {a} to GPU {b}"))?;
        Ok(can != 0)
    }
}

/// As nvidia-smi writes it.
fn uuid_name(uuid: CUuuid) -> String {
    let hex: String = uuid.bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_written_as_nvidia_smi_writes_them() {
        let mut uuid = CUuuid { bytes: [0; 16] };
        uuid.bytes[0] = -1;
        uuid.bytes[15] = 7;
        assert_eq!(uuid_name(uuid), "GPU-ff000000-0000-0000-0000-000000000007");
    }
}
