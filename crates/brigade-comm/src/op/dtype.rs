//! Element types and reductions.

use std::fmt;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// The type of the elements in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum DType {
    /// IEEE 754 binary32.
    F32 = 1,
    /// IEEE 754 binary64.
    F64 = 2,
    /// bfloat16; reduced in `f32`, rounded once.
    Bf16 = 3,
    /// IEEE 754 binary16; reduced in `f32`, rounded once.
    F16 = 4,
    /// Signed 64-bit integer; sums wrap around.
    I64 = 5,
    /// Byte; sums wrap around.
    U8 = 6,
}

impl DType {
    /// Every type, in wire order.
    pub const ALL: [DType; 6] = [DType::F32, DType::F64, DType::Bf16, DType::F16, DType::I64, DType::U8];

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::U8 => 1,
            DType::Bf16 | DType::F16 => 2,
            DType::F32 => 4,
            DType::F64 | DType::I64 => 8,
        }
    }

    /// The lower-case name, as in `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
            DType::I64 => "i64",
            DType::U8 => "u8",
        }
    }

    pub(crate) fn from_wire(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| *dtype as u8 == code)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How the contributions to an element become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum ReduceOp {
    /// Their sum, pairwise in rank order.
    Sum = 1,
    /// The largest; a NaN wins over every number.
    Max = 2,
}

impl ReduceOp {
    /// The lower-case name, as in `sum`.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Max => "max",
        }
    }

    pub(crate) fn from_wire(code: u8) -> Option<Self> {
        [ReduceOp::Sum, ReduceOp::Max].into_iter().find(|op| *op as u8 == code)
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type whose slices can be communicated in place.
pub trait Element: bytemuck::Pod + Send + sealed::Sealed {
    /// Its name on the wire.
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($element:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $element {}
        impl Element for $element {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}
elements!(f32 => F32, f64 => F64, bf16 => Bf16, f16 => F16, i64 => I64, u8 => U8);
