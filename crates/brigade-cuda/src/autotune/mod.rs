//! A file that keeps which kernels autotuning found fastest, for later processes.

mod cache_file;
#[cfg(feature = "autotune")]
mod config;

#[cfg(feature = "autotune")]
pub(crate) use config::set_cache_file;
