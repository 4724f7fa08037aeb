//! Operations between ranks in a timeline: what the flight recorder knows of them.

use std::time::Instant;

use brigade_comm::flight::{Entry, GroupRecord};
use brigade_comm::{FlightRecorder, OpType};
use brigade_report::timeline::{TracePhase, Track, Tracks};
use brigade_sorted::SortedMap;
use serde_json::{Value, json};

/// More members of a group are counted, not named.
const MAX_NAMED: usize = 16;

/// The operations of some steps. The recorder keeps the last ones alone, so they are read after each step.
pub(super) struct Operations {
    recorder: FlightRecorder,
    since: Instant,
    groups: Vec<GroupRecord>,
    entries: SortedMap<u64, Entry>,
}

impl Operations {
    /// From now on.
    pub fn record(recorder: FlightRecorder) -> Self {
        Self { recorder, since: Instant::now(), groups: Vec::new(), entries: SortedMap::new() }
    }

    /// Reads what was called since.
    pub fn read(&mut self) {
        let (groups, entries) = self.recorder.operations_since(self.since);
        self.groups = groups;
        self.entries.extend(entries.into_iter().map(|entry| (entry.id, entry)));
    }

    /// Adds all to a timeline; `time` turns microseconds since the rank's world began into its own, and `end` is when it ends. Gives the number of
    /// operations that were forgotten before they were read.
    pub fn add_to(self, tracks: &mut Tracks, rank: usize, time: impl Fn(u64) -> f64, end: f64) -> usize {
        let span = self.entries.keys().next_back().zip(self.entries.keys().next());
        let called = span.map_or(0, |(last, first)| (last - first + 1) as usize);
        for entry in self.entries.values() {
            let Some(group) = self.groups.get(entry.group) else { continue };
            let start = time(entry.started.unwrap_or(entry.called));
            let until = entry.finished.map_or(end, &time).max(start);
            let operation = entry.call.operation;
            let name = match (entry.peer, operation.is_receive()) {
                (Some(peer), true) => format!("receive from rank {peer}"),
                (Some(peer), false) => format!("send to rank {peer}"),
                (None, _) => operation.name().to_owned(),
            };
            let kind = match operation {
                OpType::Send => "sends",
                _ if operation.is_receive() => "receives",
                _ => "collectives",
            };
            let bytes = if operation.is_receive() { entry.received } else { entry.call.bytes };
            let mut args = vec![
                ("operation", operation.name().into()),
                ("bytes", bytes.into()),
                ("type", entry.call.dtype.to_string().into()),
                ("group", group.number.into()),
                ("number", entry.call.sequence.into()),
                ("called", time(entry.called).into()),
                ("peers", peers(group, entry.peer, rank)),
            ];
            args.extend(entry.call.root.map(|root| ("root", json!(root))));
            let track = Track::Operations(format!("{} of {}", kind, group.name));
            let category = if entry.peer.is_some() { "transfer" } else { "collective" };
            tracks.span(track.clone(), (name, category), (start, until), args);
            if entry.finished.is_none() {
                continue;
            }
            for (from, to) in arrows(entry, group, rank) {
                let phase = if from == rank { TracePhase::FlowStart } else { TracePhase::FlowEnd };
                let what = if entry.peer.is_some() { "message" } else { "collective" };
                let id = format!("{}:{what}:{from}>{to}:{}", group.number, entry.call.sequence);
                tracks.arrow(&track, phase, id);
            }
        }
        called - self.entries.len()
    }
}

/// The arrows that begin or end at an operation, each from one rank to another: of a message one, of a collective one to the next member of the group and one from the
/// member before, so that they go round.
fn arrows(entry: &Entry, group: &GroupRecord, rank: usize) -> Vec<(usize, usize)> {
    if let Some(peer) = entry.peer {
        return vec![if entry.call.operation.is_receive() { (peer, rank) } else { (rank, peer) }];
    }
    let members = &group.members;
    let Some(own) = members.iter().position(|member| *member == rank) else { return Vec::new() };
    match members.len() {
        2..=MAX_NAMED => {
            let (next, before) = ((own + 1) % members.len(), (own + members.len() - 1) % members.len());
            vec![(rank, members[next]), (members[before], rank)]
        }
        _ => Vec::new(),
    }
}

fn peers(group: &GroupRecord, peer: Option<usize>, rank: usize) -> Value {
    let others = || group.members.iter().filter(|member| **member != rank);
    match peer {
        Some(peer) => json!([peer]),
        None if group.members.len() > MAX_NAMED => json!(format!("{} ranks", others().count())),
        None => others().copied().collect(),
    }
}
