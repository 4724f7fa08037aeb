//! The GPU of a rank.

use std::sync::{Arc, Mutex};

use burn::tensor::Device;

use super::products::CublasProducts;
use crate::cublas::is_cublas_named;
use crate::polling::lock;
use crate::{Context, Error, Gpu, check_gpu_count, cublas, driver, gpu_for, libdevice, nccl};

/// The GPU of a rank.
pub struct RankGpu {
    gpu: Gpu,
    pub(crate) context: Arc<Context>,
}

impl RankGpu {
    /// The GPU of the rank that is `local_rank` of `local_size` on its node. With `sharing`, ranks beyond the number of GPUs
    /// start again at the first.
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
        crate::autotune::set_cache_file(&gpu);
        multiply_by_cublas(index, &context)?;
        Ok(Self { gpu, context })
    }

    /// What the driver says about it.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Its device in Burn.
    pub fn device(&self) -> Device {
        Device::cuda(self.gpu.index)
    }
}

/// Has products on a GPU made by cuBLAS, if it is there.
fn multiply_by_cublas(index: usize, context: &Arc<Context>) -> Result<(), Error> {
    static OPENED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let mut opened = lock(&OPENED);
    if opened.contains(&index) {
        return Ok(());
    }
    opened.push(index);
    let cublas = match cublas() {
        Ok(cublas) => cublas,
        // What the user has named is to be used.
        Err(error) if is_cublas_named() => return Err(error),
        Err(_) => return Ok(()),
    };
    match CublasProducts::open(cublas, context.clone(), index) {
        Ok(products) => brigade_kernels::use_products(products),
        Err(error) => tracing::warn!("{error}: matrix products use Burn's own kernels"),
    }
    Ok(())
}

/// The number of GPUs that this process sees.
///
/// # Errors
/// If there is no driver.
pub fn gpu_count() -> Result<usize, Error> {
    Ok(driver()?.gpus()?.len())
}

/// Checks, before any rank starts, that this node has what `ranks` ranks of a world of `world` need. NCCL is not needed if they
/// share GPUs, or if there is only one rank.
///
/// # Errors
/// If there is no driver, no NCCL or no libdevice, or too few GPUs, or the file that `BRIGADE_CUBLAS` names cannot be loaded.
pub fn check_gpus(ranks: usize, world: usize, sharing: bool) -> Result<(), Error> {
    let visible = gpu_count()?;
    libdevice()?;
    if is_cublas_named() {
        cublas()?;
    }
    if sharing {
        return gpu_for(0, ranks, visible).map(drop);
    }
    check_gpu_count(ranks, visible)?;
    if world > 1 { nccl().map(drop) } else { Ok(()) }
}
