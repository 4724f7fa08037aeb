//! A number in the GPU's memory that one of Burn's streams raises, and others wait for.

use burn::tensor::{Bytes, Device};
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::server::Handle;

use crate::Error;
use crate::tensors::flat_tensor::DeviceMemory;

/// A number in the GPU's memory that one of Burn's streams raises, and others wait for.
pub(crate) struct Counter {
    pub(crate) handle: Handle,
    memory: DeviceMemory,
    value: u32,
}

impl Counter {
    /// At 0. It waits for the device.
    pub(crate) fn new(client: &Client, device: &Device) -> Result<Self, Error> {
        let handle = client.create(word(0));
        let memory = DeviceMemory::of_handle(client, &handle).map_err(compute_error)?;
        // The memory's old content could be mistaken for a later value of the counter.
        device.sync().map_err(compute_error)?;
        Ok(Self { handle, memory, value: 0 })
    }

    /// Where it is.
    pub(crate) fn address(&self) -> u64 {
        self.memory.address
    }

    /// Its next value, and that as bytes to be written.
    pub(crate) fn next(&mut self) -> (u32, Bytes) {
        self.value = self.value.wrapping_add(1);
        (self.value, word(self.value))
    }
}

fn word(value: u32) -> Bytes {
    Bytes::from_bytes_vec(value.to_ne_bytes().to_vec())
}

pub(crate) fn compute_error(error: impl ToString) -> Error {
    Error::Compute { reason: error.to_string() }
}
