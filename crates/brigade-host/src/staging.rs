//! Tensors as bytes on the host, and back: nothing else in this crate moves a tensor's values.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use brigade_comm::{DType, HostBuffer};
use brigade_core::{Error, Part, Result};
use burn::tensor::{Bytes, DType as TensorDType, Device, Tensor, TensorData};
use cubecl_environment::bytes::Reader;

use crate::message::Description;
use crate::place::Placement;

/// What has crossed between a device and the host: tensors, and their bytes. Where tensors are host memory, what was handed
/// over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Crossings {
    /// From the device to the host.
    pub down: (u64, u64),
    /// From the host to the device.
    pub up: (u64, u64),
}

/// Where tensors cross.
#[derive(Debug)]
pub(crate) struct Staging {
    pub(crate) placement: Placement,
    down: Count,
    up: Count,
}

impl Staging {
    pub(crate) fn new(placement: Placement) -> Self {
        Self { placement, down: Count::default(), up: Count::default() }
    }

    pub(crate) fn crossings(&self) -> Crossings {
        Crossings { down: self.down.read(), up: self.up.read() }
    }

    /// Reads a tensor from its device; one of host memory that is whole and solely owned is moved.
    pub(crate) fn read(&self, tensor: Tensor<1>) -> Result<Staged> {
        let device = tensor.device();
        let (bytes, of) = self.down(tensor.try_into_data())?;
        let dtype = match of {
            TensorDType::F32 | TensorDType::Flex32 => DType::F32,
            TensorDType::F64 => DType::F64,
            TensorDType::F16 => DType::F16,
            TensorDType::BF16 => DType::Bf16,
            other => {
                let text = format!("collectives take f32, f64, f16 and bf16 tensors, not {other:?}");
                return Err(Error::Device(text));
            }
        };
        Ok(Staged { bytes, dtype, of, device })
    }

    /// Reads a tensor of a message.
    pub(crate) fn read_part(&self, part: Part) -> Result<Bytes> {
        let (bytes, _) = match part {
            Part::Float(flat, _) => self.down(flat.try_into_data()),
            Part::Int(flat, _) => self.down(flat.try_into_data()),
        }?;
        Ok(bytes)
    }

    /// Writes a tensor to its device; host memory is moved.
    pub(crate) fn write(&self, Staged { bytes, of, device, .. }: Staged) -> Tensor<1> {
        Tensor::from_data(self.up(bytes, of), (&device, of))
    }

    /// Writes a tensor of a message.
    pub(crate) fn write_part(&self, bytes: Bytes, is: Description, device: &Device) -> Part {
        let data = self.up(bytes, is.dtype);
        match is.is_float() {
            true => Part::Float(Tensor::from_data(data, (device, is.dtype)), is.shape),
            false => Part::Int(Tensor::from_data(data, (device, is.dtype)), is.shape),
        }
    }

    fn down(&self, data: Result<TensorData, impl Display>) -> Result<(Bytes, TensorDType)> {
        let (bytes, _, dtype) = data.map_err(device_error)?.into_parts();
        // Until somebody looks, bytes of a device may still be there alone.
        bytes.read(Reader::new()).map_err(device_error)?;
        self.down.add(bytes.len());
        Ok((bytes, dtype))
    }

    fn up(&self, bytes: Bytes, dtype: TensorDType) -> TensorData {
        self.up.add(bytes.len());
        let length = bytes.len() / dtype.size();
        TensorData::from_bytes(bytes, [length], dtype)
    }
}

fn device_error(error: impl Display) -> Error {
    Error::Device(error.to_string())
}

#[derive(Debug, Default)]
struct Count(AtomicU64, AtomicU64);

impl Count {
    fn add(&self, bytes: usize) {
        self.0.fetch_add(1, Relaxed);
        self.1.fetch_add(bytes as u64, Relaxed);
    }

    fn read(&self) -> (u64, u64) {
        (self.0.load(Relaxed), self.1.load(Relaxed))
    }
}

/// A tensor's bytes on the host, with what it takes to make it a tensor again.
pub(crate) struct Staged {
    pub(crate) bytes: Bytes,
    /// The type of its elements, for the transport.
    pub(crate) dtype: DType,
    of: TensorDType,
    pub(crate) device: Device,
}

impl Staged {
    pub(crate) fn with_bytes(self, bytes: Bytes) -> Self {
        Self { bytes, ..self }
    }
}

impl HostBuffer for Staged {
    fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}
