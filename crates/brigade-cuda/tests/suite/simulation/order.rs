//! Orders between the compute stream and NCCL's.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use brigade_cuda::{Context, Error, Event, Stream, StreamOrder};
use cudarc::driver::sys::CUstream;

use super::compute_stream::ComputeStream;
use crate::harness::{SOON, in_driver};

/// How the streams are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderKind {
    /// As Brigade does it with Burn: a counter that the compute stream writes, and events that the context waits for.
    Counter,
    /// The host blocks in each operation.
    Host,
    /// An event of everything that the context was given, including NCCL's own operations.
    WholeContext,
}

/// The order of a rank.
pub struct SimOrder {
    pub kind: OrderKind,
    pub context: Arc<Context>,
    pub compute: Arc<ComputeStream>,
    /// The GPU's number.
    pub gpu: usize,
    counter: &'static AtomicU32,
    value: Mutex<u32>,
}

impl SimOrder {
    pub fn new(kind: OrderKind, context: Arc<Context>, compute: Arc<ComputeStream>, gpu: usize) -> Self {
        // It starts just below its largest value, so that it wraps. It is never freed, since a delayed stream may still read it.
        let start = u32::MAX - 20;
        let counter = Box::leak(Box::new(AtomicU32::new(start)));
        Self { kind, context, compute, gpu, counter, value: Mutex::new(start) }
    }

    /// `cuCtxRecordEvent`, and a wait for it, which the crate itself does not use.
    fn after_context(&self, stream: &Stream) {
        type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
        type Release = unsafe extern "C" fn(c_int) -> c_int;
        type Push = unsafe extern "C" fn(*mut c_void) -> c_int;
        type Pop = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
        type Create = unsafe extern "C" fn(*mut *mut c_void, u32) -> c_int;
        type Record = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
        type Wait = unsafe extern "C" fn(CUstream, *mut c_void, u32) -> c_int;
        let (mut context, mut event) = (std::ptr::null_mut(), std::ptr::null_mut());
        let gpu = c_int::try_from(self.gpu).unwrap();
        // SAFETY: the stand-in has these functions, of these types; its events are never freed.
        let codes = unsafe {
            [
                in_driver::<Retain>("cuDevicePrimaryCtxRetain")(&mut context, gpu),
                in_driver::<Push>("cuCtxPushCurrent_v2")(context),
                in_driver::<Create>("cuEventCreate")(&mut event, 2),
                in_driver::<Record>("cuCtxRecordEvent")(context, event),
                in_driver::<Wait>("cuStreamWaitEvent")(stream.raw(), event, 0),
                in_driver::<Pop>("cuCtxPopCurrent_v2")(&mut context),
                in_driver::<Release>("cuDevicePrimaryCtxRelease_v2")(gpu),
            ]
        };
        assert_eq!(codes, [0; 7]);
    }
}

impl StreamOrder for SimOrder {
    fn comm_after_compute(&self, stream: &Stream) -> Result<(), Error> {
        match self.kind {
            OrderKind::Host => self.compute.stream.synchronize_within(SOON),
            OrderKind::WholeContext => {
                self.after_context(stream);
                Ok(())
            }
            OrderKind::Counter => {
                let mut value = self.value.lock().unwrap();
                *value = value.wrapping_add(1);
                let (counter, next) = (self.counter, *value);
                self.compute.run(move || counter.store(next, SeqCst));
                // SAFETY: the counter is never freed.
                unsafe { stream.wait_value32(self.counter.as_ptr() as u64, next) }
            }
        }
    }

    fn compute_after_comm(&self, done: &Event) -> Result<(), Error> {
        match self.kind {
            OrderKind::Host => Ok(()),
            _ => self.context.wait_event(done),
        }
    }

    fn is_blocking(&self) -> bool {
        self.kind == OrderKind::Host
    }
}
