//! The flight recorder: the last operations of each rank, and what they say when a world has failed.
//!
//! Every rank records its operations: the last [`MAX_OPERATIONS`] of all its groups, and all that are in flight.
//! [`Group::flight_recorder`](crate::Group::flight_recorder) gives a handle, and [`FlightRecorder::write`] writes one file per
//! rank. [`read()`] reads the files, and [`diagnose`] says in one line which rank missed which operation. Missing records are
//! no obstacle: a rank that was killed leaves no file, and of operations older than a record only the number is known.

mod busy_time;
mod diagnosis;
mod external;
pub(crate) mod fuzz;
mod rank_status;
mod record;
mod recorder;
mod table;
mod wait_graph;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use diagnosis::{FailureKind, FailureReport, diagnose};
pub use external::{ExternalOp, ExternalRecorder};
pub(crate) use rank_status::RankStatus;
pub use record::{Entry, FirstFailure, FlightRecord, GroupRecord, State, Transfers, VERSION, Waiting, read};
pub(crate) use recorder::{EntryId, Recorder};
pub use table::table;
pub(crate) use wait_graph::{diagnose_stall, unresponsive};

use crate::Result;
use crate::fault::Fault;

/// How many operations a rank's record keeps: the last ones, and up to as many older ones that are still in flight.
pub const MAX_OPERATIONS: usize = 2000;

/// How many groups a record keeps; older ones are dropped.
pub const MAX_GROUPS: usize = 1024;

/// The longest file that is read, in bytes.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

/// How long the threads that drive operations have to record what they wait for. They only have to wake up.
pub(crate) const STATUS_DELAY: Duration = Duration::from_millis(100);

/// One rank's recorder. It outlives the group that gave it, and its world. Clones are handles of the same recorder.
#[derive(Clone)]
pub struct FlightRecorder {
    recorder: Arc<Recorder>,
    fault: Arc<Fault>,
}

impl fmt::Debug for FlightRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlightRecorder(rank {} of {})", self.recorder.rank, self.recorder.world_size)
    }
}

impl FlightRecorder {
    pub(crate) fn new(recorder: Arc<Recorder>, fault: Arc<Fault>) -> Self {
        Self { recorder, fault }
    }

    /// The last operations of this rank. If nothing has failed and operations are in flight, this takes a tenth of a second, to
    /// find out what they wait for.
    pub fn record(&self) -> FlightRecord {
        let Self { recorder, fault } = self;
        let mut read = recorder.read();
        if fault.get().is_none() && read.1.iter().any(|entry| entry.finished.is_none()) {
            recorder.request_status();
            fault.wake_all();
            std::thread::sleep(STATUS_DELAY);
            read = recorder.read();
        }
        let (mut groups, mut entries) = read;
        let dropped = groups.len().saturating_sub(MAX_GROUPS);
        groups.drain(..dropped);
        entries.retain(|entry| entry.group >= dropped);
        entries.iter_mut().for_each(|entry| entry.group -= dropped);
        let failure = fault.get().and_then(|failure| {
            let error = fault.error_for(recorder.rank)?;
            let (rank, root) = (failure.origin, error.root().to_vec());
            Some(FirstFailure { rank, root, text: error.to_string() })
        });
        let began_at = recorder.began_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        FlightRecord {
            version: VERSION,
            rank: recorder.rank,
            world_size: recorder.world_size,
            restart: recorder.restart,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            began_at: began_at.as_micros() as u64,
            recorded: recorder.micros(Instant::now()),
            failure,
            groups,
            entries,
        }
    }

    /// When this rank's world began, to which the times of entries relate: by the clock of the process, and by its host's.
    pub fn began(&self) -> (Instant, SystemTime) {
        (self.recorder.began, self.recorder.began_at)
    }

    /// How long at least one collective of this rank was under way so far, in any of its groups: from when it was the oldest of its
    /// queue until it was complete, with the wait for ranks that came later. Of another library's collectives, from when they were
    /// [recorded](ExternalRecorder::begin). Transfers do not count.
    pub fn collective_time(&self) -> Duration {
        self.recorder.collective_time()
    }

    /// The groups of this rank, and those of its last [`MAX_OPERATIONS`] operations that were called at `since` or later, with how far each has progressed.
    pub fn operations_since(&self, since: Instant) -> (Vec<GroupRecord>, Vec<Entry>) {
        let since = self.recorder.micros(since);
        let (groups, mut entries) = self.recorder.read();
        entries.retain(|entry| entry.called >= since);
        (groups, entries)
    }

    /// Writes [`record`](Self::record) as JSON to a file in a folder that exists. The file is complete or absent.
    ///
    /// # Errors
    /// [`Error::FlightRecord`](crate::Error::FlightRecord) if it cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        record::write(&self.record(), path)
    }
}
