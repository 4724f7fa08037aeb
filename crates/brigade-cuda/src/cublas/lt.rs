//! cuBLASLt: products with an epilogue, for which cuBLAS has no function.
//!
//! Matrices are exchanged as in [`Gemm`]: the right factor is cuBLASLt's A and the left one its B, so a bias of its rows is one of our columns.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CUstream;
use libloading::Library;

use super::codes::{COMPUTE, Status, check, data_type};
use super::gemm::{Gemm, Operand};
use crate::driver::Context;
use crate::error::Error;
use crate::loading::function_table;
use crate::polling::lock;

/// Bytes that a product may use beside its matrices: what NVIDIA recommends for Hopper.
pub(crate) const WORKSPACE: usize = 32 << 20;

/// The alignment of matrices and vectors, in bytes.
pub(crate) const ALIGNMENT: u64 = 16;

/// CUDA_R_32F.
const SCALE_TYPE: c_int = 0;

// Attributes, as numbered in `cublasLt.h`: of a product's description, of a layout, and of a preference.
const TRANSPOSES_A: c_int = 3;
const TRANSPOSES_B: c_int = 4;
const EPILOGUE: c_int = 7;
const BIAS_POINTER: c_int = 8;
const AUXILIARY_POINTER: c_int = 11;
const AUXILIARY_LEADING: c_int = 12;
const MAX_WORKSPACE: c_int = 1;
const MIN_ALIGNMENTS: [c_int; 4] = [5, 6, 7, 8];

/// What is done to a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Finish {
    /// A residual is added.
    Residual,
    /// A bias is added, and a residual if there is one.
    Bias { residual: bool },
    /// A bias is added, and GELU applied to the sum, which is kept.
    Gelu,
    /// The columns of the right factor are added up.
    RightSums,
    /// The rows of the left factor are added up.
    LeftSums,
}

impl Finish {
    /// A `cublasLtEpilogue_t`.
    fn code(self) -> u32 {
        match self {
            Self::Residual => 1,
            Self::Bias { .. } => 4,
            Self::Gelu => 32 | 128 | 4,
            Self::RightSums => 256,
            Self::LeftSums => 512,
        }
    }

    fn adds_residual(self) -> bool {
        matches!(self, Self::Residual | Self::Bias { residual: true })
    }

    fn has_auxiliary(self) -> bool {
        matches!(self, Self::Gelu)
    }
}

/// A `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Heuristic {
    algorithm: [u64; 8],
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

type Raw = *mut c_void;

function_table! {
    /// The functions of cuBLASLt that are used.
    Functions {
        describe = "cublasLtMatmulDescCreate": fn(*mut Raw, c_int, c_int) -> Status;
        set_description = "cublasLtMatmulDescSetAttribute": fn(Raw, c_int, *const c_void, usize) -> Status;
        forget_description = "cublasLtMatmulDescDestroy": fn(Raw) -> Status;
        lay_out = "cublasLtMatrixLayoutCreate": fn(*mut Raw, c_int, u64, u64, i64) -> Status;
        forget_layout = "cublasLtMatrixLayoutDestroy": fn(Raw) -> Status;
        prefer = "cublasLtMatmulPreferenceCreate": fn(*mut Raw) -> Status;
        set_preference = "cublasLtMatmulPreferenceSetAttribute": fn(Raw, c_int, *const c_void, usize) -> Status;
        forget_preference = "cublasLtMatmulPreferenceDestroy": fn(Raw) -> Status;
        choose = "cublasLtMatmulAlgoGetHeuristic":
            fn(Raw, Raw, Raw, Raw, Raw, Raw, Raw, c_int, *mut Heuristic, *mut c_int) -> Status;
        multiply = "cublasLtMatmul":
            fn(Raw, Raw, *const c_void, *const c_void, Raw, *const c_void, Raw, *const c_void, *const c_void, Raw,
                *mut c_void, Raw, *const u64, *mut c_void, usize, CUstream) -> Status;
    }
}

/// cuBLASLt, loaded.
pub(crate) struct Lt {
    functions: Functions,
}

impl Lt {
    /// That of a loaded cuBLAS of this major version, which has loaded it; none if it is not found or has not all functions.
    pub fn load(major: c_int) -> Option<Self> {
        // SAFETY: its initialisers are cuBLAS's, and have run.
        let library = unsafe { Library::new(format!("libcublasLt.so.{major}")) }.ok()?;
        // It is never unloaded: plans live as long as the process.
        let functions = Functions::load(Box::leak(Box::new(library))).ok()?;
        Some(Self { functions })
    }
}

/// How a product with an epilogue is made.
pub(crate) struct Plan {
    functions: Functions,
    finish: Finish,
    algorithm: [u64; 8],
    /// The description and the layouts of A, B and the result. Addresses are written to the description before each product.
    raw: Mutex<[Raw; 4]>,
}

// SAFETY: the descriptions are used by one thread at a time.
unsafe impl Send for Plan {}
// SAFETY: as above.
unsafe impl Sync for Plan {}

/// Where the tensors of a product are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addresses {
    pub left: u64,
    pub right: u64,
    pub output: u64,
    /// What is added, or the output.
    pub residual: u64,
    /// The bias, or where sums go.
    pub vector: u64,
    /// What goes into GELU.
    pub auxiliary: u64,
    pub workspace: u64,
}

impl Plan {
    /// Of one product, not of a batch, where all matrices and vectors are aligned to [`ALIGNMENT`]; none if cuBLASLt does not make it. `handle` is cuBLAS's.
    pub fn new(
        lt: &Lt,
        handle: Raw,
        context: &Context,
        gemm: &Gemm,
        finish: Finish,
    ) -> Result<Option<Arc<Self>>, Error> {
        let functions = lt.functions;
        let Gemm { size: [m, n, k], input_type, output_type, .. } = *gemm;
        let layout = |operand: &Operand, [rows, columns]: [usize; 2]| {
            let (rows, columns) = if operand.is_transposed { (columns, rows) } else { (rows, columns) };
            // A row of ours is a column there.
            (columns as u64, rows as u64, operand.leading as i64)
        };
        let shapes = [
            (layout(&gemm.right, [k, n]), data_type(input_type)),
            (layout(&gemm.left, [m, k]), data_type(input_type)),
            (layout(&gemm.output, [m, n]), data_type(output_type)),
        ];
        context.with_current(|| {
            // What has been made is freed also where a later call fails.
            let raw = Mutex::new([std::ptr::null_mut(); 4]);
            let mut plan = Self { functions, finish, algorithm: [0; 8], raw };
            {
                let mut raw = lock(&plan.raw);
                // SAFETY: each call writes one pointer.
                unsafe {
                    check(
                        (functions.describe)(&mut raw[0], COMPUTE, SCALE_TYPE),
                        "cublasLtMatmulDescCreate",
                    )?;
                    for (((rows, columns, leading), number), raw) in shapes.into_iter().zip(&mut raw[1..]) {
                        check(
                            (functions.lay_out)(raw, number, rows, columns, leading),
                            "cublasLtMatrixLayoutCreate",
                        )?;
                    }
                }
                plan.describe(raw[0], TRANSPOSES_A, c_int::from(gemm.right.is_transposed))?;
                plan.describe(raw[0], TRANSPOSES_B, c_int::from(gemm.left.is_transposed))?;
                plan.describe(raw[0], EPILOGUE, finish.code())?;
                if finish.has_auxiliary() {
                    plan.describe(raw[0], AUXILIARY_LEADING, n as i64)?;
                }
                // Which algorithm is chosen may depend on whether there are such tensors, and on their alignment.
                plan.place(raw[0], ALIGNMENT, ALIGNMENT)?;
            }
            let found = plan.chosen(handle)?;
            Ok(found.map(|algorithm| {
                plan.algorithm = algorithm;
                Arc::new(plan)
            }))
        })?
    }

    /// Enqueues the product.
    ///
    /// # Safety
    /// The tensors must stay at these addresses until it is made, as the plan describes them, and `workspace` must have [`WORKSPACE`] bytes that nothing else on another stream
    /// uses.
    pub unsafe fn enqueue(
        &self,
        handle: Raw,
        context: &Context,
        stream: CUstream,
        at: Addresses,
    ) -> Result<(), Error> {
        let raw = lock(&self.raw);
        self.place(raw[0], at.vector, at.auxiliary)?;
        let (one, beta) = (1f32, f32::from(u8::from(self.finish.adds_residual())));
        let residual = if self.finish.adds_residual() { at.residual } else { at.output };
        // SAFETY: the caller vouches for the memory, and the factors are read at once.
        let call = || unsafe {
            (self.functions.multiply)(
                handle,
                raw[0],
                (&raw const one).cast(),
                at.right as *const c_void,
                raw[1],
                at.left as *const c_void,
                raw[2],
                (&raw const beta).cast(),
                residual as *const c_void,
                raw[3],
                at.output as *mut c_void,
                raw[3],
                self.algorithm.as_ptr(),
                at.workspace as *mut c_void,
                WORKSPACE,
                stream,
            )
        };
        check(context.with_current(call)?, "cublasLtMatmul")
    }

    /// Writes the addresses of bias or sums and of what goes into GELU to the description, where it has them.
    fn place(&self, description: Raw, vector: u64, auxiliary: u64) -> Result<(), Error> {
        if self.finish != Finish::Residual {
            self.describe(description, BIAS_POINTER, vector)?;
        }
        if self.finish.has_auxiliary() {
            self.describe(description, AUXILIARY_POINTER, auxiliary)?;
        }
        Ok(())
    }

    fn describe<V: Copy>(&self, description: Raw, attribute: c_int, value: V) -> Result<(), Error> {
        // SAFETY: it reads the value, whose type is the attribute's.
        let status = unsafe {
            (self.functions.set_description)(
                description,
                attribute,
                (&raw const value).cast(),
                size_of::<V>(),
            )
        };
        check(status, "cublasLtMatmulDescSetAttribute")
    }

    /// The algorithm that cuBLASLt expects to be fastest, if it has any.
    fn chosen(&self, handle: Raw) -> Result<Option<[u64; 8]>, Error> {
        let raw = *lock(&self.raw);
        let mut preference = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        let status = unsafe { (self.functions.prefer)(&mut preference) };
        check(status, "cublasLtMatmulPreferenceCreate")?;
        let set = |attribute: c_int, value: *const c_void, bytes: usize| {
            // SAFETY: it reads the value, whose size is the attribute's.
            unsafe { (self.functions.set_preference)(preference, attribute, value, bytes) }
        };
        let (workspace, alignment) = (WORKSPACE as u64, ALIGNMENT as u32);
        let mut statuses = vec![set(MAX_WORKSPACE, (&raw const workspace).cast(), size_of::<u64>())];
        statuses.extend(MIN_ALIGNMENTS.map(|of| set(of, (&raw const alignment).cast(), size_of::<u32>())));
        let (mut best, mut count) = (Heuristic::default(), 0);
        // SAFETY: writes one result and a number; the descriptions live as long as self.
        let status = unsafe {
            let [description, a, b, d] = raw;
            let (choose, best) = (self.functions.choose, &raw mut best);
            choose(handle, description, a, b, d, d, preference, 1, best, &mut count)
        };
        // SAFETY: made above, freed once.
        unsafe { (self.functions.forget_preference)(preference) };
        for status in statuses {
            check(status, "cublasLtMatmulPreferenceSetAttribute")?;
        }
        // Where nothing fits, that is no failure.
        let fits = status == 0 && count > 0 && best.state == 0 && best.workspace <= WORKSPACE;
        Ok(fits.then_some(best.algorithm))
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        let [description, layouts @ ..] = *lock(&self.raw);
        // SAFETY: made in `new`, freed once; null where it was not made.
        unsafe {
            if !description.is_null() {
                (self.functions.forget_description)(description);
            }
            for layout in layouts.into_iter().filter(|layout| !layout.is_null()) {
                (self.functions.forget_layout)(layout);
            }
        }
    }
}
