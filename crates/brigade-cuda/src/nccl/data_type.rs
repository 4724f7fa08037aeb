//! Types of elements and reductions, in NCCL's numbers.

use brigade_comm::{DType, ReduceOp};
use cudarc::nccl::sys::{ncclDataType_t, ncclRedOp_t};

/// The type of the elements of a buffer on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// bfloat16.
    Bf16,
    /// IEEE 754 binary16.
    F16,
    /// Signed 64-bit integer.
    I64,
    /// Byte.
    U8,
}

impl ElementType {
    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    pub(crate) const fn nccl(self) -> ncclDataType_t {
        match self {
            Self::F32 => ncclDataType_t::ncclFloat32,
            Self::F64 => ncclDataType_t::ncclFloat64,
            Self::Bf16 => ncclDataType_t::ncclBfloat16,
            Self::F16 => ncclDataType_t::ncclFloat16,
            Self::I64 => ncclDataType_t::ncclInt64,
            Self::U8 => ncclDataType_t::ncclUint8,
        }
    }
}

impl From<DType> for ElementType {
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::F32 => Self::F32,
            DType::F64 => Self::F64,
            DType::Bf16 => Self::Bf16,
            DType::F16 => Self::F16,
            DType::I64 => Self::I64,
            DType::U8 => Self::U8,
        }
    }
}

pub(crate) const fn reduction(op: ReduceOp) -> ncclRedOp_t {
    match op {
        ReduceOp::Sum => ncclRedOp_t::ncclSum,
        ReduceOp::Max => ncclRedOp_t::ncclMax,
    }
}
