//! The backends that this build has and whose device is there.

use std::thread;
use std::time::Duration;

use brigade::comm::{Group, Timeouts, threads};
use brigade::core::{DP, Dtype, Groups, Mesh, PP};
use burn::tensor::Device;

/// Kernels are compiled when they are first used, all ranks' on one thread.
const PATIENCE: Duration = Duration::from_secs(100);

/// How far numbers may be from the CPU's.
#[derive(Clone, Copy)]
pub struct Tolerance {
    /// Of losses, norms and tensors, as a part of these.
    pub relative: f64,
    /// Whether factors are rounded before they are multiplied. Where large terms cancel, as in the gradients of some biases,
    /// that shows more than elsewhere (between f32 and bf16 on the CPU: 1.2e-2 of all gradients together, 3.9e-2 of one
    /// tensor), and AdamW makes much of it (18% of a norm after five steps).
    pub rounds: bool,
}

/// Where products are of f32, and added up in f32.
const F32: Tolerance = Tolerance { relative: 1e-5, rounds: false };

/// Factors have 11 significant bits instead of bfloat16's 8, and so an eighth of their rounding.
const TF32: Tolerance = Tolerance { relative: BF16.relative / 8.0, rounds: true };

const BF16: Tolerance = Tolerance { relative: 2e-2, rounds: true };

/// A backend as a rank sees it.
pub struct Backend {
    pub name: &'static str,
    /// Whether ranks are summed in the order of one process, as the host does.
    pub has_exact_sums: bool,
    /// Whether tensor cores multiply f32 as TF32, which no setting of Burn prevents.
    pub multiplies_tf32: bool,
    /// Whether kernels are timed when they are first used. Meanwhile other threads take another kernel.
    pub times_kernels: bool,
    /// The rank's device, and its groups.
    pub open: fn(&Group, Mesh) -> (Device, Groups),
}

/// All that are there. One that this build has and the machine has not is left out, and said so; with the variable
/// `BRIGADE_REQUIRE_CUDA` or `BRIGADE_REQUIRE_WGPU` set to 1, that fails.
pub fn backends() -> Vec<Backend> {
    let mut backends = Vec::new();
    #[cfg(feature = "wgpu")]
    if is_there("wgpu", "BRIGADE_REQUIRE_WGPU", !brigade_wgpu::adapters().is_empty()) {
        backends.push(Backend { name: "wgpu", open: on_wgpu, ..CPU });
    }
    #[cfg(feature = "cuda")]
    if is_there("cuda", "BRIGADE_REQUIRE_CUDA", brigade_cuda::gpu_count().is_ok_and(|gpus| gpus > 0)) {
        let gpus = brigade_cuda::driver().unwrap().gpus().unwrap();
        backends.push(Backend {
            name: "cuda",
            has_exact_sums: false,
            multiplies_tf32: gpus.iter().any(|gpu| gpu.compute_capability >= (8, 0)),
            times_kernels: true,
            open: on_cuda,
        });
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
    brigade::kernels::trust_software();
    let (device, _) = brigade_wgpu::device(world.rank()).unwrap();
    (device, brigade_wgpu::groups(world, mesh).unwrap())
}

/// By NCCL where each rank has a GPU of its own, else through host memory.
#[cfg(feature = "cuda")]
fn on_cuda(world: &Group, mesh: Mesh) -> (Device, Groups) {
    let shared = world.size() > brigade_cuda::gpu_count().unwrap();
    let gpu = brigade_cuda::RankGpu::open(world.rank(), world.size(), shared).unwrap();
    let groups = if shared {
        brigade_cuda::host_groups(world, mesh).unwrap()
    } else {
        let options = brigade_cuda::NcclOptions { synchronous: false, even_alone: true };
        brigade_cuda::groups(world, mesh, &gpu, options).unwrap()
    };
    (gpu.device(), groups)
}

/// The CPU, as the reference.
pub const CPU: Backend = Backend {
    name: "cpu",
    has_exact_sums: true,
    multiplies_tf32: false,
    times_kernels: false,
    open: |world, mesh| (brigade_cpu::device(), brigade_cpu::groups(world, mesh).unwrap()),
};

pub fn timeouts() -> Timeouts {
    Timeouts { init: PATIENCE, step: PATIENCE, ..Timeouts::default() }
}

impl Backend {
    /// What products of `dtype` allow.
    pub fn tolerance(&self, dtype: Dtype) -> Tolerance {
        match dtype {
            Dtype::F32 if self.multiplies_tf32 => TF32,
            Dtype::F32 => F32,
            Dtype::Bf16 => BF16,
        }
    }

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
                    let (device, groups) =
                        (self.open)(&world, Mesh::new(pp * dp, [(PP, pp), (DP, dp)]).unwrap());
                    run(device, groups)
                })
            };
            let ranks: Vec<_> = worlds.into_iter().map(start).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }
}
