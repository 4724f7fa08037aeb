//! A run in columns of numbers: what a page draws.

mod heat;
mod marks;
mod steps;
mod thin;

use serde::Serialize;

pub use heat::{Heat, Measure, heat};
pub use marks::{Mark, MarkKind, marks};
pub use steps::charts;

/// The charts of a run, over one axis.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Charts {
    /// The step of each point.
    pub steps: Vec<u64>,
    /// Its time, in seconds since the first step began, if that of every step is known.
    pub times: Option<Vec<f64>>,
    /// How many steps two neighbouring points stand for: the least and the most of them, or their mean where series are stacked. 1
    /// where every step is a point.
    pub steps_per_point: usize,
    /// The charts that have anything to show.
    pub charts: Vec<Chart>,
}

/// One chart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chart {
    /// Names it in the page.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// A sentence on how to read it.
    pub hint: &'static str,
    /// How its numbers are written: `number`, `rate`, `bytes`, `seconds` or `percent`.
    pub unit: &'static str,
    /// Whether its series are parts of a whole, drawn on top of each other.
    pub stacked: bool,
    /// Whether its axis is logarithmic, where all numbers are positive.
    pub log: bool,
    /// The lines, or the parts from the lowest on.
    pub series: Vec<Series>,
}

/// One line of a chart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// What the line is.
    pub name: String,
    /// Whether only some steps have a number, which are joined then.
    pub sparse: bool,
    /// A number for each point; none where it is unknown or not finite.
    pub values: Vec<Option<f64>>,
}
