//! Where a backend's tensors are, as the host sees it.

use burn::tensor::{Bytes, Device};

/// Where a backend's tensors are, as the host sees it.
#[derive(Debug, Clone, Copy)]
pub enum Placement {
    /// In host memory: tensors can be views of memory that collectives write.
    Host,
    /// In memory of a device's own.
    Device {
        /// Gives a zeroed buffer of that many bytes on the host that the device copies from quickly: pinned, where there is such
        /// memory.
        buffer: fn(&Device, usize) -> Bytes,
    },
}

impl Placement {
    /// A device whose driver knows no special host memory.
    pub const DEVICE: Self = Self::Device { buffer: |_, bytes| plain(bytes) };

    pub(crate) fn buffer(self, device: &Device, bytes: usize) -> Bytes {
        match self {
            Self::Host => plain(bytes),
            Self::Device { buffer } => buffer(device, bytes),
        }
    }
}

fn plain(bytes: usize) -> Bytes {
    Bytes::from_bytes_vec(vec![0; bytes])
}
