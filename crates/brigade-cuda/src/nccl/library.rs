//! NCCL's library, found once at run time.
//!
//! Functions are looked up by name, because `cudarc::nccl` only looks for `libnccl.so`, which NVIDIA's wheels and Debian's
//! package lack without their development files, and panics. Results are numbers: a newer NCCL may return some that
//! `ncclResult_t` has no name for.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::CUstream;
use cudarc::nccl::sys::{ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};
use libloading::Library;

use crate::error::Error;
use crate::loading::{file_of, function_table, reason, symbol, text};

/// An `ncclResult_t`, as a number.
pub(super) type ResultCode = c_int;

pub(super) const SUCCESS: ResultCode = 0;
pub(super) const IN_PROGRESS: ResultCode = 7;

/// The environment variable that names NCCL's file.
pub const NCCL_FILE: &str = "BRIGADE_NCCL";

/// 2.18 added `ncclCommSplit`. From 2.19.1 on, a communicator can be aborted by a thread other than the one that it is making
/// connections for.
const OLDEST: c_int = 21_901;

function_table! {
    /// The functions of NCCL that are used.
    Functions {
        get_unique_id = "ncclGetUniqueId": fn(*mut ncclUniqueId) -> ResultCode;
        init_rank_config = "ncclCommInitRankConfig":
            fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> ResultCode;
        split = "ncclCommSplit": fn(ncclComm_t, c_int, c_int, *mut ncclComm_t, *mut ncclConfig_t) -> ResultCode;
        count = "ncclCommCount": fn(ncclComm_t, *mut c_int) -> ResultCode;
        user_rank = "ncclCommUserRank": fn(ncclComm_t, *mut c_int) -> ResultCode;
        get_async_error = "ncclCommGetAsyncError": fn(ncclComm_t, *mut ResultCode) -> ResultCode;
        finalize = "ncclCommFinalize": fn(ncclComm_t) -> ResultCode;
        destroy = "ncclCommDestroy": fn(ncclComm_t) -> ResultCode;
        abort = "ncclCommAbort": fn(ncclComm_t) -> ResultCode;
        get_last_error = "ncclGetLastError": fn(ncclComm_t) -> *const c_char;
        get_error_string = "ncclGetErrorString": fn(ResultCode) -> *const c_char;
        group_start = "ncclGroupStart": fn() -> ResultCode;
        group_end = "ncclGroupEnd": fn() -> ResultCode;
        all_reduce = "ncclAllReduce":
            fn(*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, CUstream) -> ResultCode;
        reduce_scatter = "ncclReduceScatter":
            fn(*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, CUstream) -> ResultCode;
        all_gather = "ncclAllGather":
            fn(*const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, CUstream) -> ResultCode;
        broadcast = "ncclBroadcast":
            fn(*const c_void, *mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, CUstream) -> ResultCode;
        send = "ncclSend": fn(*const c_void, usize, ncclDataType_t, c_int, ncclComm_t, CUstream) -> ResultCode;
        recv = "ncclRecv": fn(*mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, CUstream) -> ResultCode;
    }
}

/// NCCL, loaded.
pub struct Nccl {
    version: c_int,
    path: String,
    pub(super) functions: Functions,
}

/// NCCL: the file that `BRIGADE_NCCL` names, or else what the loader finds as `libnccl.so.2` or `libnccl.so`. It is loaded once;
/// later calls return the same result.
///
/// # Errors
/// [`Error::NoNccl`], [`Error::NcclTooOld`], [`Error::MissingSymbol`].
pub fn nccl() -> Result<&'static Nccl, Error> {
    static NCCL: OnceLock<Result<Nccl, Error>> = OnceLock::new();
    NCCL.get_or_init(Nccl::load).as_ref().map_err(Clone::clone)
}

impl Nccl {
    fn load() -> Result<Self, Error> {
        // It is never unloaded, since its threads may outlive every communicator.
        let library: &'static Library = Box::leak(Box::new(open()?));
        let missing = |symbol: &str, version: String, path: &str| Error::MissingSymbol {
            library: "NCCL".to_owned(),
            version,
            path: path.to_owned(),
            symbol: symbol.to_owned(),
            needed: version_name(OLDEST),
        };
        // SAFETY: the type is that of NCCL's header.
        let get_version: Option<unsafe extern "C" fn(*mut c_int) -> ResultCode> =
            unsafe { symbol(library, "ncclGetVersion") };
        let Some(get_version) = get_version else {
            return Err(missing("ncclGetVersion", "of unknown version".to_owned(), "the loaded file"));
        };
        let path = file_of(get_version as *const c_void, "libnccl");
        let mut version = 0;
        // SAFETY: writes one number.
        unsafe { get_version(&mut version) };
        let found = version_name(version);
        if version < OLDEST {
            return Err(Error::NcclTooOld { path, found, needed: version_name(OLDEST) });
        }
        match Functions::load(library) {
            Ok(functions) => Ok(Self { version, path, functions }),
            Err(symbol) => Err(missing(symbol, found, &path)),
        }
    }

    /// The version as `ncclGetVersion` returns it: 22703 for 2.27.3.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// The version as people write it: 2.27.3.
    pub fn version_name(&self) -> String {
        version_name(self.version)
    }

    /// The file that was loaded.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The name and the meaning of a result.
    pub(super) fn describe(&self, code: ResultCode) -> (String, String) {
        let name = match code {
            1 => "ncclUnhandledCudaError",
            2 => "ncclSystemError",
            3 => "ncclInternalError",
            4 => "ncclInvalidArgument",
            5 => "ncclInvalidUsage",
            6 => "ncclRemoteError",
            7 => "ncclInProgress",
            8 => "ncclTimeout",
            _ => return (format!("ncclResult {code}"), "an unknown result".to_owned()),
        };
        // SAFETY: returns a static string.
        let meaning = unsafe { text((self.functions.get_error_string)(code), "no description") };
        (name.to_owned(), meaning)
    }
}

fn open() -> Result<Library, Error> {
    if let Some(file) = std::env::var_os(NCCL_FILE) {
        // SAFETY: the user vouches for the file; its initialisers are NCCL's.
        return unsafe { Library::new(&file) }.map_err(|error| Error::NoNccl {
            found: format!(
                "{NCCL_FILE}={} cannot be loaded: {}",
                file.to_string_lossy(),
                reason(&error, &file.to_string_lossy())
            ),
            advice: "Set it to the file of NCCL (libnccl.so.2), or unset it".to_owned(),
        });
    }
    let mut reasons = Vec::new();
    for name in ["libnccl.so.2", "libnccl.so"] {
        // SAFETY: as above, for the library that the system's loader finds.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok(library),
            Err(error) => reasons.push(format!("{name}: {}", reason(&error, name))),
        }
    }
    Err(Error::NoNccl {
        found: format!("found no NCCL ({})", reasons.join("; ")),
        advice: format!(
            "Install it (the package libnccl2, or pip install nvidia-nccl-cu12) and set {NCCL_FILE} to its file, or add its \
             folder to LD_LIBRARY_PATH. Python packages install it in site-packages/nvidia/nccl/lib, where Brigade does \
             not look"
        ),
    })
}

/// `22703` as `2.27.3`; up to 2.8 the code had one digit fewer for the minor version.
fn version_name(code: c_int) -> String {
    let minor_unit = 100;
    let major_unit = if code < 10_000 { 1_000 } else { 10_000 };
    format!("{}.{}.{}", code / major_unit, code % major_unit / minor_unit, code % minor_unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_as_people_write_them() {
        assert_eq!(version_name(22_703), "2.27.3");
        assert_eq!(version_name(21_005), "2.10.5");
        assert_eq!(version_name(2_804), "2.8.4");
    }
}
