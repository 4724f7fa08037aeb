//! Products of Burn's tensors by cuBLAS.
//!
//! cuBLAS's calls are made on the thread that hands Burn's operations to the driver, among them, in their order, and on Burn's stream: nothing waits for anything.

pub(crate) mod epilogues;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

use brigade_kernels::{Epilogue, MatrixProducts, Product};
use burn::tensor::{DType, StreamId};
use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl::cuda::CudaDevice;
use burn_cubecl::cubecl::server::{Handle as Buffer, ServerStorage as _};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl_common::device::{Device as _, DeviceId};
use cubecl_common::device_handle::DeviceHandle;

use crate::cublas::{Addresses, Cublas, Gemm, Handle, Number, Operand};
use crate::polling::lock;
use crate::tensors::order::burn_stream::{Server, burn_stream};
use crate::tensors::order::counter::compute_error;
use crate::tensors::products::epilogues::{Epilogues, Planned};
use crate::{Context, Error};

/// Products by cuBLAS on one GPU.
pub(crate) struct CublasProducts {
    device: CubeDevice,
    queue: DeviceHandle<Server>,
    shared: Arc<Shared>,
}

/// What is used on the thread of the GPU's operations.
struct Shared {
    cublas: &'static Cublas,
    context: Arc<Context>,
    /// Of each thread that computes, as each has a stream of its own in Burn.
    handles: Mutex<HashMap<StreamId, Handle>>,
    epilogues: Epilogues,
    /// The first failure, which the next product reports.
    failure: Mutex<Option<String>>,
}

impl CublasProducts {
    /// Checks that cuBLAS works on the GPU.
    pub(crate) fn open(cublas: &'static Cublas, context: Arc<Context>, index: usize) -> Result<Self, Error> {
        let device = CudaDevice::new(index);
        let id: DeviceId = device.to_id();
        let epilogues = Epilogues::new(Handle::new(cublas, &context)?);
        let shared =
            Shared { cublas, context, handles: Mutex::default(), epilogues, failure: Mutex::default() };
        Ok(Self { device: CubeDevice::Cuda(device), queue: DeviceHandle::new(id), shared: Arc::new(shared) })
    }
}

impl MatrixProducts for CublasProducts {
    fn products_into(&self, products: &[Product]) -> Option<()> {
        let calls: Vec<Call> = products.iter().map(|product| self.call(product)).collect::<Option<_>>()?;
        if let Some(failure) = &*lock(&self.shared.failure) {
            panic!("a product on the GPU failed: {failure}");
        }
        let (stream, shared) = (StreamId::current(), self.shared.clone());
        self.queue.submit(move |server| {
            // A panic would only be logged, and the product missed.
            let enqueue = std::panic::AssertUnwindSafe(|| shared.enqueue(server, stream, calls));
            let failure = match std::panic::catch_unwind(enqueue) {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "a panic on the thread of the GPU's operations".to_owned(),
            };
            tracing::error!("a product on the GPU failed: {failure}");
            lock(&shared.failure).get_or_insert(failure);
        });
        Some(())
    }
}

impl CublasProducts {
    /// How cuBLAS makes a product, if it does.
    fn call(&self, Product { left, right, output, epilogue }: &Product) -> Option<Call> {
        if [left, right, output].iter().any(|tensor| tensor.device != self.device)
            || left.dtype != right.dtype
            || !is_own(output)
        {
            return None;
        }
        let (input_type, output_type) = (number(left.dtype)?, number(output.dtype)?);
        if input_type != output_type && output_type != Number::F32 {
            return None;
        }
        let (batch, [m, k]) = matrices(left)?;
        let (right_batch, [inner, n]) = matrices(right)?;
        let is_empty = [m, n, k].contains(&0) || batch.contains(&0);
        if is_empty || inner != k || batch != right_batch || matrices(output)? != (batch.clone(), [m, n]) {
            return None;
        }
        let ((left, left_operand), (right, right_operand)) = (readable(left)?, readable(right)?);
        let gemm = Gemm {
            batch: batch.iter().product(),
            size: [m, n, k],
            left: left_operand,
            right: right_operand,
            output: Operand::of(output.meta.shape(), output.meta.strides()).filter(|of| !of.is_transposed)?,
            input_type,
            output_type,
            accumulates: matches!(epilogue, Epilogue::Accumulate),
        };
        let planned = match epilogue {
            Epilogue::None | Epilogue::Accumulate => None,
            epilogue => Some(self.shared.epilogues.planned(&gemm, [&left, &right, output], epilogue)?),
        };
        Some(Call { gemm, buffers: [left.handle, right.handle, output.handle.clone()], planned })
    }
}

/// A product, and where its matrices are.
struct Call {
    gemm: Gemm,
    buffers: [Buffer; 3],
    /// With an epilogue: how, and what else it reads or writes.
    planned: Option<Planned>,
}

impl Shared {
    /// Enqueues products, on the thread of the GPU's operations.
    fn enqueue(&self, server: &mut Server, stream: StreamId, calls: Vec<Call>) -> Result<(), Error> {
        // What is computed later on the stream runs after the products, and so does whatever reuses their memory.
        let mut get = |buffer: Buffer| server.get_resource(buffer.binding(), stream).map_err(compute_error);
        let mut memory = Vec::with_capacity(calls.len());
        for Call { gemm, buffers, planned } in calls {
            let mut of_call = Vec::with_capacity(buffers.len());
            for buffer in buffers {
                of_call.push(get(buffer)?);
            }
            let planned = match planned {
                None => None,
                Some(Planned { plan, residual, vector, auxiliary, workspace }) => {
                    let mut given = |buffer: Option<Buffer>| buffer.map(&mut get).transpose();
                    let others =
                        [given(residual)?, given(vector)?, given(auxiliary)?, given(Some(workspace))?];
                    Some((plan, others))
                }
            };
            memory.push((gemm, of_call, planned));
        }
        let mut handles = lock(&self.handles);
        let handle = match handles.entry(stream) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Handle::new(self.cublas, &self.context)?),
        };
        // SAFETY: Burn's streams live as long as the process.
        unsafe { handle.set_stream(burn_stream(server, stream)?)? };
        for (gemm, memory, planned) in &memory {
            let [left, right, output] = [0, 1, 2].map(|index: usize| memory[index].resource().ptr);
            // SAFETY: the tensors lie there, and their memory is not reused by what does not run after the product; a workspace is one stream's.
            unsafe {
                match planned {
                    None => handle.enqueue(gemm, [left, right, output])?,
                    Some((plan, others)) => {
                        let [residual, vector, auxiliary, workspace] = others
                            .each_ref()
                            .map(|memory| memory.as_ref().map_or(0, |memory| memory.resource().ptr));
                        let at = Addresses { left, right, output, residual, vector, auxiliary, workspace };
                        handle.enqueue_plan(plan, at)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The tensor in memory of this thread's stream, which nothing reuses before a product that is enqueued there has read it. Another stream may reuse its own, so what is
/// there is copied by Burn, which sees to that.
fn own(tensor: &CubeTensor) -> CubeTensor {
    if is_own(tensor) { tensor.clone() } else { tensor.copy() }
}

fn is_own(tensor: &CubeTensor) -> bool {
    tensor.handle.stream == StreamId::current()
}

/// The tensor as matrices that cuBLAS reads, copied if need be.
fn readable(tensor: &CubeTensor) -> Option<(CubeTensor, Operand)> {
    let tensor = &own(tensor);
    let operand = |tensor: &CubeTensor| Operand::of(tensor.meta.shape(), tensor.meta.strides());
    if let Some(found) = operand(tensor) {
        return Some((tensor.clone(), found));
    }
    let copy = into_contiguous(tensor.clone());
    let found = operand(&copy)?;
    Some((copy, found))
}

/// The sizes of a batch, and of its matrices.
fn matrices(tensor: &CubeTensor) -> Option<(Vec<usize>, [usize; 2])> {
    let (batch, matrix) = tensor.meta.shape().split_at_checked(tensor.meta.num_dims().checked_sub(2)?)?;
    Some((batch.to_vec(), [matrix[0], matrix[1]]))
}

fn number(dtype: DType) -> Option<Number> {
    match dtype {
        DType::F32 => Some(Number::F32),
        DType::F16 => Some(Number::F16),
        DType::BF16 => Some(Number::Bf16),
        _ => None,
    }
}
