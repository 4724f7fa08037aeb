//! The order between Burn's streams and those of NCCL, without stopping the host.
//!
//! Burn does not expose its streams (one for each thread that computes), so each direction is ordered in another way:
//!
//! - **NCCL after Burn.** A counter in the GPU's memory is written *through Burn*, on its stream, after everything that this
//!   thread has enqueued there; NCCL's stream waits until the counter has that value (`cuStreamWaitValue32`). An event of the whole
//!   context would also wait for NCCL's own operations in flight, and two ranks that each wait for something that the other has
//!   not started would wait forever.
//! - **Burn after NCCL.** An event on NCCL's stream, which the whole context waits for (`cuCtxWaitEvent`, driver 12.5 and later):
//!   everything that is enqueued on any of its streams later. That is the order of the program, in which nothing that follows the
//!   wait for an operation starts before it.
//!
//! So the dependencies on the GPU are a subset of those of a program that blocks at each wait. CUDA does not know about an order
//! that comes from a value in memory, and streams that share a hardware queue run in the order in which they were given work.
//! Therefore whatever NCCL's stream waits for is always handed to the driver before the wait itself, and ranks ask for many
//! queues ([`MAX_CONNECTIONS`]).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

use burn::tensor::{Bytes, Device, StreamId};
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::cuda::{CudaDevice, CudaRuntime};
use cubecl_runtime::runtime::Runtime;

use crate::polling::lock;
use crate::tensors::flat_tensor::DeviceMemory;
use crate::tensors::order::counter::{Counter, compute_error};
use crate::{Context, Error, Event, Stream, StreamOrder, driver};

/// The variable that sets how many hardware queues a GPU's streams share, and how many a rank should have.
pub(crate) const MAX_CONNECTIONS: (&str, usize) = ("CUDA_DEVICE_MAX_CONNECTIONS", 32);

/// How the two sides are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncMode {
    /// On the GPU, without blocking the host.
    Events,
    /// By blocking the host in each operation.
    Host,
}

/// The order between Burn and NCCL on one GPU.
pub(crate) struct BurnOrder {
    mode: SyncMode,
    context: Arc<Context>,
    device: Device,
    client: Client,
    /// A counter for each thread's stream: a counter that several streams write could go backwards.
    counters: Mutex<HashMap<StreamId, Counter>>,
}

impl BurnOrder {
    pub(crate) fn new(mode: SyncMode, context: Arc<Context>, index: usize) -> Result<Self, Error> {
        let mode = match mode {
            SyncMode::Events if !driver()?.has_context_events() => {
                tracing::warn!(
                    "the driver supports CUDA {} but not 12.5: the host will block in each of NCCL's operations",
                    driver()?.version_name()
                );
                SyncMode::Host
            }
            mode => mode,
        };
        let client = CudaRuntime::client(&CudaDevice::new(index));
        Ok(Self { mode, context, device: Device::cuda(index), client, counters: Mutex::default() })
    }

    /// Falls back to blocking the host if the driver cannot make a stream wait for a value.
    pub(crate) fn probed(mut self) -> Result<Self, Error> {
        if self.mode == SyncMode::Events
            && let Err(error) = self.raise_counter(&Stream::new(&self.context)?)
        {
            tracing::warn!("{error}: the host will block in each of NCCL's operations");
            self.mode = SyncMode::Host;
        }
        Ok(self)
    }

    /// A little memory of the GPU, filled with zeros.
    pub(crate) fn scratch(&self) -> Result<DeviceMemory, Error> {
        let handle = self.client.create(Bytes::from_bytes_vec(vec![0; 256]));
        let memory = DeviceMemory::of_handle(&self.client, &handle).map_err(compute_error)?;
        self.device.sync().map_err(compute_error)?;
        Ok(memory)
    }

    fn raise_counter(&self, stream: &Stream) -> Result<(), Error> {
        let mut counters = lock(&self.counters);
        let counter = match counters.entry(StreamId::current()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Counter::new(&self.client, &self.device)?),
        };
        let (value, bytes) = counter.next();
        self.client.write(&counter.handle, bytes);
        // Returns once the write has been handed to the driver, or with the reason why it could not be.
        self.client.check([&counter.handle]).map_err(compute_error)?;
        // SAFETY: the counter's memory lives as long as this, which outlives all operations.
        unsafe { stream.wait_value32(counter.address(), value) }
    }
}

impl StreamOrder for BurnOrder {
    fn comm_after_compute(&self, stream: &Stream) -> Result<(), Error> {
        match self.mode {
            SyncMode::Host => self.device.sync().map_err(compute_error),
            SyncMode::Events => self.raise_counter(stream),
        }
    }

    fn compute_after_comm(&self, done: &Event) -> Result<(), Error> {
        match self.mode {
            SyncMode::Host => Ok(()),
            SyncMode::Events => {
                // What this thread has given Burn so far need not wait, so it must reach the driver first.
                self.client.check([]).map_err(compute_error)?;
                self.context.wait_event(done)
            }
        }
    }

    fn is_blocking(&self) -> bool {
        self.mode == SyncMode::Host
    }
}
