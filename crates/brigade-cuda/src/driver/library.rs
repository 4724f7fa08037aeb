//! The CUDA driver's library, found once at run time.
//!
//! Functions are looked up by name in the library that cubecl uses too, not through `cudarc::driver::sys`: its functions panic
//! where the library lacks them, some exist only if the CUDA version at build time has them, and its result type does not allow
//! for the results of a newer driver.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::OnceLock;

use cudarc::driver::sys::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUstream, CUuuid};
use libloading::Library;

use super::gpu_choice::visibility;
use crate::error::Error;
use crate::loading::{file_of, function_table, symbol, text};

/// A `CUresult`, as a number.
pub(super) type ResultCode = c_int;

pub(super) const SUCCESS: ResultCode = 0;
pub(super) const NOT_READY: ResultCode = 600;

const OLDEST: c_int = 12_000;
const CONTEXT_EVENTS: c_int = 12_050;

function_table! {
    /// Functions that every driver from 12.0 on has.
    Functions {
        device_get_count = "cuDeviceGetCount": fn(*mut c_int) -> ResultCode;
        device_get = "cuDeviceGet": fn(*mut CUdevice, c_int) -> ResultCode;
        device_get_name = "cuDeviceGetName": fn(*mut c_char, c_int, CUdevice) -> ResultCode;
        device_get_uuid = "cuDeviceGetUuid_v2": fn(*mut CUuuid, CUdevice) -> ResultCode;
        device_get_bus_id = "cuDeviceGetPCIBusId": fn(*mut c_char, c_int, CUdevice) -> ResultCode;
        device_total_memory = "cuDeviceTotalMem_v2": fn(*mut usize, CUdevice) -> ResultCode;
        device_get_attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_int, CUdevice) -> ResultCode;
        device_can_access_peer = "cuDeviceCanAccessPeer": fn(*mut c_int, CUdevice, CUdevice) -> ResultCode;
        primary_retain = "cuDevicePrimaryCtxRetain": fn(*mut CUcontext, CUdevice) -> ResultCode;
        primary_release = "cuDevicePrimaryCtxRelease_v2": fn(CUdevice) -> ResultCode;
        set_current = "cuCtxSetCurrent": fn(CUcontext) -> ResultCode;
        push_current = "cuCtxPushCurrent_v2": fn(CUcontext) -> ResultCode;
        pop_current = "cuCtxPopCurrent_v2": fn(*mut CUcontext) -> ResultCode;
        priority_range = "cuCtxGetStreamPriorityRange": fn(*mut c_int, *mut c_int) -> ResultCode;
        stream_create = "cuStreamCreateWithPriority": fn(*mut CUstream, c_uint, c_int) -> ResultCode;
        stream_destroy = "cuStreamDestroy_v2": fn(CUstream) -> ResultCode;
        stream_query = "cuStreamQuery": fn(CUstream) -> ResultCode;
        stream_wait_event = "cuStreamWaitEvent": fn(CUstream, CUevent, c_uint) -> ResultCode;
        stream_wait_value = "cuStreamWaitValue32_v2": fn(CUstream, CUdeviceptr, u32, c_uint) -> ResultCode;
        event_create = "cuEventCreate": fn(*mut CUevent, c_uint) -> ResultCode;
        event_destroy = "cuEventDestroy_v2": fn(CUevent) -> ResultCode;
        event_record = "cuEventRecord": fn(CUevent, CUstream) -> ResultCode;
        event_query = "cuEventQuery": fn(CUevent) -> ResultCode;
    }
}

function_table! {
    /// Functions that are needed to report why the others are missing.
    BasicFunctions {
        init = "cuInit": fn(c_uint) -> ResultCode;
        version = "cuDriverGetVersion": fn(*mut c_int) -> ResultCode;
        error_name = "cuGetErrorName": fn(ResultCode, *mut *const c_char) -> ResultCode;
        error_string = "cuGetErrorString": fn(ResultCode, *mut *const c_char) -> ResultCode;
    }
}

/// The driver of this process, initialised.
pub struct Driver {
    version: c_int,
    path: String,
    basics: BasicFunctions,
    pub(super) functions: Functions,
    /// From driver 12.5 on.
    pub(super) context_wait_event: Option<unsafe extern "C" fn(CUcontext, CUevent) -> ResultCode>,
}

/// The driver of this process. It is loaded once; later calls return the same result.
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
        let basics = BasicFunctions::load(library).map_err(missing("of unknown version".to_owned()))?;
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
        let functions = Functions::load(library).map_err(missing(version_name(version)))?;
        let new_enough = version >= CONTEXT_EVENTS;
        // SAFETY: the type is that of the driver's header.
        let context_wait_event = new_enough.then(|| unsafe { symbol(library, "cuCtxWaitEvent") }).flatten();
        Ok(Self { version, path, basics, functions, context_wait_event })
    }

    /// The newest CUDA version that the driver supports: 12080 for 12.8.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// The version as people write it: 12.8.
    pub fn version_name(&self) -> String {
        version_name(self.version)
    }

    /// The file of `libcuda`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether a whole context can be made to wait for an event, which drivers can from CUDA 12.5 on.
    pub fn has_context_events(&self) -> bool {
        self.context_wait_event.is_some()
    }

    pub(super) fn device(&self, index: usize) -> Result<CUdevice, Error> {
        let mut device = 0;
        let ordinal = c_int::try_from(index).unwrap_or(c_int::MAX);
        // SAFETY: writes one number.
        let code = unsafe { (self.functions.device_get)(&mut device, ordinal) };
        self.check(code, "cuDeviceGet", &format!("opening GPU {index} ({})", visibility()))?;
        Ok(device)
    }

    pub(super) fn check(&self, code: ResultCode, call: &'static str, operation: &str) -> Result<(), Error> {
        if code == SUCCESS {
            return Ok(());
        }
        let (name, text) = self.basics.describe(code);
        Err(Error::Driver { call, name, code, text, operation: operation.to_owned() })
    }
}

impl BasicFunctions {
    /// A result's name and meaning.
    fn describe(&self, code: ResultCode) -> (String, String) {
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

fn path_of(library: &Library) -> String {
    // SAFETY: only the address is used.
    let address = unsafe { symbol::<unsafe extern "C" fn(c_uint) -> ResultCode>(library, "cuInit") };
    address.map_or("libcuda".to_owned(), |address| file_of(address as *const _, "libcuda"))
}

/// What to do about a result of `cuInit`; the numbers are those of `CUresult`.
fn init_advice(code: ResultCode) -> String {
    match code {
        34 => "This is the toolkit's stub, for linking only: remove its folder from LD_LIBRARY_PATH".to_owned(),
        100 => format!(
            "No GPU is visible ({}): check whether nvidia-smi lists any; start a container with its GPUs",
            visibility()
        ),
        101 => format!("Check the list of visible GPUs ({})", visibility()),
        802 => "The GPUs wait for the fabric manager: make sure that the service nvidia-fabricmanager is running".to_owned(),
        803 => "libcuda and the kernel module have different versions: restart the host after an update of the driver; \
                in a container, remove its own libcuda from LD_LIBRARY_PATH"
            .to_owned(),
        804 => "This libcuda (a forward compatibility package) does not support this GPU: remove its folder from \
                LD_LIBRARY_PATH"
            .to_owned(),
        _ => "Check whether nvidia-smi works on this host, and what the kernel reports (dmesg)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_as_people_write_them() {
        assert_eq!(version_name(12_080), "12.8");
        assert_eq!(version_name(13_000), "13.0");
    }
}
