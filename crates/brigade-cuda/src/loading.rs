//! Loading functions from libraries that are found at run time and never linked.

use std::ffi::{CStr, c_void};

use libloading::Library;

/// A function of the library, as type `F`; none if the library lacks it.
///
/// # Safety
/// `F` must be the type of an `extern "C"` function pointer with the signature of `name` in the library.
pub(crate) unsafe fn symbol<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: the caller vouches for the type.
    unsafe { library.get::<F>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}

/// The file that contains the code at `address`, or `fallback` if the loader does not know.
pub(crate) fn file_of(address: *const c_void, fallback: &str) -> String {
    // SAFETY: all-zero is a valid Dl_info, which dladdr only writes.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr takes any address.
    let found = unsafe { libc::dladdr(address, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return fallback.to_owned();
    }
    // SAFETY: the loader returns a string that lives as long as the library, which is never unloaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy();
    match std::fs::canonicalize(name.as_ref()) {
        Ok(path) => path.to_string_lossy().into_owned(),
        Err(_) => name.into_owned(),
    }
}

/// A C string that a library returned, or `fallback` for null.
///
/// # Safety
/// `text` must be null or a string that stays valid during this call.
pub(crate) unsafe fn text(text: *const std::ffi::c_char, fallback: &str) -> String {
    if text.is_null() {
        return fallback.to_owned();
    }
    // SAFETY: not null, and the caller vouches for the rest.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The loader's message, without the name that precedes it anyway.
pub(crate) fn reason(error: &libloading::Error, name: &str) -> String {
    let mut text = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        text = source.to_string();
    }
    text.strip_prefix(&format!("{name}: ")).unwrap_or(&text).to_owned()
}

/// Defines a struct of function pointers, with a function `load` that fills it or names the first function that is missing.
macro_rules! function_table {
    ($(#[$meta:meta])* $name:ident { $($field:ident = $symbol:literal : fn($($arg:ty),*) $(-> $ret:ty)?;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name { $(pub(crate) $field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)* }

        impl $name {
            fn load(library: &libloading::Library) -> Result<Self, &'static str> {
                Ok(Self { $(
                    // SAFETY: the types are those of the library's header.
                    $field: unsafe { $crate::loading::symbol(library, $symbol) }.ok_or($symbol)?,
                )* })
            }
        }
    };
}
pub(crate) use function_table;
