//! What a flight record holds, and its file.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use brigade_files::write_atomic;
use brigade_sorted::SortedMap;
use serde::{Deserialize, Serialize};

use super::{MAX_FILE_BYTES, MAX_GROUPS, MAX_OPERATIONS};
use crate::error::{Error, StalledRank};
use crate::limits::MAX_WORLD_SIZE;
use crate::op::call::{Call, OpType};

/// Version of the file's format.
pub const VERSION: u32 = 1;

/// What one rank did last: the content of one file. Ranks are those of the world; times are microseconds since the
/// rank's world began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlightRecord {
    /// [`VERSION`].
    pub version: u32,
    /// The rank.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// Which [start](crate::Join::restart) of the world this was.
    pub restart: u32,
    /// The name of its host.
    pub host: String,
    /// When its world began: microseconds since 1970, by its host's clock.
    pub began_at: u64,
    /// When this was recorded.
    pub recorded: u64,
    /// The first failure that it knows of.
    pub failure: Option<FirstFailure>,
    /// Its groups, in the order in which they were made.
    pub groups: Vec<GroupRecord>,
    /// Its last [`MAX_OPERATIONS`] operations and older ones that were in flight, in the order of their calls.
    pub entries: Vec<Entry>,
}

/// The first failure of a world, as one rank knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstFailure {
    /// The rank where it happened.
    pub rank: usize,
    /// The stalled ranks that caused it, if it is a timeout.
    pub root: Vec<StalledRank>,
    /// Its error on the rank that recorded it.
    pub text: String,
}

/// A group that a rank is in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    /// Its number, which is the same on all members.
    pub number: u64,
    /// Its name.
    pub name: String,
    /// Its members in their order.
    pub members: Vec<usize>,
    /// How many collectives the rank has called.
    pub collectives: u64,
    /// How many transfers it has called, by the peer's rank.
    pub transfers: SortedMap<usize, Transfers>,
}

/// Transfers with one peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfers {
    /// Calls of `send`.
    pub sends: u64,
    /// Calls of `recv` and `recv_message`.
    pub receives: u64,
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The number of operations that the rank called before it.
    pub id: u64,
    /// The place of its group in [`FlightRecord::groups`].
    pub group: usize,
    /// The operation, its sequence number, type, reduction, root and bytes.
    pub call: Call,
    /// The other rank of a transfer.
    pub peer: Option<usize>,
    /// How far it came.
    pub state: State,
    /// When it was called.
    pub called: u64,
    /// When it became the oldest of its queue.
    pub started: Option<u64>,
    /// When it was complete or failed.
    pub finished: Option<u64>,
    /// Payload bytes sent. Counted when it ends.
    pub sent: u64,
    /// Payload bytes received. Counted when it ends.
    pub received: u64,
    /// What it was waiting for at the last status request; a failure makes one.
    pub waiting: Option<Box<Waiting>>,
}

/// How far an operation came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It was called and waited for earlier ones.
    Called,
    /// It was in progress.
    Started,
    /// It is complete.
    Done,
    /// It ended with an error, most often another rank's.
    Failed,
}

/// What an operation waited for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Whether a thread of the rank was waiting for it; if not, it ran while the rank computed.
    pub awaited: bool,
    /// Whether its deadline had passed.
    pub overdue: bool,
    /// The ranks that had not called it.
    pub absent: Vec<usize>,
    /// The ranks that had, but from which something was missing.
    pub stalled: Vec<usize>,
}

impl GroupRecord {
    pub(crate) fn new(number: u64, name: &str, members: &[usize]) -> Self {
        Self {
            number,
            name: name.into(),
            members: members.into(),
            collectives: 0,
            transfers: SortedMap::new(),
        }
    }

    /// Counts a call.
    pub(crate) fn count(&mut self, call: &Call, peer: Option<usize>) {
        match peer {
            None => self.collectives += 1,
            Some(peer) => {
                let transfers = self.transfers.entry(peer).or_default();
                let count = match call.operation {
                    OpType::Send => &mut transfers.sends,
                    _ => &mut transfers.receives,
                };
                *count += 1;
            }
        }
    }
}

impl Entry {
    /// Describes the operation to a reader who knows the rank.
    pub(super) fn describe(&self, groups: &[GroupRecord]) -> String {
        let name = groups.get(self.group).map_or("?", |group| &group.name);
        let direction = if self.call.operation.is_receive() { "from" } else { "to" };
        match self.peer {
            Some(peer) => format!("{} {direction} rank {peer} in group \"{name}\"", self.call),
            None => format!("{} of group \"{name}\"", self.call),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Called => "called",
            State::Started => "started",
            State::Done => "done",
            State::Failed => "failed",
        })
    }
}

/// Writes a record so that the file is either complete or absent.
pub(super) fn write(record: &FlightRecord, path: &Path) -> Result<(), Error> {
    let bytes = serde_json::to_vec(record).map_err(io::Error::from);
    bytes.and_then(|bytes| write_atomic(path, &bytes)).map_err(|error| failed(path, error.to_string()))
}

/// Reads a rank's record. At most [`MAX_FILE_BYTES`] are read, and memory of a small multiple of the file's size is used.
///
/// # Errors
/// [`Error::FlightRecord`] for a file that cannot be read, is too long, of another [`VERSION`], or not a record.
pub fn read(path: &Path) -> Result<FlightRecord, Error> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| failed(path, error.to_string()))?;
    parse(&bytes).map_err(|reason| failed(path, reason))
}

fn failed(path: &Path, reason: String) -> Error {
    Error::FlightRecord { path: path.display().to_string(), reason }
}

/// Decodes a file's content and checks what the rest of this module relies on.
pub(super) fn parse(bytes: &[u8]) -> Result<FlightRecord, String> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("it is longer than {MAX_FILE_BYTES} bytes"));
    }
    let nonsense = |error: serde_json::Error| format!("it is not a flight record: {error}");
    let Versioned { version } = serde_json::from_slice(bytes).map_err(nonsense)?;
    if version != VERSION {
        return Err(format!("it has format version {version}, but this program reads {VERSION}"));
    }
    let record: FlightRecord = serde_json::from_slice(bytes).map_err(nonsense)?;
    let FlightRecord { rank, world_size, groups, entries, .. } = &record;
    let is_rank = |rank: &usize| rank < world_size;
    let known = |ranks: &[usize]| ranks.len() <= *world_size && ranks.iter().all(is_rank);
    let sound = (1..=MAX_WORLD_SIZE).contains(world_size)
        && is_rank(rank)
        && groups.len() <= MAX_GROUPS
        && groups.iter().all(|group| known(&group.members) && group.transfers.keys().all(is_rank))
        && entries.len() <= 2 * MAX_OPERATIONS
        && entries.iter().all(|entry| {
            entry.group < groups.len()
                && entry.peer.iter().all(is_rank)
                && entry.call.root.iter().all(is_rank)
                && entry.call.operation.is_transfer() == entry.peer.is_some()
                && entry.waiting.iter().all(|waiting| known(&waiting.absent) && known(&waiting.stalled))
        });
    if !sound {
        return Err("its numbers contradict each other".into());
    }
    Ok(record)
}
