//! The CUDA driver: found once, and what it says about GPUs.
//!
//! Functions are taken by name from the library that cubecl uses too, and not through `cudarc::driver::sys`. Its
//! functions panic where the library lacks them, some exist only if the CUDA version at build time has them, and its
//! type of results does not allow for results of a newer driver.

mod gpu_choice;
mod stream;

pub(crate) use gpu_choice::visibility;
pub use gpu_choice::{enough_for, gpu_for, shared};
pub use stream::{Context, Event, Stream};

use std::ffi::{c_char, c_int, c_uint};
use std::sync::OnceLock;

use cudarc::driver::sys::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUstream, CUuuid};
use libloading::Library;

use crate::error::Error;
use crate::library::{file_of, symbol, table, text};

/// A `CUresult`, as a number.
pub(crate) type Code = c_int;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const NOT_READY: Code = 600;

const OLDEST: c_int = 12_000;
const CONTEXT_EVENTS: c_int = 12_050;
const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
const COMPUTE_CAPABILITY_MINOR: c_int = 76;

table! {
    /// The driver's functions that every version from 12.0 on has.
    Calls {
        device_get_count = "cuDeviceGetCount": fn(*mut c_int) -> Code;
        device_get = "cuDeviceGet": fn(*mut CUdevice, c_int) -> Code;
        device_get_name = "cuDeviceGetName": fn(*mut c_char, c_int, CUdevice) -> Code;
        device_get_uuid = "cuDeviceGetUuid_v2": fn(*mut CUuuid, CUdevice) -> Code;
        device_get_bus_id = "cuDeviceGetPCIBusId": fn(*mut c_char, c_int, CUdevice) -> Code;
        device_total_memory = "cuDeviceTotalMem_v2": fn(*mut usize, CUdevice) -> Code;
        device_get_attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_int, CUdevice) -> Code;
        device_can_access_peer = "cuDeviceCanAccessPeer": fn(*mut c_int, CUdevice, CUdevice) -> Code;
        primary_retain = "cuDevicePrimaryCtxRetain": fn(*mut CUcontext, CUdevice) -> Code;
        primary_release = "cuDevicePrimaryCtxRelease_v2": fn(CUdevice) -> Code;
        set_current = "cuCtxSetCurrent": fn(CUcontext) -> Code;
        push_current = "cuCtxPushCurrent_v2": fn(CUcontext) -> Code;
        pop_current = "cuCtxPopCurrent_v2": fn(*mut CUcontext) -> Code;
        priority_range = "cuCtxGetStreamPriorityRange": fn(*mut c_int, *mut c_int) -> Code;
        stream_create = "cuStreamCreateWithPriority": fn(*mut CUstream, c_uint, c_int) -> Code;
        stream_destroy = "cuStreamDestroy_v2": fn(CUstream) -> Code;
        stream_query = "cuStreamQuery": fn(CUstream) -> Code;
        stream_wait_event = "cuStreamWaitEvent": fn(CUstream, CUevent, c_uint) -> Code;
        stream_wait_value = "cuStreamWaitValue32_v2": fn(CUstream, CUdeviceptr, u32, c_uint) -> Code;
        event_create = "cuEventCreate": fn(*mut CUevent, c_uint) -> Code;
        event_destroy = "cuEventDestroy_v2": fn(CUevent) -> Code;
        event_record = "cuEventRecord": fn(CUevent, CUstream) -> Code;
        event_query = "cuEventQuery": fn(CUevent) -> Code;
    }
}

table! {
    /// The functions that are needed to say why the others are not.
    Basics {
        init = "cuInit": fn(c_uint) -> Code;
        version = "cuDriverGetVersion": fn(*mut c_int) -> Code;
        error_name = "cuGetErrorName": fn(Code, *mut *const c_char) -> Code;
        error_string = "cuGetErrorString": fn(Code, *mut *const c_char) -> Code;
    }
}

/// The driver of this process, initialised.
pub struct Driver {
    version: c_int,
    path: String,
    basics: Basics,
    pub(crate) calls: Calls,
    /// From driver 12.5 on.
    pub(crate) context_wait_event: Option<unsafe extern "C" fn(CUcontext, CUevent) -> Code>,
}

/// One GPU that the process sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its place among the visible ones, from 0.
    pub index: usize,
    /// Its model, as in `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// What identifies it on its host, as nvidia-smi writes it (`GPU-…`), also for a part of a GPU (MIG).
    pub uuid: String,
    /// Its place on the PCI bus, as in `0000:3b:00.0`.
    pub pci_bus_id: String,
    /// Its memory in bytes.
    pub total_memory: usize,
    /// Its compute capability, as in (9, 0).
    pub compute_capability: (u32, u32),
}

/// The driver of this process. It is looked for once; later calls give the same answer.
///
/// # Errors
/// [`Error::NoDriver`], [`Error::DriverTooOld`], [`Error::DriverInit`], [`Error::MissingSymbol`].
pub fn driver() -> Result<&'static Driver, Error> {
    static DRIVER: OnceLock<Result<Driver, Error>> = OnceLock::new();
    DRIVER.get_or_init(Driver::load).as_ref().map_err(Clone::clone)
}

impl Driver {
    fn load() -> Result<Self, Error> {
        // SAFETY: looks for the library by its names; its initialisers are the driver's own.
        if !unsafe { cudarc::driver::sys::is_culib_present() } {
            return Err(Error::NoDriver);
        }
        // SAFETY: as above; it panics only where the library is absent.
        let library = unsafe { cudarc::driver::sys::culib() };
        let path = path_of(library);
        let missing = |version: String| {
            let path = path.clone();
            move |symbol: &str| Error::MissingSymbol {
                library: "the NVIDIA driver".to_owned(),
                version,
                path,
                symbol: symbol.to_owned(),
                needed: version_name(OLDEST),
            }
        };
        let basics = Basics::load(library).map_err(missing("of unknown version".to_owned()))?;
        let mut version = 0;
        // SAFETY: writes one number, and may be called before cuInit.
        unsafe { (basics.version)(&mut version) };
        if (1..OLDEST).contains(&version) {
            return Err(Error::DriverTooOld {
                path,
                found: version_name(version),
                needed: version_name(OLDEST),
            });
        }
        // SAFETY: takes no pointers.
        let code = unsafe { (basics.init)(0) };
        if code != SUCCESS {
            let (name, text) = basics.describe(code);
            return Err(Error::DriverInit { path, name, code, text, advice: init_advice(code) });
        }
        let calls = Calls::load(library).map_err(missing(version_name(version)))?;
        let new_enough = version >= CONTEXT_EVENTS;
        // SAFETY: the type is that of the driver's header.
        let context_wait_event = new_enough.then(|| unsafe { symbol(library, "cuCtxWaitEvent") }).flatten();
        Ok(Self { version, path, basics, calls, context_wait_event })
    }

    /// The newest CUDA version that the driver supports, as in 12080 for 12.8.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// The same as people write it.
    pub fn version_name(&self) -> String {
        version_name(self.version)
    }

    /// The file of `libcuda`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether all work of a context can be made to wait for an event: from CUDA 12.5 on.
    pub fn has_context_events(&self) -> bool {
        self.context_wait_event.is_some()
    }

    /// How many GPUs the process sees.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn gpu_count(&self) -> Result<usize, Error> {
        let mut count = 0;
        // SAFETY: writes one number.
        let code = unsafe { (self.calls.device_get_count)(&mut count) };
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
        let operation = format!("looking at GPU {index}");
        let check = |code, call| self.check(code, call, &operation);
        let device = self.device(index)?;
        let (mut name, mut bus_id) = ([0 as c_char; 256], [0 as c_char; 32]);
        let mut uuid = CUuuid { bytes: [0; 16] };
        let mut total_memory = 0;
        let (mut major, mut minor) = (0, 0);
        let Calls {
            device_get_name,
            device_get_uuid,
            device_get_bus_id,
            device_total_memory,
            device_get_attribute,
            ..
        } = self.calls;
        // SAFETY: every pointer is to a local of the type and the length that the call is told. One byte less
        // is told where a string is written, so that it ends.
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
        let code = unsafe { (self.calls.device_can_access_peer)(&mut can, from, to) };
        self.check(code, "cuDeviceCanAccessPeer", &format!("looking from GPU {a} to GPU {b}"))?;
        Ok(can != 0)
    }

    pub(crate) fn device(&self, index: usize) -> Result<CUdevice, Error> {
        let mut device = 0;
        let ordinal = c_int::try_from(index).unwrap_or(c_int::MAX);
        // SAFETY: writes one number.
        let code = unsafe { (self.calls.device_get)(&mut device, ordinal) };
        self.check(code, "cuDeviceGet", &format!("opening GPU {index} ({})", visibility()))?;
        Ok(device)
    }

    pub(crate) fn check(&self, code: Code, call: &'static str, operation: &str) -> Result<(), Error> {
        if code == SUCCESS {
            return Ok(());
        }
        let (name, text) = self.basics.describe(code);
        Err(Error::Driver { call, name, code, text, operation: operation.to_owned() })
    }
}

impl Basics {
    /// A result's name and meaning.
    fn describe(&self, code: Code) -> (String, String) {
        let (mut name, mut meaning) = (std::ptr::null(), std::ptr::null());
        // SAFETY: both write a pointer to a static string, or null for a number that they do not know.
        unsafe {
            (self.error_name)(code, &mut name);
            (self.error_string)(code, &mut meaning);
            (text(name, "an unknown CUresult"), text(meaning, "no description"))
        }
    }
}

/// `12080` as `12.8`.
fn version_name(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// As nvidia-smi writes it.
fn uuid_name(uuid: CUuuid) -> String {
    let hex: String = uuid.bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn path_of(library: &Library) -> String {
    // SAFETY: only the address is used.
    let address = unsafe { symbol::<unsafe extern "C" fn(c_uint) -> Code>(library, "cuInit") };
    address.map_or("libcuda".to_owned(), |address| file_of(address as *const _, "libcuda"))
}

/// What to do about a result of `cuInit`; the numbers are those of `CUresult`.
fn init_advice(code: Code) -> String {
    match code {
        34 => "This is the toolkit's stub, for linking only: take its folder off LD_LIBRARY_PATH".to_owned(),
        100 => format!(
            "No GPU is visible ({}): see whether nvidia-smi lists any; in a container, start it with its GPUs",
            visibility()
        ),
        101 => format!("Look at the list of visible GPUs ({})", visibility()),
        802 => "The GPUs wait for the fabric manager: see that the service nvidia-fabricmanager runs".to_owned(),
        803 => "libcuda and the kernel module are of different versions: restart the host after an update of the \
                driver; in a container, take its own libcuda off LD_LIBRARY_PATH"
            .to_owned(),
        804 => "This libcuda (a forward compatibility package) does not support this GPU: take its folder off \
                LD_LIBRARY_PATH"
            .to_owned(),
        _ => "See whether nvidia-smi works on this host, and what the kernel says (dmesg)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_uuids_are_written_as_people_write_them() {
        assert_eq!(version_name(12_080), "12.8");
        assert_eq!(version_name(13_000), "13.0");
        let mut uuid = CUuuid { bytes: [0; 16] };
        uuid.bytes[0] = -1;
        uuid.bytes[15] = 7;
        assert_eq!(uuid_name(uuid), "GPU-ff000000-0000-0000-0000-000000000007");
    }
}
