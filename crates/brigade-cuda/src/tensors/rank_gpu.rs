//! The GPU of a rank.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use burn::tensor::Device;

use crate::{Context, Error, Gpu, driver, enough_for, gpu_for, nccl};

/// The GPU of a rank.
pub struct RankGpu {
    gpu: Gpu,
    pub(crate) context: Arc<Context>,
    peak: AtomicU64,
}

/// What a rank holds of its GPU's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Of tensors that live.
    pub live: u64,
    /// The most that Burn's pools have taken of the GPU, as far as it was looked at.
    pub peak: u64,
    /// All that the GPU has.
    pub total: u64,
}

impl RankGpu {
    /// The GPU of the rank that is `local_rank` of `local_size` on its node. Where several ranks may share one, they take
    /// turns.
    ///
    /// # Errors
    /// If there is no driver, or no GPU for the rank.
    pub fn open(local_rank: usize, local_size: usize, sharing: bool) -> Result<Self, Error> {
        let mut gpus = driver()?.gpus()?;
        let place = if sharing { local_rank % gpus.len().max(1) } else { local_rank };
        let index = gpu_for(place, local_size, gpus.len())?;
        let context = Context::new(index)?;
        Ok(Self { gpu: gpus.swap_remove(index), context, peak: AtomicU64::new(0) })
    }

    /// What is known of it.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// As a device of Burn.
    pub fn device(&self) -> Device {
        Device::cuda(self.gpu.index)
    }

    /// What this rank holds of its memory.
    pub fn memory(&self) -> Memory {
        let (live, reserved) = self
            .device()
            .memory_pool_usage()
            .map_or((0, 0), |pools| (pools.bytes_in_use, pools.bytes_reserved));
        let peak = self.peak.fetch_max(reserved, Relaxed).max(reserved);
        Memory { live, peak, total: self.gpu.total_memory as u64 }
    }
}

/// The number of GPUs that this process sees.
///
/// # Errors
/// If there is no driver.
pub fn count() -> Result<usize, Error> {
    Ok(driver()?.gpus()?.len())
}

/// Checks, before any rank starts, that this node has what `ranks` ranks of a world of `world` need. Where they share GPUs, or
/// there is one only, that is no NCCL.
///
/// # Errors
/// If there is no driver, too few GPUs, or no NCCL.
pub fn check(ranks: usize, world: usize, sharing: bool) -> Result<(), Error> {
    let visible = count()?;
    if sharing {
        return gpu_for(0, ranks, visible).map(drop);
    }
    enough_for(ranks, visible)?;
    if world > 1 { nccl().map(drop) } else { Ok(()) }
}
