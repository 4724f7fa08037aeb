//! The backends that this build has and whose device is there.

use std::thread;
use std::time::Duration;

use brigade::comm::{Group, Timeouts, threads};
use brigade::core::{Groups, Mesh};
use burn::tensor::Device;

/// Kernels are compiled when they are first used, all ranks' on one thread.
const PATIENCE: Duration = Duration::from_secs(100);

/// A backend as a rank sees it.
pub struct Backend {
    pub name: &'static str,
    /// Whether ranks are summed in the order of one process, as the host does.
    pub has_exact_sums: bool,
    /// The rank's device, and its groups.
    open: fn(&Group, Mesh) -> (Device, Groups),
}

/// All that are there. One that this build has and the machine has not is left out, and said so; with the variable
/// `BRIGADE_REQUIRE_CUDA` or `BRIGADE_REQUIRE_WGPU` set to 1, that fails.
pub fn backends() -> Vec<Backend> {
    let mut backends = Vec::new();
    #[cfg(feature = "wgpu")]
    if is_there("wgpu", "BRIGADE_REQUIRE_WGPU", !brigade_wgpu::adapters().is_empty()) {
        backends.push(Backend { name: "wgpu", has_exact_sums: true, open: on_wgpu });
    }
    #[cfg(feature = "cuda")]
    if is_there("cuda", "BRIGADE_REQUIRE_CUDA", brigade_cuda::count().is_ok_and(|gpus| gpus > 0)) {
        backends.push(Backend { name: "cuda", has_exact_sums: false, open: on_cuda });
    }
    backends
}

pub fn is_there(name: &str, variable: &str, there: bool) -> bool {
    if !there {
        assert!(std::env::var(variable).as_deref() != Ok("1"), "{variable} is set, and {name} has no device");
        println!("skipped: {name} has no device");
    }
    there
}

#[cfg(feature = "wgpu")]
fn on_wgpu(world: &Group, mesh: Mesh) -> (Device, Groups) {
    let (device, _) = brigade_wgpu::device(world.rank()).unwrap();
    (device, brigade_wgpu::groups(world, mesh).unwrap())
}

/// By NCCL where each rank has a GPU of its own, else through host memory.
#[cfg(feature = "cuda")]
fn on_cuda(world: &Group, mesh: Mesh) -> (Device, Groups) {
    let shared = world.size() > brigade_cuda::count().unwrap();
    let gpu = brigade_cuda::RankGpu::open(world.rank(), world.size(), shared).unwrap();
    let groups = if shared {
        brigade_cuda::host_groups(world, mesh).unwrap()
    } else {
        let options = brigade_cuda::Options { synchronous: false, even_alone: true };
        brigade_cuda::groups(world, mesh, &gpu, options).unwrap()
    };
    (gpu.device(), groups)
}

/// The CPU, as the reference.
pub const CPU: Backend = Backend {
    name: "cpu",
    has_exact_sums: true,
    open: |world, mesh| (brigade_cpu::device(), brigade_cpu::groups(world, mesh).unwrap()),
};

pub fn timeouts() -> Timeouts {
    Timeouts { init: PATIENCE, step: PATIENCE }
}

impl Backend {
    /// Runs every rank of a mesh on a thread.
    pub fn on_threads<R: Send>(
        &self,
        pp: usize,
        dp: usize,
        run: impl Fn(Device, Groups) -> R + Sync,
    ) -> Vec<R> {
        let worlds = threads(pp * dp, timeouts());
        thread::scope(|scope| {
            let run = &run;
            let start = |world: Group| {
                scope.spawn(move || {
                    let (device, groups) = (self.open)(&world, Mesh { pp, dp });
                    run(device, groups)
                })
            };
            let ranks: Vec<_> = worlds.into_iter().map(start).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }
}
