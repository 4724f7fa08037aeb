//! The functions of `calls.c`.

use std::ffi::{c_char, c_int, c_void};

/// The numbers that MPI adds or compares; all else it moves as bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum MpiDtype {
    F32 = 1,
    F64 = 2,
    U64 = 3,
}

/// A reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Op {
    Sum = 0,
    Max = 1,
}

unsafe extern "C" {
    pub fn brigade_mpi_init(level: *mut c_int) -> c_int;
    pub fn brigade_mpi_is_initialized(flag: *mut c_int) -> c_int;
    pub fn brigade_mpi_finalize() -> c_int;
    pub fn brigade_mpi_version(text: *mut c_char, size: c_int, length: *mut c_int) -> c_int;
    pub fn brigade_mpi_error_string(
        error: c_int,
        text: *mut c_char,
        size: c_int,
        length: *mut c_int,
    ) -> c_int;
    pub fn brigade_mpi_world(comm: *mut u64, rank: *mut c_int, size: *mut c_int) -> c_int;
    pub fn brigade_mpi_split(comm: u64, color: c_int, key: c_int, part: *mut u64) -> c_int;
    pub fn brigade_mpi_all_reduce(
        comm: u64,
        buffer: *mut c_void,
        count: c_int,
        number: MpiDtype,
        op: Op,
        request: *mut u64,
    ) -> c_int;
    pub fn brigade_mpi_reduce_scatter(
        comm: u64,
        from: *const c_void,
        into: *mut c_void,
        count: c_int,
        number: MpiDtype,
        request: *mut u64,
    ) -> c_int;
    pub fn brigade_mpi_all_gather(comm: u64, buffer: *mut c_void, bytes: i64, request: *mut u64) -> c_int;
    pub fn brigade_mpi_all_gather_v(
        comm: u64,
        buffer: *mut c_void,
        counts: *const c_int,
        places: *const c_int,
        request: *mut u64,
    ) -> c_int;
    pub fn brigade_mpi_broadcast(
        comm: u64,
        buffer: *mut c_void,
        count: c_int,
        root: c_int,
        request: *mut u64,
    ) -> c_int;
    pub fn brigade_mpi_send(
        comm: u64,
        from: *const c_void,
        count: c_int,
        to: c_int,
        tag: c_int,
        request: *mut u64,
    ) -> c_int;
    pub fn brigade_mpi_receive(
        comm: u64,
        into: *mut c_void,
        count: c_int,
        from: c_int,
        tag: c_int,
        request: *mut u64,
    ) -> c_int;
    pub fn brigade_mpi_test(request: *mut u64, done: *mut c_int) -> c_int;
}
