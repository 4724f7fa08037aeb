//! Tensors as memory of the GPU.

use brigade_comm as comm;
use brigade_core::{Error, Result};
use burn::tensor::{DType, Int, Tensor};
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::cuda::CudaRuntime;
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{Cube, CubeDevice};
use cubecl_runtime::runtime::Runtime;

type Server = <CudaRuntime as Runtime>::Server;

/// A flat, contiguous tensor on this rank's GPU.
pub(super) struct FlatTensor {
    tensor: CubeTensor,
    elements: usize,
}

impl FlatTensor {
    /// A tensor of floats. One that is not contiguous is copied.
    pub(super) fn floats(tensor: Tensor<1>) -> Result<Self> {
        let elements = tensor.dims()[0];
        let tensor = tensor.without_autodiff().try_into_primitive::<Cube>();
        Self::of(tensor.map_err(|error| Error::Device(format!("{error:?}")))?, elements)
    }

    /// A tensor of integers.
    pub(super) fn ints(tensor: Tensor<1, Int>) -> Result<Self> {
        let elements = tensor.dims()[0];
        let tensor = tensor.without_autodiff().try_into_primitive::<Cube>();
        Self::of(tensor.map_err(|error| Error::Device(format!("{error:?}")))?, elements)
    }

    fn of(tensor: CubeTensor, elements: usize) -> Result<Self> {
        if !matches!(tensor.device, CubeDevice::Cuda(_)) {
            return Err(Error::Device(format!(
                "NCCL needs CUDA tensors, not tensors of {:?}",
                tensor.device
            )));
        }
        let tensor = if tensor.is_contiguous() { tensor } else { into_contiguous(tensor) };
        Ok(Self { tensor, elements })
    }

    /// Whether it is the only owner of its memory, so that operations may write to it in place.
    pub(super) fn is_sole_owner(&self) -> bool {
        self.tensor.can_mut()
    }

    pub(super) fn elements(&self) -> usize {
        self.elements
    }

    pub(super) fn bytes(&self) -> usize {
        self.elements * self.tensor.dtype.size()
    }

    /// The type of its elements, if collectives take it.
    pub(super) fn dtype(&self) -> Result<comm::DType> {
        match self.tensor.dtype {
            DType::F32 | DType::Flex32 => Ok(comm::DType::F32),
            DType::F64 => Ok(comm::DType::F64),
            DType::F16 => Ok(comm::DType::F16),
            DType::BF16 => Ok(comm::DType::Bf16),
            other => {
                Err(Error::Device(format!("collectives take f32, f64, f16 and bf16 tensors, not {other:?}")))
            }
        }
    }

    /// Its memory.
    pub(super) fn memory(&self) -> Result<DeviceMemory> {
        DeviceMemory::of_handle(&self.tensor.client, &self.tensor.handle)
    }

    pub(super) fn into_floats(self) -> Tensor<1> {
        Tensor::from_primitive::<Cube>(self.tensor)
    }

    pub(super) fn into_ints(self) -> Tensor<1, Int> {
        Tensor::<1, Int>::from_primitive::<Cube>(self.tensor)
    }
}

/// Memory of the GPU that keeps its address and is not reused as long as this lives.
pub(super) struct DeviceMemory {
    pub(super) address: u64,
    /// As long as there are two handles, nobody writes to the memory in place.
    _handle: Handle,
    _memory: Box<dyn Send>,
}

impl DeviceMemory {
    /// Makes this thread's stream wait for whatever writes the memory.
    pub(super) fn of_handle(client: &Client, handle: &Handle) -> Result<Self> {
        let resource = client.get_resource::<Server>(handle.clone());
        let resource = resource.map_err(|error| Error::Device(error.to_string()))?;
        Ok(Self { address: resource.resource().ptr, _handle: handle.clone(), _memory: Box::new(resource) })
    }
}
