//! Memory of results.

use std::ops::{Deref, DerefMut};

use burn::tensor::{Bytes, DType, Shape};
use burn_flex::{FlexTensor, Layout};

use super::Number;

/// Elements of a result, to be written.
#[derive(Debug)]
pub(crate) struct Buffer<T>(Vec<T>);

impl<T: Number> Buffer<T> {
    /// With any values. Nothing is written, so memory that a process keeps from one step to the next costs nothing to get; but debug builds write NaN, so that tests find elements that an operation leaves out.
    pub fn new(elements: usize) -> Self {
        let mut values: Vec<T> = Vec::with_capacity(elements);
        if cfg!(debug_assertions) {
            // SAFETY: the capacity is at least that.
            unsafe { values.as_mut_ptr().write_bytes(0xFF, elements) };
        }
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        {
            // SAFETY: it does nothing, but for all that the compiler knows it writes to the memory behind the pointer, which is ours: from
            // here on each element has some value.
            unsafe {
                std::arch::asm!("/* {0} */", in(reg) values.as_mut_ptr(), options(nostack, preserves_flags))
            };
            // SAFETY: the capacity is at least that, the elements have some bits, and all bits are values of a `Pod` type.
            unsafe { values.set_len(elements) };
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        values.resize(elements, T::ZERO);
        Self(values)
    }

    pub fn zeros(elements: usize) -> Self {
        Self(vec![T::ZERO; elements])
    }

    /// As a tensor's memory.
    pub fn into_tensor(self, shape: impl Into<Shape>) -> FlexTensor {
        let shape = shape.into();
        assert_eq!(shape.num_elements(), self.0.len());
        FlexTensor::new(Bytes::from_elems(self.0), Layout::contiguous(shape), T::dtype())
    }
}

impl Buffer<f32> {
    /// As a tensor's memory, rounded.
    pub fn into_tensor_of<T: Number>(self, shape: impl Into<Shape>) -> FlexTensor {
        if T::dtype() == DType::F32 {
            return self.into_tensor(shape);
        }
        let mut rounded = Buffer::<T>::new(self.len());
        brigade_simd::convert(&self, &mut rounded);
        rounded.into_tensor(shape)
    }
}

impl<T> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

#[cfg(all(test, debug_assertions, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use burn::tensor::bf16;

    use super::*;

    #[test]
    fn what_is_not_written_is_no_number() {
        assert!(Buffer::<f32>::new(5).iter().all(|value| value.is_nan()));
        assert!(Buffer::<bf16>::new(5).iter().all(|value| value.is_nan()));
        assert!(Buffer::<f32>::zeros(5).iter().all(|value| *value == 0.0));
    }
}
