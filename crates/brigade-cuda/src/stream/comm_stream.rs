//! A communicator and the stream that its operations run on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use brigade_comm::flight::ExternalRecorder;
use brigade_comm::{DType, OpType};

use super::nccl_work::NcclWork;
use super::rank::{Endpoint, RankState};
use crate::driver::{Event, Stream};
use crate::error::Error;
use crate::nccl::{Communicator, GroupCall};
use crate::polling::lock;
use crate::watchdog::{WatchedWork, WorkInfo};

/// A communicator and the stream that its operations run on, one after the other. Both end when the rank does.
pub struct CommStream {
    endpoint: Arc<Endpoint>,
    sequence: AtomicU64,
    flight: ExternalRecorder,
    rank: Arc<RankState>,
}

impl CommStream {
    /// A stream of `rank` for the operations of `communicator`, which are recorded in the flight recorder.
    ///
    /// # Errors
    /// If the driver cannot make a stream.
    pub fn new(
        rank: &Arc<RankState>,
        communicator: Communicator,
        flight: ExternalRecorder,
    ) -> Result<Self, Error> {
        rank.watchdog.register(&communicator);
        let stream = Stream::new(&rank.context)?;
        let endpoint = Arc::new(Endpoint { communicator, stream });
        rank.add_endpoint(endpoint.clone());
        Ok(Self { endpoint, sequence: AtomicU64::new(0), flight, rank: rank.clone() })
    }

    /// Aborts its communicator because the rank has failed.
    pub fn abort(&self, reason: &str) {
        self.endpoint.communicator.abort(reason);
    }

    /// What it shares with the rank's other communication streams.
    pub fn rank(&self) -> &Arc<RankState> {
        &self.rank
    }

    /// Enqueues an operation on `bytes` bytes of this rank, to run after everything that this thread has enqueued on the
    /// streams it computes on. `memory` owns whatever the operation reads and writes; it is dropped once everything that is
    /// computed later runs after the operation.
    ///
    /// # Errors
    /// If it cannot be enqueued. Then this rank has failed, and the others learn of it.
    pub fn start(
        &self,
        kind: OpType,
        (dtype, bytes): (DType, usize),
        memory: Box<dyn Send>,
        enqueue: impl FnOnce(&GroupCall<'_>),
    ) -> Result<NcclWork, Error> {
        let rank = &self.rank;
        rank.check()?;
        if !kind.is_receive() {
            rank.progress();
        }
        let Endpoint { communicator, stream } = &*self.endpoint;
        let enqueueing = lock(&rank.enqueueing);
        let timeout = rank.op_timeout();
        let start = || {
            rank.order.comm_after_compute(stream)?;
            let (ready, done) = (Event::new(&rank.context)?, Event::new(&rank.context)?);
            stream.record(&ready)?;
            communicator.enqueue(kind.name(), stream, timeout, enqueue)?;
            stream.record(&done)?;
            let done = Arc::new(done);
            let info = WorkInfo {
                name: kind.name(),
                group: communicator.group().to_owned(),
                sequence: self.sequence.fetch_add(1, Relaxed),
                bytes,
            };
            let handle = rank.watchdog.watch(WatchedWork {
                info,
                ready: Some(Arc::new(ready)),
                done: done.clone(),
                timeout,
                flight_entry: Some(self.flight.begin(kind, bytes as u64, dtype)),
            });
            Ok((done, handle))
        };
        let started = start();
        drop(enqueueing);
        match started {
            Ok((done, handle)) => {
                let work = NcclWork::new(rank.clone(), done, handle, memory);
                if rank.order.is_blocking() && !kind.is_transfer() {
                    work.block_host()?;
                }
                Ok(work)
            }
            Err(error) => {
                std::mem::forget(memory);
                rank.watchdog.fail_with(Error::clone(&error));
                Err(error)
            }
        }
    }
}
