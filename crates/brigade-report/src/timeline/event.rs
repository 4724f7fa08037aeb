//! Events of the format.

use brigade_sorted::SortedMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What kind of event it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TracePhase {
    /// A span with a duration.
    #[serde(rename = "X")]
    Complete,
    /// A name of a process or a thread.
    #[serde(rename = "M")]
    Metadata,
    /// The begin of an arrow.
    #[serde(rename = "s")]
    FlowStart,
    /// The end of an arrow.
    #[serde(rename = "f")]
    FlowEnd,
}

/// An event. Times are in microseconds since the first step of the timeline began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceEvent {
    /// What happened.
    pub name: String,
    /// The kind of work: `action`, `wait`, `collective` and so on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cat: String,
    /// The kind of event.
    pub ph: TracePhase,
    /// The rank.
    pub pid: usize,
    /// The track.
    pub tid: usize,
    /// When it began.
    pub ts: f64,
    /// How long it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dur: Option<f64>,
    /// What the two ends of an arrow have in common.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `e` where an arrow ends at the span around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bp: Option<String>,
    /// What else is known.
    #[serde(default, skip_serializing_if = "SortedMap::is_empty")]
    pub args: SortedMap<String, Value>,
}

impl TraceEvent {
    /// A name of a process or thread, or where it stands among others.
    pub(super) fn about(name: &str, pid: usize, tid: usize, key: &str, value: impl Into<Value>) -> Self {
        Self {
            name: name.to_owned(),
            cat: String::new(),
            ph: TracePhase::Metadata,
            pid,
            tid,
            ts: 0.0,
            dur: None,
            id: None,
            bp: None,
            args: SortedMap::from([(key.to_owned(), value.into())]),
        }
    }

    /// When it ended.
    pub fn end(&self) -> f64 {
        self.ts + self.dur.unwrap_or(0.0)
    }

    /// A number among what else is known.
    pub fn number(&self, name: &str) -> Option<usize> {
        self.args.get(name)?.as_u64().map(|number| number as usize)
    }

    /// A text among what else is known.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.args.get(name)?.as_str()
    }
}
