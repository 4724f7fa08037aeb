//! cuBLAS's state for the products of one stream.

use std::ffi::{c_int, c_longlong, c_void};
use std::sync::Arc;

use cudarc::driver::sys::CUstream;

use super::codes::{COMPUTE, check, data_type};
use super::gemm::{Gemm, Number, Operand};
use super::library::Cublas;
use super::lt::{Addresses, Finish, Plan};
use crate::driver::Context;
use crate::error::Error;

/// CUBLAS_COMPUTE_32F_FAST_TF32: as Burn's own kernels multiply fp32.
const COMPUTE_TF32: c_int = 77;
/// CUBLAS_GEMM_DEFAULT.
const ALGORITHM: c_int = -1;

/// cuBLAS's state for the products of one stream, at first the driver's default stream.
pub(crate) struct Handle {
    cublas: &'static Cublas,
    context: Arc<Context>,
    raw: *mut c_void,
    stream: CUstream,
}

// SAFETY: a handle may be used from any thread, by one at a time.
unsafe impl Send for Handle {}

impl Handle {
    /// For products on a GPU.
    pub fn new(cublas: &'static Cublas, context: &Arc<Context>) -> Result<Self, Error> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one pointer, with the GPU's context current.
        let status = context.with_current(|| unsafe { (cublas.functions.create)(&mut raw) })?;
        check(status, "cublasCreate")?;
        Ok(Self { cublas, context: context.clone(), raw, stream: std::ptr::null_mut() })
    }

    /// The stream of the products to come.
    ///
    /// # Safety
    /// It is a stream of the handle's GPU, and outlives the products.
    pub unsafe fn set_stream(&mut self, stream: CUstream) -> Result<(), Error> {
        if self.stream == stream {
            return Ok(());
        }
        // SAFETY: the caller vouches for the stream.
        let set = || unsafe { (self.cublas.functions.set_stream)(self.raw, stream) };
        check(self.context.with_current(set)?, "cublasSetStream")?;
        self.stream = stream;
        Ok(())
    }

    /// How a product with an epilogue is made, if cuBLASLt is there and makes it.
    pub fn plan(&self, gemm: &Gemm, finish: Finish) -> Result<Option<Arc<Plan>>, Error> {
        let Some(lt) = &self.cublas.lt else { return Ok(None) };
        Plan::new(lt, self.raw, &self.context, gemm, finish)
    }

    /// Enqueues a product with an epilogue.
    ///
    /// # Safety
    /// As [`Plan::enqueue`].
    pub unsafe fn enqueue_plan(&self, plan: &Plan, at: Addresses) -> Result<(), Error> {
        // SAFETY: the caller vouches for the memory.
        unsafe { plan.enqueue(self.raw, &self.context, self.stream, at) }
    }

    /// Enqueues products.
    ///
    /// # Safety
    /// The matrices must stay at these addresses, as described by `gemm`, until they are computed.
    pub unsafe fn enqueue(&self, gemm: &Gemm, [left, right, output]: [u64; 3]) -> Result<(), Error> {
        let Gemm { batch, size: [m, n, k], input_type, output_type, .. } = *gemm;
        let size = |value: usize| {
            c_int::try_from(value).map_err(|_| Error::Cublas {
                call: "cublasGemmStridedBatchedEx",
                status: format!("a matrix with a dimension of {value}"),
            })
        };
        let compute = if input_type == Number::F32 { COMPUTE_TF32 } else { COMPUTE };
        let (one, beta) = (1f32, f32::from(u8::from(gemm.accumulates)));
        let stride = |operand: &Operand| operand.batch_stride as c_longlong;
        let [m, n, k, batch] = [size(m)?, size(n)?, size(k)?, size(batch)?];
        let [leading_left, leading_right, leading_output] =
            [size(gemm.left.leading)?, size(gemm.right.leading)?, size(gemm.output.leading)?];
        // SAFETY: the caller vouches for the memory, the factors are read at once, and the numbers are those of cuBLAS's headers.
        let call = || unsafe {
            (self.cublas.functions.gemm)(
                self.raw,
                c_int::from(gemm.right.is_transposed),
                c_int::from(gemm.left.is_transposed),
                n,
                m,
                k,
                (&raw const one).cast(),
                right as *const c_void,
                data_type(input_type),
                leading_right,
                stride(&gemm.right),
                left as *const c_void,
                data_type(input_type),
                leading_left,
                stride(&gemm.left),
                (&raw const beta).cast(),
                output as *mut c_void,
                data_type(output_type),
                leading_output,
                stride(&gemm.output),
                batch,
                compute,
                ALGORITHM,
            )
        };
        let status = self.context.with_current(call)?;
        check(status, "cublasGemmStridedBatchedEx")
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let status = self.context.with_current(|| unsafe { (self.cublas.functions.destroy)(self.raw) });
        if let Err(error) = status.and_then(|status| check(status, "cublasDestroy")) {
            tracing::warn!("{error}");
        }
    }
}
