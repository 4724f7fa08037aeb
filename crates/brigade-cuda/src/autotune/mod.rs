//! The file that keeps which kernels autotuning chose, for later processes.

mod cache_file;
#[cfg(feature = "autotune")]
mod config;

#[cfg(feature = "autotune")]
pub(crate) use config::keep_choices;
