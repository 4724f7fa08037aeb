//! Memory of results.

use std::ops::{Deref, DerefMut};

use burn::tensor::{Bytes, DType, Shape};
use burn_flex::{FlexTensor, Layout};

/// Elements of a result, to be written.
#[derive(Debug)]
pub(crate) struct Buffer(Vec<f32>);

impl Buffer {
    /// With any values. Nothing is written, so memory that a process keeps from one step to the next costs nothing to get.
    pub fn new(elements: usize) -> Self {
        let mut values: Vec<f32> = Vec::with_capacity(elements);
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        {
            // SAFETY: it does nothing, but for all that the compiler knows it writes to the memory behind the pointer, which is ours: from
            // here on each element has some value.
            unsafe {
                std::arch::asm!("/* {0} */", in(reg) values.as_mut_ptr(), options(nostack, preserves_flags))
            };
            // SAFETY: the capacity is at least that, the elements have some bits, and all bits are values of `f32`.
            unsafe { values.set_len(elements) };
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        values.resize(elements, 0.0);
        Self(values)
    }

    pub fn zeros(elements: usize) -> Self {
        Self(vec![0.0; elements])
    }

    /// As a tensor's memory.
    pub fn into_tensor(self, shape: impl Into<Shape>) -> FlexTensor {
        let shape = shape.into();
        assert_eq!(shape.num_elements(), self.0.len());
        FlexTensor::new(Bytes::from_elems(self.0), Layout::contiguous(shape), DType::F32)
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.0
    }
}
