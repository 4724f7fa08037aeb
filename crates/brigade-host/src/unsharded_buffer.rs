//! An unsharded buffer in host memory: gathered in place, without moving the tensors that view it.

use std::sync::Arc;

use brigade_comm::{HostBuffer, ProcessGroup};
use brigade_core::{Error, Pending, PendingTensor, ReshardedBuffer, UnshardedBuffer};
use burn::tensor::{DType as TensorDType, Device, FloatDType, Tensor, TensorData};

use crate::copies::Copier;
use crate::page_pool::PagePool;
use crate::pages::Pages;

/// A flat buffer that all ranks' shards are gathered into, always in the same memory.
pub(crate) struct UnshardedHostBuffer {
    group: Arc<dyn ProcessGroup>,
    copier: Arc<Copier>,
    pages: Pages,
    bytes: usize,
    /// The buffer's first tensor. It lives as long as the buffer, so that no other tensor is ever the memory's sole owner.
    tensor: Tensor<1>,
}

impl UnshardedHostBuffer {
    /// A buffer for the group's shards of `shard` elements each. Nothing where the system has no memory for it.
    pub(crate) fn new(
        group: Arc<dyn ProcessGroup>,
        copier: Arc<Copier>,
        pool: Arc<PagePool>,
        shard: usize,
        (dtype, device): (FloatDType, &Device),
    ) -> Option<Self> {
        let dtype = TensorDType::from(dtype);
        let (length, bytes) = (shard * group.size(), shard * group.size() * dtype.size());
        let pages = Pages::new(bytes, pool).ok()?;
        let data = TensorData::from_bytes(pages.bytes(bytes), [length], dtype);
        let tensor = Tensor::from_data(data, (device, dtype));
        Some(Self { group, copier, pages, bytes, tensor })
    }
}

impl ReshardedBuffer for UnshardedHostBuffer {
    fn tensor(&self) -> Tensor<1> {
        self.tensor.clone()
    }

    unsafe fn all_gather(self: Box<Self>, shard: Tensor<1>) -> Pending<Box<dyn UnshardedBuffer>> {
        let host_tensor = match self.copier.tensor_to_host(shard) {
            Ok(host_tensor) => host_tensor,
            Err(error) => return Pending::new(move || Err(error)),
        };
        let slice = host_tensor.bytes.len();
        if slice * self.group.size() != self.bytes {
            let text = format!("shards of {slice} bytes do not fill a buffer of {} bytes", self.bytes);
            return Pending::new(move || Err(Error::collective(text)));
        }
        // SAFETY: the caller vouches that nobody reads it, and nobody else writes it: this buffer comes back only with the result.
        let mut writer = unsafe { self.pages.writer(self.bytes) };
        let start = self.group.rank() * slice;
        writer.as_bytes_mut()[start..start + slice].copy_from_slice(&host_tensor.bytes);
        let gathered = self.group.all_gather(writer, host_tensor.dtype);
        Pending::new(move || {
            gathered.wait().map(drop).map_err(Error::collective)?;
            Ok(self as Box<dyn UnshardedBuffer>)
        })
    }

    unsafe fn fill(self: Box<Self>, whole: PendingTensor) -> Pending<Box<dyn UnshardedBuffer>> {
        Pending::new(move || {
            let whole = self.copier.tensor_to_host(whole.wait()?)?;
            if whole.bytes.len() != self.bytes {
                let (given, bytes) = (whole.bytes.len(), self.bytes);
                return Err(Error::collective(format!(
                    "{given} bytes do not fill a buffer of {bytes} bytes"
                )));
            }
            // SAFETY: as in `all_gather`.
            let mut writer = unsafe { self.pages.writer(self.bytes) };
            writer.as_bytes_mut().copy_from_slice(&whole.bytes);
            drop(writer);
            Ok(self as Box<dyn UnshardedBuffer>)
        })
    }
}

impl UnshardedBuffer for UnshardedHostBuffer {
    fn tensor(&self) -> Tensor<1> {
        self.tensor.clone()
    }

    unsafe fn reshard(self: Box<Self>) -> Box<dyn ReshardedBuffer> {
        // SAFETY: the caller vouches that nobody reads it, and nobody writes it: it is filled.
        unsafe { self.pages.free() };
        self
    }
}
