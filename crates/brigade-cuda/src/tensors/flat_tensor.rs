//! Tensors as memory of the GPU.

use brigade_core::{Error, Result};
use burn::tensor::{DType, Int, Tensor};
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::cuda::CudaRuntime;
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{Cube, CubeDevice};
use cubecl_runtime::runtime::Runtime;

use crate::ElementType;

type Server = <CudaRuntime as Runtime>::Server;

/// A flat tensor of this rank's GPU, whole: its elements stand one after the other.
pub(crate) struct Flat {
    tensor: CubeTensor,
    elements: usize,
}

impl Flat {
    /// A tensor of floats. One that is not contiguous is copied.
    pub(crate) fn floats(tensor: Tensor<1>) -> Result<Self> {
        let elements = tensor.dims()[0];
        let tensor = tensor.without_autodiff().try_into_primitive::<Cube>();
        Self::of(tensor.map_err(|error| Error::Device(format!("{error:?}")))?, elements)
    }

    /// A tensor of integers.
    pub(crate) fn ints(tensor: Tensor<1, Int>) -> Result<Self> {
        let elements = tensor.dims()[0];
        let tensor = tensor.without_autodiff().try_into_primitive::<Cube>();
        Self::of(tensor.map_err(|error| Error::Device(format!("{error:?}")))?, elements)
    }

    fn of(tensor: CubeTensor, elements: usize) -> Result<Self> {
        if !matches!(tensor.device, CubeDevice::Cuda(_)) {
            return Err(Error::Device(format!("NCCL moves tensors of CUDA, not of {:?}", tensor.device)));
        }
        let tensor = if tensor.is_contiguous() { tensor } else { into_contiguous(tensor) };
        Ok(Self { tensor, elements })
    }

    /// Whether nobody else has this memory, so that it may be written in its place.
    pub(crate) fn is_sole(&self) -> bool {
        self.tensor.can_mut()
    }

    pub(crate) fn elements(&self) -> usize {
        self.elements
    }

    pub(crate) fn bytes(&self) -> usize {
        self.elements * self.tensor.dtype.size()
    }

    /// NCCL's type of its elements.
    pub(crate) fn element(&self) -> Result<ElementType> {
        match self.tensor.dtype {
            DType::F32 | DType::Flex32 => Ok(ElementType::F32),
            DType::F64 => Ok(ElementType::F64),
            DType::F16 => Ok(ElementType::F16),
            DType::BF16 => Ok(ElementType::Bf16),
            other => {
                Err(Error::Device(format!("collectives take f32, f64, f16 and bf16 tensors, not {other:?}")))
            }
        }
    }

    /// Holds its memory in its place.
    pub(crate) fn pin(&self) -> Result<Pinned> {
        Pinned::of_handle(&self.tensor.client, &self.tensor.handle)
    }

    pub(crate) fn into_floats(self) -> Tensor<1> {
        Tensor::from_primitive::<Cube>(self.tensor)
    }

    pub(crate) fn into_ints(self) -> Tensor<1, Int> {
        Tensor::<1, Int>::from_primitive::<Cube>(self.tensor)
    }
}

/// Memory of the GPU that keeps its place, and that nobody else is given, as long as this lives.
pub(crate) struct Pinned {
    pub(crate) address: u64,
    /// As long as there are two handles nobody writes the memory in its place.
    _handle: Handle,
    _memory: Box<dyn Send>,
}

impl Pinned {
    /// Makes this thread's stream wait for what the memory's values come from.
    pub(crate) fn of_handle(client: &Client, handle: &Handle) -> Result<Self> {
        let resource = client.get_resource::<Server>(handle.clone());
        let resource = resource.map_err(|error| Error::Device(error.to_string()))?;
        Ok(Self { address: resource.resource().ptr, _handle: handle.clone(), _memory: Box::new(resource) })
    }
}
