//! Autotuning results that outlive the process.

use cubecl_runtime::config::cache::CacheConfig;
use cubecl_runtime::config::environment::EnvironmentConfig;
use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};

use super::cache_file::{CacheFile, cache_file};
use crate::driver::Gpu;

/// Has CubeCL store which kernels were fastest on this GPU, and load them in later processes. To be called before the GPU is first
/// used; only a process's first call has an effect. If the user's own configuration of CubeCL (`cubecl.toml`,
/// `CUBECL_ENVIRONMENT`) names a file, that one is used. If the file cannot be read or written, kernels are merely timed again.
pub(crate) fn set_cache_file(gpu: &Gpu) {
    let uname = rustix::system::uname();
    let Some(CacheFile { folder, name }) =
        cache_file(|name| std::env::var_os(name), &uname.nodename().to_string_lossy(), gpu)
    else {
        return;
    };
    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    let environment = &mut config.environment;
    if environment.name == EnvironmentConfig::default().name
        && matches!(environment.path, CacheConfig::Target)
    {
        (environment.name, environment.path) = (name, CacheConfig::Directory(folder));
    }
    CubeClRuntimeConfig::try_set(config);
}
