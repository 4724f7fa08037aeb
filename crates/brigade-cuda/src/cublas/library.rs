//! cuBLAS's library, found once at run time.

use std::ffi::{OsString, c_int, c_longlong, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::CUstream;
use libloading::Library;

use super::codes::Status;
use super::lt::Lt;
use crate::error::Error;
use crate::loading::{file_of, function_table, reason, symbol};

/// The environment variable that names cuBLAS's file, or is `off`.
pub const CUBLAS_FILE: &str = "BRIGADE_CUBLAS";

/// What turns cuBLAS off.
const OFF: &str = "off";

/// What the libraries of the versions are called whose functions and numbers are those that are used here.
const NAMES: [&str; 3] = ["libcublas.so.13", "libcublas.so.12", "libcublas.so"];

function_table! {
    /// The functions of cuBLAS that are used.
    Functions {
        create = "cublasCreate_v2": fn(*mut *mut c_void) -> Status;
        destroy = "cublasDestroy_v2": fn(*mut c_void) -> Status;
        set_stream = "cublasSetStream_v2": fn(*mut c_void, CUstream) -> Status;
        get_property = "cublasGetProperty": fn(c_int, *mut c_int) -> Status;
        gemm = "cublasGemmStridedBatchedEx":
            fn(*mut c_void, c_int, c_int, c_int, c_int, c_int, *const c_void,
                *const c_void, c_int, c_int, c_longlong, *const c_void, c_int, c_int, c_longlong, *const c_void,
                *mut c_void, c_int, c_int, c_longlong, c_int, c_int, c_int) -> Status;
    }
}

/// cuBLAS, loaded.
pub struct Cublas {
    version: [c_int; 3],
    path: String,
    pub(super) functions: Functions,
    /// Products with epilogues, if they are found.
    pub(crate) lt: Option<Lt>,
}

/// cuBLAS: the file that `BRIGADE_CUBLAS` names, or else what the loader finds under its usual names; none if that is `off`. It is loaded once; later calls return the same
/// result.
///
/// # Errors
/// [`Error::NoCublas`].
pub fn cublas() -> Result<&'static Cublas, Error> {
    static CUBLAS: OnceLock<Result<Cublas, Error>> = OnceLock::new();
    CUBLAS.get_or_init(Cublas::load).as_ref().map_err(Clone::clone)
}

impl Cublas {
    fn load() -> Result<Self, Error> {
        // It is never unloaded: handles of it live as long as the process.
        let library: &'static Library = Box::leak(Box::new(open()?));
        let missing = |symbol: &str| Error::NoCublas { found: format!("cuBLAS has no function {symbol}") };
        let functions = Functions::load(library).map_err(missing)?;
        // SAFETY: only the address is used.
        let address: Option<*const c_void> = unsafe { symbol(library, "cublasCreate_v2") };
        let path = address.map_or_else(|| "libcublas".to_owned(), |address| file_of(address, "libcublas"));
        let mut version = [0; 3];
        for (property, value) in (0..).zip(&mut version) {
            // SAFETY: writes one number.
            unsafe { (functions.get_property)(property, value) };
        }
        Ok(Self { version, path, functions, lt: Lt::load(version[0]) })
    }

    /// The version as people write it: 13.1.0.
    pub fn version_name(&self) -> String {
        self.version.map(|number| number.to_string()).join(".")
    }

    /// The file that was loaded.
    pub fn path(&self) -> &str {
        &self.path
    }
}

/// What the user asks for.
fn given() -> Option<OsString> {
    std::env::var_os(CUBLAS_FILE).filter(|file| !file.is_empty())
}

/// Whether the user has named a file of cuBLAS.
pub(crate) fn is_cublas_named() -> bool {
    given().is_some_and(|file| file != OFF)
}

fn open() -> Result<Library, Error> {
    if let Some(file) = given() {
        if file == OFF {
            return Err(Error::NoCublas { found: format!("{CUBLAS_FILE}=off") });
        }
        // SAFETY: the user vouches for the file; its initialisers are cuBLAS's.
        return unsafe { Library::new(&file) }.map_err(|error| Error::NoCublas {
            found: format!(
                "{CUBLAS_FILE}={} cannot be loaded: {}",
                file.to_string_lossy(),
                reason(&error, &file.to_string_lossy())
            ),
        });
    }
    let mut reasons = Vec::new();
    for name in NAMES {
        // SAFETY: as above, for the library that the system's loader finds.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok(library),
            Err(error) => reasons.push(format!("{name}: {}", reason(&error, name))),
        }
    }
    Err(Error::NoCublas { found: format!("found no cuBLAS ({})", reasons.join("; ")) })
}
