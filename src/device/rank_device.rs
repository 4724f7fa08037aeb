//! The backends: which device a rank computes on, and by which process groups its tensors travel.

use std::ffi::OsString;

use brigade_comm::Group;
use brigade_core::{Groups, Mesh};
use brigade_launch::RankInfo;
use brigade_report::DeviceMemory;
use burn::tensor::{Device, FloatDType};

use crate::settings::{Backend, CollectivesBackend, SettingError, Settings};
use crate::world::HostEngine;

/// Gives each stream a hardware queue of its own, so that NCCL's operations wait for no others. CUDA reads it when it is
/// initialised.
#[cfg(feature = "cuda")]
const QUEUES: (&str, &str) = ("CUDA_DEVICE_MAX_CONNECTIONS", "32");

/// If set, even a single rank uses NCCL, to measure its overhead.
#[cfg(feature = "cuda")]
const NCCL_ALONE: &str = "BRIGADE_NCCL_ALONE";

/// Makes groups along the axes of a mesh over a world, through host memory.
pub(crate) type MakesHostGroups = fn(&Group, Mesh) -> brigade_comm::Result<Groups>;

/// The device of a rank.
pub(crate) struct RankDevice {
    pub device: Device,
    /// Its model, if known.
    pub name: Option<String>,
    kind: Kind,
    /// What carries its tensors where they go through host memory.
    engine: HostEngine,
}

enum Kind {
    Cpu,
    #[cfg(feature = "cuda")]
    Cuda(brigade_cuda::RankGpu),
    #[cfg(feature = "wgpu")]
    Wgpu,
}

impl RankDevice {
    /// The CPU; dry runs use it on every backend.
    pub(crate) fn cpu() -> Self {
        Self { device: brigade_cpu::device(), name: None, kind: Kind::Cpu, engine: HostEngine::Streams }
    }

    /// Opens the device of a rank and checks that it supports the number types of the settings.
    ///
    /// # Errors
    /// If there is no device for the rank; a [`SettingError`] if it lacks a number type.
    pub(crate) fn open(settings: &Settings, info: &RankInfo, engine: HostEngine) -> anyhow::Result<Self> {
        let device = Self { engine, ..Self::of(settings, info)? };
        let name = device.name.as_deref().unwrap_or("the CPU");
        settings.compute.check_types(name, || device.device.supports_dtype(FloatDType::BF16))?;
        Ok(device)
    }

    #[cfg_attr(not(any(feature = "cuda", feature = "wgpu")), expect(unused_variables))]
    fn of(settings: &Settings, info: &RankInfo) -> anyhow::Result<Self> {
        match settings.compute.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda => {
                let gpu = brigade_cuda::RankGpu::open(
                    info.local_rank,
                    info.local_world_size,
                    share_gpus(settings),
                )?;
                let (device, name) = (gpu.device(), Some(gpu.gpu().name.clone()));
                Ok(Self { device, name, kind: Kind::Cuda(gpu), engine: HostEngine::Streams })
            }
            #[cfg(feature = "wgpu")]
            Backend::Wgpu => {
                let (device, adapter) = brigade_wgpu::device(info.local_rank)?;
                let name = Some(adapter.name.clone());
                Ok(Self { device, name, kind: Kind::Wgpu, engine: HostEngine::Streams })
            }
            _ => Ok(Self::cpu()),
        }
    }

    /// This rank's groups along the axes of the mesh; all ranks call it together.
    ///
    /// # Errors
    /// If they cannot be connected, or a rank failed.
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables))]
    pub(crate) fn groups(&self, world: &Group, mesh: Mesh, settings: &Settings) -> anyhow::Result<Groups> {
        if !matches!(self.kind, Kind::Cpu) {
            // The first step compiles and tunes kernels.
            world.use_init_timeout();
        }
        match &self.kind {
            Kind::Cpu => Ok(brigade_cpu::groups(&self.engine.group(world)?, mesh)?),
            #[cfg(feature = "cuda")]
            Kind::Cuda(gpu) if !share_gpus(settings) => {
                let options = brigade_cuda::NcclOptions {
                    synchronous: settings.comm.synchronous,
                    even_alone: std::env::var_os(NCCL_ALONE).is_some(),
                };
                brigade_cuda::groups(world, mesh, gpu, options).map_err(|error| anyhow::anyhow!(error))
            }
            #[cfg(feature = "cuda")]
            Kind::Cuda(_) => Ok(brigade_cuda::host_groups(&self.engine.group(world)?, mesh)?),
            #[cfg(feature = "wgpu")]
            Kind::Wgpu => Ok(brigade_wgpu::groups(&self.engine.group(world)?, mesh)?),
        }
    }

    /// Groups along the axes of a mesh over another world than the rank's own, through host memory; all its ranks call it together.
    ///
    /// # Errors
    /// If they cannot be connected, or a rank failed.
    pub(crate) fn host_groups(&self, world: &Group, mesh: Mesh) -> brigade_comm::Result<Groups> {
        self.makes_host_groups()(world, mesh)
    }

    /// What makes such [groups](Self::host_groups), for another thread.
    pub(crate) fn makes_host_groups(&self) -> MakesHostGroups {
        match &self.kind {
            Kind::Cpu => |world, mesh| brigade_cpu::groups(world, mesh),
            #[cfg(feature = "cuda")]
            Kind::Cuda(_) => |world, mesh| brigade_cuda::host_groups(world, mesh),
            #[cfg(feature = "wgpu")]
            Kind::Wgpu => |world, mesh| brigade_wgpu::groups(world, mesh),
        }
    }

    /// The device memory that this process's tensors use now; `None` on the CPU, and if the device does not report it.
    pub(crate) fn memory(&self) -> Option<DeviceMemory> {
        let total = match &self.kind {
            #[cfg(feature = "cuda")]
            Kind::Cuda(gpu) => Some(gpu.gpu().total_memory as u64),
            _ => None,
        };
        let pools = self.device.memory_pool_usage()?;
        let (in_use, reserved) = (pools.bytes_in_use, pools.bytes_reserved);
        Some(DeviceMemory { in_use, reserved, reserved_peak: reserved, total })
    }
}

/// Whether several ranks may share a GPU.
#[cfg(feature = "cuda")]
fn share_gpus(settings: &Settings) -> bool {
    settings.collectives() != CollectivesBackend::Nccl
}

/// How many ranks a node can run: as many as it has cores or GPUs.
///
/// # Errors
/// If the backend finds no device.
pub fn most_ranks_per_node(backend: Backend) -> anyhow::Result<usize> {
    match backend {
        #[cfg(feature = "cuda")]
        Backend::Cuda => Ok(brigade_cuda::gpu_count()?.max(1)),
        #[cfg(feature = "wgpu")]
        Backend::Wgpu => Ok(brigade_wgpu::adapter_count().max(1)),
        _ => Ok(std::thread::available_parallelism().map_or(1, usize::from)),
    }
}

/// Checks, before any rank starts, that this node can run `ranks` ranks of a world.
///
/// # Errors
/// If a driver, a library or a device is missing; a [`SettingError`] if it is not Brigade that has to start the ranks.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables))]
pub(crate) fn check_node(settings: &Settings, ranks: usize, world: usize) -> anyhow::Result<()> {
    if settings.collectives() == CollectivesBackend::Mpi {
        let allowed = format!(
            "MPI's own launcher starts the ranks, as in `mpirun -n {world} brigade train …` or `srun`; where Brigade starts them it \
             must be host or auto"
        );
        return Err(SettingError::new("comm.collectives (--collectives)", "mpi", allowed).into());
    }
    match settings.compute.backend {
        #[cfg(feature = "cuda")]
        Backend::Cuda => Ok(brigade_cuda::check_gpus(ranks, world, share_gpus(settings))?),
        #[cfg(feature = "wgpu")]
        Backend::Wgpu if brigade_wgpu::adapters().is_empty() => Err(brigade_wgpu::Error::NoAdapter.into()),
        _ => Ok(()),
    }
}

/// Variables that the launcher adds to the ranks' environment unless they are set already.
pub(crate) fn rank_environment(backend: Backend) -> Vec<(OsString, OsString)> {
    let variables: &[(&str, &str)] = match backend {
        #[cfg(feature = "cuda")]
        Backend::Cuda => &[QUEUES],
        #[cfg(feature = "wgpu")]
        Backend::Wgpu => &[],
        _ => &[brigade_cpu::HUGE_PAGES],
    };
    let unset = variables.iter().filter(|(name, _)| std::env::var_os(name).is_none());
    unset.map(|(name, value)| (name.into(), value.into())).collect()
}

/// Configures the process of a rank before its backend is used: its allocator, and the variables that [`rank_environment`]
/// sets only for ranks of Brigade's own launcher, if it is not too late for them. It does nothing in a program that has started
/// threads; [`environment_advice`] tells the user where that matters.
pub(crate) fn prepare_process(backend: Backend) {
    if !is_only_thread() {
        return;
    }
    match backend {
        #[cfg(feature = "cuda")]
        Backend::Cuda if std::env::var_os(QUEUES.0).is_none() => {
            // SAFETY: no other thread is there that could read the environment meanwhile.
            unsafe { std::env::set_var(QUEUES.0, QUEUES.1) };
        }
        #[cfg(feature = "cuda")]
        Backend::Cuda => {}
        #[cfg(feature = "wgpu")]
        Backend::Wgpu => {}
        // SAFETY: no other thread is there.
        _ => unsafe { brigade_cpu::keep_heap() },
    }
}

/// A note on variables that should have been set before the program started.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables))]
pub(crate) fn environment_advice(settings: &Settings) -> Option<String> {
    #[cfg(feature = "cuda")]
    if settings.collectives() == CollectivesBackend::Nccl && std::env::var_os(QUEUES.0).is_none() {
        let (name, value) = QUEUES;
        return Some(format!(
            "note: {name} is not set, and this program had threads before it could set it; start it with {name}={value}, so \
             that communication does not wait for computing"
        ));
    }
    None
}

/// Whether the caller is the process's only thread; `false` if that is unknown because there is no `/proc`.
fn is_only_thread() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::ErrorKind;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_thread_knows_whether_it_is_alone() {
        // The test's own thread is beside the one that waits for it; a forked process has one.
        assert!(!is_only_thread());
        let mut child = Command::new("true");
        let alone = || if is_only_thread() { Ok(()) } else { Err(ErrorKind::ResourceBusy.into()) };
        // SAFETY: between fork and exec it only lists a folder; glibc's memory may be used there.
        unsafe { child.pre_exec(alone) };
        assert!(child.status().unwrap().success());
    }
}
