//! The GPU of a rank.

use std::sync::Arc;

use burn::tensor::Device;

use crate::{Context, Error, Gpu, driver, enough_for, gpu_for, nccl};

/// The GPU of a rank.
pub struct RankGpu {
    gpu: Gpu,
    pub(crate) context: Arc<Context>,
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
        let gpu = gpus.swap_remove(index);
        #[cfg(feature = "autotune")]
        crate::autotune::keep_choices(&gpu);
        Ok(Self { gpu, context })
    }

    /// What is known of it.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// As a device of Burn.
    pub fn device(&self) -> Device {
        Device::cuda(self.gpu.index)
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
