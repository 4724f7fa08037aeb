//! Choices of kernels that outlive the process.

use cubecl_runtime::config::cache::CacheConfig;
use cubecl_runtime::config::environment::EnvironmentConfig;
use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};

use super::cache_file::{Place, place};
use crate::Gpu;

/// Lets CubeCL keep which kernels were fastest on this GPU, and find it again. To be called before the GPU is first used: the
/// first call of a process holds. Where the user's own configuration of CubeCL (`cubecl.toml`, `CUBECL_ENVIRONMENT`) names a
/// place, that is it. A file that cannot be read or written costs nothing but timing the kernels again.
pub(super) fn keep_choices(gpu: &Gpu) {
    let uname = rustix::system::uname();
    let Some(Place { folder, name }) =
        place(|name| std::env::var_os(name), &uname.nodename().to_string_lossy(), gpu)
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
