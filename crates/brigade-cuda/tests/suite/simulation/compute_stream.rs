//! The stream that a rank computes on. Its kernels are host functions that the stand-in runs.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use brigade_cuda::{Context, Stream};
use cudarc::driver::sys::CUstream;

use super::memory_pool::Address;
use crate::harness::in_driver;

/// The expected content of memory: element `i` is `first + i * step`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    pub first: i64,
    pub step: i64,
}

impl Numbers {
    pub fn at(self, index: usize) -> i64 {
        self.first.wrapping_add(self.step.wrapping_mul(index as i64))
    }

    pub fn plus(self, other: Self) -> Self {
        Self { first: self.first.wrapping_add(other.first), step: self.step.wrapping_add(other.step) }
    }
}

/// A stream, and what its kernels have found.
pub struct ComputeStream {
    pub stream: Stream,
    found: Arc<Found>,
}

/// The reads that kernels have checked.
#[derive(Default)]
pub struct Found {
    wrong: Mutex<Vec<String>>,
    checked: AtomicUsize,
}

/// A kernel: checks that its inputs hold what they should, then writes its outputs.
pub struct Kernel {
    pub name: String,
    pub reads: Vec<(Address, Numbers)>,
    pub writes: Vec<(Address, Numbers)>,
    pub takes: Duration,
}

type Launch = unsafe extern "C" fn(CUstream, unsafe extern "C" fn(*mut c_void), *mut c_void) -> c_int;

impl ComputeStream {
    pub fn new(context: &Arc<Context>) -> Self {
        Self { stream: Stream::new(context).unwrap(), found: Arc::default() }
    }

    /// Enqueues a function.
    pub fn run(&self, work: impl FnOnce() + Send + 'static) {
        let work: Box<dyn FnOnce() + Send> = Box::new(work);
        let work = Box::into_raw(Box::new(work));
        // SAFETY: the function has this type, and takes the box once.
        let code = unsafe { in_driver::<Launch>("cuLaunchHostFunc")(self.stream.raw(), call, work.cast()) };
        assert_eq!(code, 0);
    }

    pub fn launch(&self, kernel: Kernel) {
        let found = self.found.clone();
        self.run(move || {
            let Kernel { name, reads, writes, takes } = kernel;
            let look = |when: &str| {
                reads.iter().enumerate().for_each(|(index, read)| found.check(&name, when, index, *read))
            };
            look("at its beginning");
            std::thread::sleep(takes);
            look("at its end");
            writes.iter().for_each(|(place, numbers)| place.fill(|index| numbers.at(index)));
        });
    }

    /// How many reads have been checked so far, and what was wrong.
    pub fn found(&self) -> (usize, Vec<String>) {
        (self.found.checked.load(SeqCst), self.found.wrong.lock().unwrap().clone())
    }
}

impl Found {
    fn check(&self, name: &str, when: &str, index: usize, (place, numbers): (Address, Numbers)) {
        let read = place.read();
        self.checked.fetch_add(1, SeqCst);
        if let Some(at) = read.iter().enumerate().position(|(at, value)| *value != numbers.at(at)) {
            let (value, wanted) = (read[at], numbers.at(at));
            let text =
                format!("{name}, {when}: element {at} of input {index} is {value:#x}, not {wanted:#x}");
            self.wrong.lock().unwrap().push(text);
        }
    }
}

unsafe extern "C" fn call(work: *mut c_void) {
    // SAFETY: made by `run`, and passed here once.
    let work = unsafe { Box::from_raw(work.cast::<Box<dyn FnOnce() + Send>>()) };
    work();
}
