//! Products with an epilogue: which cuBLASLt makes, and how.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use brigade_kernels::Epilogue;
use burn::tensor::StreamId;
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::server::Handle as Buffer;
use burn_cubecl::tensor::CubeTensor;

use crate::cublas::{ALIGNMENT, Finish, Gemm, Handle, Number, Plan, WORKSPACE};
use crate::polling::lock;
use crate::tensors::products::own;

/// `None` of what cuBLASLt does not make.
type Plans = HashMap<(Gemm, Finish), Option<Arc<Plan>>>;

/// The plans of products with an epilogue on one GPU.
pub(crate) struct Epilogues {
    /// Asked how products are made, not for products.
    handle: Mutex<Handle>,
    plans: Mutex<Plans>,
    /// Of each thread that computes.
    workspaces: Mutex<HashMap<StreamId, Buffer>>,
}

/// How a product with an epilogue is made, and what it reads or writes beside the factors and the result.
pub(crate) struct Planned {
    pub plan: Arc<Plan>,
    pub residual: Option<Buffer>,
    pub vector: Option<Buffer>,
    pub auxiliary: Option<Buffer>,
    pub workspace: Buffer,
}

impl Epilogues {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle: Mutex::new(handle), plans: Mutex::default(), workspaces: Mutex::default() }
    }

    /// Of a product of these factors and result, if cuBLASLt makes it.
    pub(crate) fn planned(
        &self,
        gemm: &Gemm,
        matrices: [&CubeTensor; 3],
        epilogue: &Epilogue,
    ) -> Option<Planned> {
        let size = matrices[2].dtype.size();
        let aligned = |elements: usize| ((elements * size) as u64).is_multiple_of(ALIGNMENT);
        let operands = [&gemm.left, &gemm.right, &gemm.output];
        let fits = gemm.batch == 1
            && [gemm.input_type, gemm.output_type] == [Number::Bf16; 2]
            && operands.iter().all(|operand| aligned(operand.leading))
            && gemm.output.leading == gemm.size[1]
            && matrices.iter().all(|matrix| is_aligned(matrix));
        if !fits {
            return None;
        }
        // What is written is this thread's already.
        let read = |tensor: &Option<CubeTensor>| tensor.as_ref().map(own);
        let (finish, others) = match epilogue {
            Epilogue::None | Epilogue::Accumulate => return None,
            Epilogue::Sum { bias: None, residual } => (Finish::Residual, [read(residual), None, None]),
            Epilogue::Sum { bias, residual } => {
                (Finish::Bias { residual: residual.is_some() }, [read(residual), read(bias), None])
            }
            Epilogue::Gelu { bias, hidden } => (Finish::Gelu, [None, Some(own(bias)), Some(hidden.clone())]),
            Epilogue::RightSums(sums) => (Finish::RightSums, [None, Some(sums.clone()), None]),
            Epilogue::LeftSums(sums) => (Finish::LeftSums, [None, Some(sums.clone()), None]),
        };
        let like = |tensor: &CubeTensor| {
            tensor.device == matrices[2].device
                && tensor.dtype == matrices[2].dtype
                && tensor.is_contiguous()
                && is_aligned(tensor)
        };
        if !others.iter().flatten().all(like) {
            return None;
        }
        let plan = self.plan(gemm, finish)?;
        let [residual, vector, auxiliary] = others.map(|tensor| tensor.map(|tensor| tensor.handle));
        Some(Planned { plan, residual, vector, auxiliary, workspace: self.workspace(&matrices[2].client) })
    }

    fn plan(&self, gemm: &Gemm, finish: Finish) -> Option<Arc<Plan>> {
        let mut plans = lock(&self.plans);
        let made = plans.entry((*gemm, finish)).or_insert_with(|| {
            lock(&self.handle).plan(gemm, finish).unwrap_or_else(|error| {
                tracing::warn!("{error}: what follows a product has a kernel of its own");
                None
            })
        });
        made.clone()
    }

    /// That of this thread's stream.
    fn workspace(&self, client: &Client) -> Buffer {
        let mut workspaces = lock(&self.workspaces);
        workspaces.entry(StreamId::current()).or_insert_with(|| client.empty(WORKSPACE)).clone()
    }
}

/// Whether a tensor begins where cuBLASLt's algorithms may. Memory does; parts of it may not.
fn is_aligned(tensor: &CubeTensor) -> bool {
    tensor.handle.offset_start.unwrap_or(0).is_multiple_of(ALIGNMENT)
}
