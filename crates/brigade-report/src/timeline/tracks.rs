//! The tracks of one rank.

use brigade_sorted::SortedMap;
use serde_json::Value;

use super::event::{TraceEvent, TracePhase};

/// A kind of work of a rank: one thread in the timeline, or several where things overlap.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Track {
    /// The steps.
    Steps,
    /// The actions of the schedule, and what follows them.
    Schedule,
    /// The blocks of the model.
    Blocks,
    /// What the training thread waits for.
    Waits,
    /// The threads that read ahead.
    Data,
    /// The threads that write checkpoints.
    Checkpoints,
    /// The operations of a group of ranks, by its name and kind.
    Operations(String),
}

impl Track {
    fn name(&self) -> String {
        match self {
            Self::Steps => "steps".into(),
            Self::Schedule => "schedule".into(),
            Self::Blocks => "blocks".into(),
            Self::Waits => "waits".into(),
            Self::Data => "reading data".into(),
            Self::Checkpoints => "writing checkpoints".into(),
            Self::Operations(name) => name.clone(),
        }
    }
}

/// What one rank did when. Spans of a track that overlap go to threads of their own.
#[derive(Debug, Clone)]
pub struct Tracks {
    rank: usize,
    name: String,
    spans: SortedMap<Track, Vec<Spanned>>,
}

#[derive(Debug, Clone)]
struct Spanned {
    event: TraceEvent,
    /// Arrows from it, and to it.
    flows: Vec<(TracePhase, String)>,
}

impl Tracks {
    /// Of a rank; `name` is what it is called.
    pub fn new(rank: usize, name: String) -> Self {
        Self { rank, name, spans: SortedMap::new() }
    }

    /// Adds a span, from `start` to `end` in microseconds.
    pub fn span(
        &mut self,
        track: Track,
        (name, category): (String, &str),
        (start, end): (f64, f64),
        args: impl IntoIterator<Item = (&'static str, Value)>,
    ) {
        let args = args.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let event = TraceEvent {
            name,
            cat: category.to_owned(),
            ph: TracePhase::Complete,
            pid: self.rank,
            tid: 0,
            ts: start,
            dur: Some((end - start).max(0.0)),
            id: None,
            bp: None,
            args,
        };
        self.spans.entry(track).or_default().push(Spanned { event, flows: Vec::new() });
    }

    /// Lets an arrow begin or end at the span that was added last to a track. Its other end, on another rank, has the same id.
    pub fn arrow(&mut self, track: &Track, phase: TracePhase, id: String) {
        if let Some(last) = self.spans.get_mut(track).and_then(|spans| spans.last_mut()) {
            last.flows.push((phase, id));
        }
    }

    /// All events, as a JSON array.
    ///
    /// # Errors
    /// If a number cannot be written, which is a mistake in this crate.
    pub fn to_json(self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&self.events())
    }

    /// All events.
    pub fn events(self) -> Vec<TraceEvent> {
        let (rank, mut tid) = (self.rank, 0);
        let mut events = vec![
            TraceEvent::about("process_name", rank, 0, "name", self.name),
            TraceEvent::about("process_sort_index", rank, 0, "sort_index", rank),
        ];
        for (track, mut spans) in self.spans {
            spans.sort_by(|a, b| a.event.ts.total_cmp(&b.event.ts));
            // By thread: when it is free.
            let mut free: Vec<f64> = Vec::new();
            let first = tid + 1;
            for Spanned { mut event, flows } in spans {
                let lane = free.iter().position(|until| *until <= event.ts).unwrap_or(free.len());
                match free.get_mut(lane) {
                    Some(until) => *until = event.end(),
                    None => free.push(event.end()),
                }
                event.tid = first + lane;
                for (ph, id) in flows {
                    let is_end = ph == TracePhase::FlowEnd;
                    // Within the span, so that viewers find it.
                    let ts = if is_end { event.ts.max(event.end() - 0.5) } else { event.ts };
                    let bp = is_end.then(|| "e".to_owned());
                    let (name, cat) = ("message".to_owned(), "message".to_owned());
                    let args = SortedMap::new();
                    let (dur, id) = (None, Some(id));
                    events.push(TraceEvent { name, cat, ph, ts, dur, id, bp, args, ..event });
                }
                events.push(event);
            }
            for lane in 0..free.len() {
                let thread = first + lane;
                events.push(TraceEvent::about("thread_name", rank, thread, "name", track.name()));
                events.push(TraceEvent::about("thread_sort_index", rank, thread, "sort_index", thread));
            }
            tid += free.len();
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_that_overlap_go_to_threads_of_their_own() {
        let mut tracks = Tracks::new(3, "rank 3".into());
        for (start, end) in [(5.0, 9.0), (0.0, 6.0), (6.0, 7.0), (9.0, 9.0)] {
            tracks.span(Track::Data, ("read".into(), "data"), (start, end), []);
        }
        tracks.span(Track::Steps, ("step 1".into(), "step"), (0.0, 9.0), [("step", 1.into())]);
        tracks.arrow(&Track::Steps, TracePhase::FlowEnd, "a".into());
        let events = tracks.events();
        let spans: Vec<(usize, f64)> = events
            .iter()
            .filter(|event| event.ph == TracePhase::Complete)
            .map(|event| (event.tid, event.ts))
            .collect();
        assert_eq!(spans, [(1, 0.0), (2, 0.0), (3, 5.0), (2, 6.0), (2, 9.0)]);
        let arrow = events.iter().find(|event| event.ph == TracePhase::FlowEnd).map(|event| event.ts);
        assert_eq!(arrow, Some(8.5));
    }
}
