//! The id that ranks agree on before they form a communicator.

use std::ffi::c_char;

use cudarc::nccl::sys::ncclUniqueId;

use super::library::{Nccl, SUCCESS};
use crate::error::Error;

/// Identifies a communicator that is about to be made, and says where its ranks connect. Rank 0 makes it and sends it to the
/// others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub(super) ncclUniqueId);

impl UniqueId {
    /// Its size in bytes.
    pub const BYTES: usize = 128;

    /// A new one. NCCL starts to listen for the other ranks on an interface of this host (`NCCL_SOCKET_IFNAME`).
    ///
    /// # Errors
    /// [`Error::Nccl`].
    pub fn new(nccl: &'static Nccl) -> Result<Self, Error> {
        let mut id = ncclUniqueId { internal: [0; Self::BYTES] };
        // SAFETY: writes one id.
        let code = unsafe { (nccl.functions.get_unique_id)(&mut id) };
        if code == SUCCESS {
            return Ok(Self(id));
        }
        let (name, text) = nccl.describe(code);
        let (operation, group) = ("listening for the other ranks".to_owned(), "all ranks".to_owned());
        Err(Error::Nccl { call: "ncclGetUniqueId", name, text, operation, group })
    }

    /// The bytes to send to other ranks.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        self.0.internal.map(|c| c as u8)
    }

    /// The id whose [`to_bytes`](Self::to_bytes) rank 0 sent.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(ncclUniqueId { internal: bytes.map(|byte| byte as c_char) })
    }
}
