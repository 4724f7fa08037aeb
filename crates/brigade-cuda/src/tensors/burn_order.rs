//! The order between Burn's streams and those of NCCL, without stopping the host.
//!
//! Burn does not show its streams (one for each thread that computes), so the two sides meet in two other ways:
//!
//! - **NCCL after Burn.** A counter in the GPU's memory is written *through Burn*, in its stream, after all that this thread
//!   has given it; NCCL's stream waits until it reads that number (`cuStreamWaitValue32`). An event of the whole context would
//!   also wait for NCCL's own operations that are under way, and two ranks that each wait for what the other has not begun
//!   would wait for ever.
//! - **Burn after NCCL.** An event in NCCL's stream, which the whole context waits for (`cuCtxWaitEvent`, driver 12.5 and
//!   later): all that is given to any of its streams later. That is the order of the program, in which nothing that comes
//!   after waiting for an operation begins before it.
//!
//! So on the GPU, what waits for what is a part of what a program that blocks at each wait would wait for. CUDA does not see the
//! order that a value in memory makes, and streams that share a hardware queue run in the order in which they were given work;
//! therefore what NCCL's stream waits for has always been handed to the driver before the wait is, and ranks ask for
//! many queues ([`QUEUES`]).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

use burn::tensor::{Bytes, Device, StreamId};
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::cuda::{CudaDevice, CudaRuntime};
use burn_cubecl::cubecl::server::Handle;
use cubecl_runtime::runtime::Runtime;

use super::flat_tensor::Pinned;
use crate::backoff::lock;
use crate::{Context, Error, Event, Order, Stream, driver};

/// The variable that says how many hardware queues a GPU's streams share, and how many a rank should have.
pub(crate) const QUEUES: (&str, usize) = ("CUDA_DEVICE_MAX_CONNECTIONS", 32);

/// How the two sides are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// On the GPU; the host goes on.
    Events,
    /// The host waits, each time.
    Host,
}

/// The order between Burn and NCCL on one GPU.
pub(crate) struct BurnOrder {
    mode: Mode,
    context: Arc<Context>,
    device: Device,
    client: Client,
    /// A counter for each thread's stream: one of several streams could overtake itself.
    counters: Mutex<HashMap<StreamId, Counter>>,
}

struct Counter {
    handle: Handle,
    memory: Pinned,
    value: u32,
}

impl BurnOrder {
    pub(crate) fn new(mode: Mode, context: Arc<Context>, index: usize) -> Result<Self, Error> {
        let mode = match mode {
            Mode::Events if !driver()?.has_context_events() => {
                tracing::warn!(
                    "the driver supports CUDA {} and not 12.5: the host waits for each of NCCL's operations",
                    driver()?.version_name()
                );
                Mode::Host
            }
            mode => mode,
        };
        let client = CudaRuntime::client(&CudaDevice::new(index));
        Ok(Self { mode, context, device: Device::cuda(index), client, counters: Mutex::default() })
    }

    /// Falls back to waiting on the host where the driver cannot make a stream wait for a value.
    pub(crate) fn probed(mut self) -> Result<Self, Error> {
        if self.mode == Mode::Events
            && let Err(error) = self.raise_counter(&Stream::new(&self.context)?)
        {
            tracing::warn!("{error}: the host waits for each of NCCL's operations");
            self.mode = Mode::Host;
        }
        Ok(self)
    }

    /// A little pinned memory, of zeros.
    pub(crate) fn scratch(&self) -> Result<Pinned, Error> {
        let handle = self.client.create(Bytes::from_bytes_vec(vec![0; 256]));
        let memory = Pinned::of_handle(&self.client, &handle).map_err(computing)?;
        self.device.sync().map_err(computing)?;
        Ok(memory)
    }

    fn raise_counter(&self, stream: &Stream) -> Result<(), Error> {
        let mut counters = lock(&self.counters);
        let counter = match counters.entry(StreamId::current()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.counter()?),
        };
        counter.value = counter.value.wrapping_add(1);
        self.client.write(&counter.handle, word(counter.value));
        // Comes back when the write has been given to the driver, and says if it could not be.
        self.client.check([&counter.handle]).map_err(computing)?;
        // SAFETY: the counter's memory is pinned, and lives as long as this, which outlives all operations.
        unsafe { stream.wait_value32(counter.memory.address, counter.value) }
    }

    fn counter(&self) -> Result<Counter, Error> {
        let handle = self.client.create(word(0));
        let memory = Pinned::of_handle(&self.client, &handle).map_err(computing)?;
        // What the memory held before could be taken for a number that is yet to come.
        self.device.sync().map_err(computing)?;
        Ok(Counter { handle, memory, value: 0 })
    }
}

impl Order for BurnOrder {
    fn after_compute(&self, stream: &Stream) -> Result<(), Error> {
        match self.mode {
            Mode::Host => self.device.sync().map_err(computing),
            Mode::Events => self.raise_counter(stream),
        }
    }

    fn before_compute(&self, done: &Event) -> Result<(), Error> {
        match self.mode {
            Mode::Host => Ok(()),
            Mode::Events => {
                // What this thread has given Burn before does not have to wait: let it reach the driver first.
                self.client.check([]).map_err(computing)?;
                self.context.wait_event(done)
            }
        }
    }

    fn is_synchronous(&self) -> bool {
        self.mode == Mode::Host
    }
}

fn computing(error: impl ToString) -> Error {
    Error::Compute { reason: error.to_string() }
}

fn word(value: u32) -> Bytes {
    Bytes::from_bytes_vec(value.to_ne_bytes().to_vec())
}
