//! Copies of tensors from the device to the host and back. Nothing else in this crate moves a tensor's values.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use brigade_comm::{DType, HostBuffer};
use brigade_core::{Error, Part, Result};
use burn::tensor::{Bytes, DType as TensorDType, Device, Tensor, TensorData};
use cubecl_environment::bytes::Reader;

use crate::memory_space::MemorySpace;
use crate::message::Description;

/// Copies between a device and the host: their number, and their bytes. Where tensors already are in host memory, the tensors
/// that were handed over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceCopies {
    /// From the device to the host.
    pub device_to_host: (u64, u64),
    /// From the host to the device.
    pub host_to_device: (u64, u64),
}

/// Copies tensors, and counts the copies.
#[derive(Debug)]
pub(crate) struct Copier {
    pub(crate) memory_space: MemorySpace,
    to_host: CopyCounter,
    to_device: CopyCounter,
}

impl Copier {
    pub(crate) fn new(memory_space: MemorySpace) -> Self {
        Self { memory_space, to_host: CopyCounter::default(), to_device: CopyCounter::default() }
    }

    pub(crate) fn device_copies(&self) -> DeviceCopies {
        DeviceCopies { device_to_host: self.to_host.read(), host_to_device: self.to_device.read() }
    }

    /// Reads a tensor from its device; one of host memory that is whole and solely owned is moved.
    pub(crate) fn tensor_to_host(&self, tensor: Tensor<1>) -> Result<HostTensor> {
        let device = tensor.device();
        let (bytes, of) = self.to_host(tensor.try_into_data())?;
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
        Ok(HostTensor { bytes, dtype, of, device })
    }

    /// Reads a tensor of a message.
    pub(crate) fn part_to_host(&self, part: Part) -> Result<Bytes> {
        let (bytes, _) = match part {
            Part::Float(flat, _) => self.to_host(flat.try_into_data()),
            Part::Int(flat, _) => self.to_host(flat.try_into_data()),
        }?;
        Ok(bytes)
    }

    /// Writes a tensor to its device; host memory is moved.
    pub(crate) fn tensor_to_device(&self, HostTensor { bytes, of, device, .. }: HostTensor) -> Tensor<1> {
        Tensor::from_data(self.to_device(bytes, of), (&device, of))
    }

    /// Writes a tensor of a message.
    pub(crate) fn part_to_device(&self, bytes: Bytes, is: Description, device: &Device) -> Part {
        let data = self.to_device(bytes, is.dtype);
        match is.is_float() {
            true => Part::Float(Tensor::from_data(data, (device, is.dtype)), is.shape),
            false => Part::Int(Tensor::from_data(data, (device, is.dtype)), is.shape),
        }
    }

    fn to_host(&self, data: Result<TensorData, impl Display>) -> Result<(Bytes, TensorDType)> {
        let (bytes, _, dtype) = data.map_err(device_error)?.into_parts();
        // Until they are read, a device's bytes may exist on the device only.
        bytes.read(Reader::new()).map_err(device_error)?;
        self.to_host.add(bytes.len());
        Ok((bytes, dtype))
    }

    fn to_device(&self, bytes: Bytes, dtype: TensorDType) -> TensorData {
        self.to_device.add(bytes.len());
        let length = bytes.len() / dtype.size();
        TensorData::from_bytes(bytes, [length], dtype)
    }
}

fn device_error(error: impl Display) -> Error {
    Error::Device(error.to_string())
}

#[derive(Debug, Default)]
struct CopyCounter(AtomicU64, AtomicU64);

impl CopyCounter {
    fn add(&self, bytes: usize) {
        self.0.fetch_add(1, Relaxed);
        self.1.fetch_add(bytes as u64, Relaxed);
    }

    fn read(&self) -> (u64, u64) {
        (self.0.load(Relaxed), self.1.load(Relaxed))
    }
}

/// A tensor's bytes on the host, with what it takes to make it a tensor again.
pub(crate) struct HostTensor {
    pub(crate) bytes: Bytes,
    /// The type of its elements, for the transport.
    pub(crate) dtype: DType,
    of: TensorDType,
    pub(crate) device: Device,
}

impl HostTensor {
    pub(crate) fn with_bytes(self, bytes: Bytes) -> Self {
        Self { bytes, ..self }
    }
}

impl HostBuffer for HostTensor {
    fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}
