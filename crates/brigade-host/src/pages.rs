//! Memory that is freed and filled again while tensors that view it live.

use std::mem::MaybeUninit;
use std::sync::Arc;

use brigade_comm::HostBuffer;
use burn::tensor::Bytes;
use cubecl_environment::bytes::{AccessError, AccessPolicy, AllocationController, AllocationProperty};

use crate::page_pool::PagePool;
use crate::region::Region;

/// A region of memory pages of its own. Tensors read it through [`Pages::bytes`], a collective writes it through
/// [`Pages::writer`], and [`Pages::free`] leaves the pages to others of the pool, or to the system.
///
/// Anybody who holds a tensor may read it. So everything that changes the memory is `unsafe`, and its caller makes sure that
/// reading, writing and freeing never overlap.
pub(crate) struct Pages {
    region: Arc<Region>,
    pool: Arc<PagePool>,
}

impl Pages {
    pub(crate) fn new(bytes: usize, pool: Arc<PagePool>) -> std::io::Result<Self> {
        Ok(Self { region: Arc::new(Region::new(bytes)?), pool })
    }

    /// The region as the memory of a tensor of `length` bytes.
    pub(crate) fn bytes(&self, length: usize) -> Bytes {
        assert!(length <= self.region.len());
        // SAFETY: the view has this many bytes, and pages of an anonymous map are always initialized, with zeros at first.
        unsafe { Bytes::from_controller(Box::new(View(self.region.clone())), length) }
    }

    /// The first `length` bytes, to be written. What is in them before is unknown.
    ///
    /// # Safety
    /// While the writer lives, nobody reads tensors of the region, and there is no other writer and no free. Nobody reads tensors of freed regions of the pool.
    pub(crate) unsafe fn writer(&self, length: usize) -> Writer {
        // SAFETY: the caller vouches for this region and for freed ones.
        unsafe { self.pool.fill(&self.region) };
        Writer { region: self.region.clone(), length: length.min(self.region.len()) }
    }

    /// Leaves the pages to whoever needs some, or to the system. What is read until they are written again is unknown.
    ///
    /// # Safety
    /// Nobody reads tensors of the region until then, and there is no writer.
    pub(crate) unsafe fn free(&self) {
        // SAFETY: the caller vouches for it.
        unsafe { self.pool.free(&self.region) };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.pool.forget(&self.region);
    }
}

/// A tensor's view of the pages. It never gives write access. Operations ask for it only if a tensor is the sole owner of its
/// memory, so whoever hands out such tensors keeps one.
struct View(Arc<Region>);

impl AllocationController for View {
    fn alloc_align(&self) -> usize {
        // Pages are aligned to more; this is what any element type needs.
        64
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    unsafe fn memory_mut(&mut self, _: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        Err(AccessError::WouldCopy)
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        // SAFETY: the region lives as long as `self`, and whoever writes it or frees its pages vouches that it is not read.
        Ok(unsafe { std::slice::from_raw_parts(self.0.as_mut_ptr().cast(), self.0.len()) })
    }

    fn capacity(&self) -> usize {
        self.0.len()
    }
}

/// Write access to a region, for a collective.
pub(crate) struct Writer {
    region: Arc<Region>,
    length: usize,
}

impl HostBuffer for Writer {
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: the region lives as long as `self` and is as long; whoever asked for this writer vouches that nobody else uses it.
        unsafe { std::slice::from_raw_parts(self.region.as_mut_ptr(), self.length) }
    }

    fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.region.as_mut_ptr(), self.length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{DType, Device, Tensor, TensorData};

    #[test]
    fn views_see_what_is_written_and_operations_never_write() {
        let pages = Pages::new(4096 * 4, Arc::default()).unwrap();
        let fill = |value: f32| {
            // SAFETY: this thread does nothing else meanwhile, and no other has a tensor of the region.
            let mut writer = unsafe { pages.writer(4096 * 4) };
            writer.as_bytes_mut().as_chunks_mut::<4>().0.iter_mut().for_each(|b| *b = value.to_le_bytes());
        };
        fill(1.0);
        let device = Device::flex();
        let whole: Tensor<1> =
            Tensor::from_data(TensorData::from_bytes(pages.bytes(4096 * 4), [4096], DType::F32), &device);
        let view = whole.clone().slice(100..110).reshape([2, 5]);
        assert_eq!(view.clone().sum().into_scalar::<f32>(), 10.0);
        // SAFETY: as above.
        unsafe { pages.free() };
        fill(3.0);
        assert_eq!(view.clone().sum().into_scalar::<f32>(), 30.0);
        let doubled = view.mul_scalar(2.0);
        assert_eq!(doubled.sum().into_scalar::<f32>(), 60.0);
        // SAFETY: as above.
        assert_eq!(unsafe { pages.writer(4) }.as_bytes(), 3.0f32.to_le_bytes());
        assert_eq!(whole.slice(0..1).into_scalar::<f32>(), 3.0);
    }
}
