//! Memory that two ranks share: anonymous within a process, an anonymous file between processes.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use memmap2::{MmapMut, MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};

use crate::error::Error;

/// A mapped region of zeroed memory. A file behind it has no name and goes away with the last process that holds
/// it, however that ends; it is sealed to its size, so that no peer can take mapped pages away.
pub(crate) struct Segment {
    memory: MmapRaw,
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

fn failed(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |error| Error::system(what, error)
}

impl Segment {
    /// Memory for the threads of this process.
    pub(crate) fn anonymous(bytes: usize) -> Result<Self, Error> {
        let memory = MmapMut::map_anon(bytes).map_err(failed("map memory for a ring"))?;
        Ok(Self { memory: memory.into() })
    }

    /// Memory that another process can map through the descriptor.
    pub(crate) fn file(bytes: usize) -> Result<(Self, OwnedFd), Error> {
        let what = "make shared memory";
        let file = memfd_create("brigade", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|error| failed(what)(error.into()))?;
        ftruncate(&file, bytes as u64).map_err(|error| failed(what)(error.into()))?;
        fcntl_add_seals(&file, SEALS).map_err(|error| failed(what)(error.into()))?;
        Ok((Self::map(&file, bytes)?, file))
    }

    /// Maps what another process made with [`file`](Self::file), after checking that it is such a file.
    pub(crate) fn open(file: &OwnedFd, bytes: usize) -> Result<Self, Error> {
        let what = "open a peer's shared memory";
        let seals = fcntl_get_seals(file).map_err(|error| failed(what)(error.into()))?;
        let size = fstat(file).map_err(|error| failed(what)(error.into()))?.st_size;
        if !seals.contains(SEALS) || size != bytes as i64 {
            let reason = format!("it has {size} bytes and seals {seals:?} instead of {bytes} and {SEALS:?}");
            return Err(Error::System { what, reason });
        }
        Self::map(file, bytes)
    }

    fn map(file: &OwnedFd, bytes: usize) -> Result<Self, Error> {
        let memory = MmapOptions::new().len(bytes).map_raw(file.as_fd().as_raw_fd());
        Ok(Self { memory: memory.map_err(failed("map shared memory"))? })
    }

    /// The first of [`len`](Self::len) bytes, at the start of a page. They can be read and written while this lives; another
    /// process may do so too, at any moment.
    pub(crate) fn start(&self) -> *mut u8 {
        self.memory.as_mut_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }
}
