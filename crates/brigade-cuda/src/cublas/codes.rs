//! Numbers that cuBLAS and cuBLASLt share: types, and what their functions return.

use std::ffi::c_int;

use super::gemm::Number;
use crate::error::Error;

/// A `cublasStatus_t`, as a number.
pub(super) type Status = c_int;

const SUCCESS: Status = 0;

/// CUDA_R_32F, CUDA_R_16F and CUDA_R_16BF of `library_types.h`.
const TYPES: [(Number, c_int); 3] = [(Number::F32, 0), (Number::F16, 2), (Number::Bf16, 14)];
/// CUBLAS_COMPUTE_32F.
pub(super) const COMPUTE: c_int = 68;

/// A `cudaDataType_t`.
pub(super) fn data_type(number: Number) -> c_int {
    TYPES.iter().find(|(of, _)| *of == number).map_or(0, |(_, code)| *code)
}

/// What a status means.
///
/// # Errors
/// [`Error::Cublas`], if it is not success.
pub(super) fn check(status: Status, call: &'static str) -> Result<(), Error> {
    let name = match status {
        SUCCESS => return Ok(()),
        1 => "CUBLAS_STATUS_NOT_INITIALIZED",
        3 => "CUBLAS_STATUS_ALLOC_FAILED",
        7 => "CUBLAS_STATUS_INVALID_VALUE",
        8 => "CUBLAS_STATUS_ARCH_MISMATCH",
        11 => "CUBLAS_STATUS_MAPPING_ERROR",
        13 => "CUBLAS_STATUS_EXECUTION_FAILED",
        14 => "CUBLAS_STATUS_INTERNAL_ERROR",
        15 => "CUBLAS_STATUS_NOT_SUPPORTED",
        _ => "cublasStatus_t",
    };
    Err(Error::Cublas { call, status: format!("{name} ({status})") })
}
