//! MPI's calls: a communicator starts operations on memory, and requests say when they are complete. All of it belongs to one thread,
//! the one that initialises MPI.

mod ffi;

use std::ffi::{c_char, c_int};
use std::fmt;

pub(crate) use ffi::{MpiDtype, Op};

/// The most bytes that one message or broadcast carries: MPI counts in `int`.
pub(crate) const MAX_COUNT: usize = 1 << 30;

/// Messages of this crate, by what they carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Tag {
    /// The header of a transfer.
    Header = 0,
    /// The bytes of a transfer.
    Payload = 1,
    /// A part of a collective.
    Part = 2,
}

/// MPI's answer to a call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) call: &'static str,
    pub(crate) reason: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.reason)
    }
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

fn check(call: &'static str, code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the function writes at most as many bytes as it is told.
    let said = text(|text, size, length| unsafe { ffi::brigade_mpi_error_string(code, text, size, length) });
    Err(Failure { call, reason: said.unwrap_or_else(|_| format!("error {code}")) })
}

/// A text that MPI writes, or its error code.
fn text(write: impl FnOnce(*mut c_char, c_int, *mut c_int) -> c_int) -> std::result::Result<String, c_int> {
    const SIZE: usize = 1024;
    let (mut bytes, mut length) = ([0u8; SIZE], 0);
    match write(bytes.as_mut_ptr().cast(), SIZE as c_int, &mut length) {
        0 => Ok(String::from_utf8_lossy(&bytes[..usize::try_from(length).unwrap_or(0).min(SIZE)])
            .trim_end_matches(['\0', '\n'])
            .into()),
        code => Err(code),
    }
}

/// MPI's levels of support for threads, from the least.
pub(crate) const LEVELS: [&str; 4] =
    ["MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED", "MPI_THREAD_SERIALIZED", "MPI_THREAD_MULTIPLE"];

/// Whether this process has initialised MPI already.
pub(crate) fn is_initialized() -> Result<bool> {
    let mut flag = 0;
    // SAFETY: it may be called at any time.
    check("MPI_Initialized", unsafe { ffi::brigade_mpi_is_initialized(&mut flag) })?;
    Ok(flag != 0)
}

/// Initialises MPI for calls of this thread, and gives the support for threads that the library offers: an index of [`LEVELS`].
/// It waits for the other processes.
pub(crate) fn init() -> Result<usize> {
    let mut level = 0;
    // SAFETY: this is the only call, which `is_initialized` has shown.
    check("MPI_Init_thread", unsafe { ffi::brigade_mpi_init(&mut level) })?;
    Ok(level as usize)
}

/// Ends the use of MPI by this process. It waits for the other processes.
pub(crate) fn finalize() -> Result<()> {
    // SAFETY: this is the thread that initialised MPI, and it makes no call afterwards.
    check("MPI_Finalize", unsafe { ffi::brigade_mpi_finalize() })
}

/// The first line of the library's name and version.
pub(crate) fn version() -> String {
    // SAFETY: it may be called at any time, and writes at most as many bytes as it is told.
    let whole = text(|text, size, length| unsafe { ffi::brigade_mpi_version(text, size, length) });
    let whole = whole.unwrap_or_else(|_| "an unknown MPI".into());
    let line = whole.lines().next().unwrap_or_default();
    let name = line.split(", package").next().unwrap_or_default();
    name.replace('\t', " ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A communicator. It is freed with the process's use of MPI.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Communicator(u64);

/// An operation that MPI has begun. The memory that was given stays where it is, and is used by nobody else, until the request
/// is complete.
#[derive(Debug)]
pub(crate) struct Request {
    call: &'static str,
    handle: u64,
}

impl Request {
    /// Makes progress, and says whether the operation is complete; afterwards it is not asked again.
    pub(crate) fn is_complete(&mut self) -> Result<bool> {
        let mut done = 0;
        // SAFETY: the request has not been complete, so that MPI knows it.
        check(self.call, unsafe { ffi::brigade_mpi_test(&mut self.handle, &mut done) })?;
        Ok(done != 0)
    }
}

/// Starts an operation.
fn start(call: &'static str, begin: impl FnOnce(*mut u64) -> c_int) -> Result<Request> {
    let mut handle = 0;
    check(call, begin(&mut handle))?;
    Ok(Request { call, handle })
}

/// All methods that take memory are `unsafe`: it is valid, and used as [`Request`] says.
impl Communicator {
    /// All processes, with this one's rank, and their number.
    pub(crate) fn world() -> Result<(Self, usize, usize)> {
        let (mut handle, mut rank, mut size) = (0, 0, 0);
        // SAFETY: MPI is initialised.
        check("MPI_Comm_dup", unsafe { ffi::brigade_mpi_world(&mut handle, &mut rank, &mut size) })?;
        Ok((Self(handle), rank as usize, size as usize))
    }

    /// The processes that give the same color, ordered by key, then by rank. It waits for all others.
    pub(crate) fn split(self, color: i32, key: i32) -> Result<Self> {
        let mut handle = 0;
        // SAFETY: the communicator is MPI's.
        check("MPI_Comm_split", unsafe { ffi::brigade_mpi_split(self.0, color, key, &mut handle) })?;
        Ok(Self(handle))
    }

    /// Reduces `count` numbers of all ranks, in place.
    pub(crate) unsafe fn all_reduce(
        self,
        buffer: *mut u8,
        count: usize,
        number: MpiDtype,
        op: Op,
    ) -> Result<Request> {
        // SAFETY: the caller vouches for the memory.
        start("MPI_Iallreduce", |request| unsafe {
            ffi::brigade_mpi_all_reduce(self.0, buffer.cast(), count as c_int, number, op, request)
        })
    }

    /// Sums slices of `count` numbers of all ranks; each gets its own into other memory.
    pub(crate) unsafe fn reduce_scatter(
        self,
        from: *const u8,
        into: *mut u8,
        count: usize,
        number: MpiDtype,
    ) -> Result<Request> {
        // SAFETY: the caller vouches for the memory.
        start("MPI_Ireduce_scatter_block", |request| unsafe {
            ffi::brigade_mpi_reduce_scatter(self.0, from.cast(), into.cast(), count as c_int, number, request)
        })
    }

    /// Gathers a slice of `bytes` bytes of each rank, in place.
    pub(crate) unsafe fn all_gather(self, buffer: *mut u8, bytes: usize) -> Result<Request> {
        // SAFETY: the caller vouches for the memory.
        start("MPI_Iallgather", |request| unsafe {
            ffi::brigade_mpi_all_gather(self.0, buffer.cast(), bytes as i64, request)
        })
    }

    /// The same with slices of their own lengths and places, in bytes from the buffer's start, of which the lists live as long as
    /// the memory.
    pub(crate) unsafe fn all_gather_v(
        self,
        buffer: *mut u8,
        counts: &[c_int],
        places: &[c_int],
    ) -> Result<Request> {
        // SAFETY: the caller vouches for the memory.
        start("MPI_Iallgatherv", |request| unsafe {
            ffi::brigade_mpi_all_gather_v(self.0, buffer.cast(), counts.as_ptr(), places.as_ptr(), request)
        })
    }

    /// Gives the root's bytes to all, at most [`MAX_COUNT`].
    pub(crate) unsafe fn broadcast(self, buffer: *mut u8, bytes: usize, root: usize) -> Result<Request> {
        // SAFETY: the caller vouches for the memory.
        start("MPI_Ibcast", |request| unsafe {
            ffi::brigade_mpi_broadcast(self.0, buffer.cast(), bytes as c_int, root as c_int, request)
        })
    }

    /// Sends bytes to a rank, in messages of at most [`MAX_COUNT`].
    pub(crate) unsafe fn send(
        self,
        from: *const u8,
        bytes: usize,
        to: usize,
        tag: Tag,
        requests: &mut Vec<Request>,
    ) -> Result<()> {
        for start_at in (0..bytes).step_by(MAX_COUNT) {
            let count = (bytes - start_at).min(MAX_COUNT) as c_int;
            // SAFETY: the caller vouches for the memory.
            requests.push(start("MPI_Isend", |request| unsafe {
                let from = from.add(start_at).cast();
                ffi::brigade_mpi_send(self.0, from, count, to as c_int, tag as c_int, request)
            })?);
        }
        Ok(())
    }

    /// Receives what a rank sends by [`send`](Self::send).
    pub(crate) unsafe fn receive(
        self,
        into: *mut u8,
        bytes: usize,
        from: usize,
        tag: Tag,
        requests: &mut Vec<Request>,
    ) -> Result<()> {
        for start_at in (0..bytes).step_by(MAX_COUNT) {
            let count = (bytes - start_at).min(MAX_COUNT) as c_int;
            // SAFETY: the caller vouches for the memory.
            requests.push(start("MPI_Irecv", |request| unsafe {
                let into = into.add(start_at).cast();
                ffi::brigade_mpi_receive(self.0, into, count, from as c_int, tag as c_int, request)
            })?);
        }
        Ok(())
    }
}
