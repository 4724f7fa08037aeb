//! What ranks agree on before they form a communicator.

use std::ffi::c_char;

use cudarc::nccl::sys::ncclUniqueId;

use crate::error::Error;
use crate::nccl::{Nccl, SUCCESS};

/// The name of a communicator to be, and where its ranks meet. Rank 0 makes it and gives it to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Id(pub(crate) ncclUniqueId);

impl Id {
    /// Its size in bytes.
    pub const BYTES: usize = 128;

    /// A new one. NCCL begins to listen for the others on an interface of this host (`NCCL_SOCKET_IFNAME`).
    ///
    /// # Errors
    /// [`Error::Nccl`].
    pub fn new(nccl: &'static Nccl) -> Result<Self, Error> {
        let mut id = ncclUniqueId { internal: [0; Self::BYTES] };
        // SAFETY: writes one id.
        let code = unsafe { (nccl.calls.get_unique_id)(&mut id) };
        if code == SUCCESS {
            return Ok(Self(id));
        }
        let (name, text) = nccl.describe(code);
        let (operation, group) = ("opening a place to meet".to_owned(), "all ranks".to_owned());
        Err(Error::Nccl { call: "ncclGetUniqueId", name, text, operation, group })
    }

    /// As it is sent to other ranks.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        self.0.internal.map(|c| c as u8)
    }

    /// What [`to_bytes`](Self::to_bytes) gave on rank 0.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(ncclUniqueId { internal: bytes.map(|byte| byte as c_char) })
    }
}
