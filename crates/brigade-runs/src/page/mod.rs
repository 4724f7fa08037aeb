//! The page of a run: one HTML file with everything in it.

mod memory;
mod runs;
mod step_timeline;
mod summary;
mod templates;

use serde::Serialize;

use crate::charts::{Charts, Heat, Mark, charts, heat, marks};
use crate::error::Result;
use crate::run::{Difference, Run, Setting};
use crate::scaling::{Finding, diagnose};

pub(crate) use runs::{Row, row, runs_data, runs_page};
pub(crate) use step_timeline::NewestTimeline;
pub use step_timeline::{RankTimeline, SpanKind, StepSpan, StepTimeline};

use memory::MemoryRow;
use summary::Figure;

/// What every page of a run has near its beginning, and no other file.
pub const PAGE_MARKER: &str = r#"<meta name="generator" content="brigade report">"#;

/// The numbers that a page draws, embedded as JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PageData {
    /// The run's name.
    pub name: String,
    /// Columns of numbers.
    #[serde(flatten)]
    pub charts: Charts,
    /// What happened when.
    pub events: Vec<Mark>,
    /// The ranks' times.
    pub heat: Option<Heat>,
    /// What ranks did in the last step of the newest timeline, if the run has one.
    pub timeline: Option<StepTimeline>,
    /// The run that it is compared with.
    pub compare: Option<Compared>,
    /// Where a server announces changes, if there is one.
    pub watched: Option<String>,
}

/// The numbers of a run that another is compared with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// The run's name.
    pub name: String,
    /// Columns of numbers.
    #[serde(flatten)]
    pub charts: Charts,
    /// What happened when.
    pub events: Vec<Mark>,
}

/// What the templates are filled with.
#[derive(Serialize)]
struct View<'a> {
    name: &'a str,
    folder: String,
    state: String,
    state_word: &'static str,
    is_live: bool,
    figures: Vec<Figure>,
    notes: Vec<String>,
    findings: Vec<Finding>,
    events: &'a [Mark],
    memory: Vec<MemoryRow>,
    compared: Option<&'a str>,
    differences: Vec<Difference>,
    settings: &'a [Setting],
    charts: Vec<ChartPlace<'a>>,
    has_heat: bool,
    timeline: Option<&'a StepTimeline>,
}

/// Where a chart is in the page.
#[derive(Serialize)]
struct ChartPlace<'a> {
    id: &'a str,
    title: &'a str,
    hint: &'a str,
}

impl PageData {
    /// The numbers of a run, and of one that it is compared with. `watched`: where a server tells of changes.
    pub fn new(run: &Run, other: Option<&Run>, watched: Option<String>) -> Self {
        Self::with_timeline(run, other, watched, step_timeline::step_timeline(run))
    }

    fn with_timeline(
        run: &Run,
        other: Option<&Run>,
        watched: Option<String>,
        timeline: Option<StepTimeline>,
    ) -> Self {
        Self {
            name: run.name.clone(),
            charts: charts(&run.records, run.unit()),
            events: marks(run),
            heat: heat(run),
            timeline,
            compare: other.map(|other| Compared {
                name: other.name.clone(),
                charts: charts(&other.records, other.unit()),
                events: marks(other),
            }),
            watched,
        }
    }
}

/// The page of a run: HTML that needs nothing else. `other`: a run to compare it with.
///
/// # Errors
/// If the two runs have nothing to compare.
pub fn page(run: &Run, other: Option<&Run>) -> Result<String> {
    if let Some(other) = other {
        run.check_compares(other)?;
    }
    let data = PageData::new(run, other, None);
    templates::page(&view(run, other, &data), &data)
}

/// The page of a run that a server watches; `address`: where it tells of changes.
pub(crate) fn live_page(run: &Run, timeline: Option<StepTimeline>, address: &str) -> Result<String> {
    let data = PageData::with_timeline(run, None, Some(address.to_owned()), timeline);
    templates::page(&view(run, None, &data), &data)
}

/// What a page that is open takes over of a run that went on, as JSON: its numbers, and the parts that are text.
pub(crate) fn live_parts(run: &Run, timeline: Option<StepTimeline>, address: &str) -> Result<String> {
    let data = PageData::with_timeline(run, None, Some(address.to_owned()), timeline);
    let parts = templates::parts(&view(run, None, &data))?;
    Ok(serde_json::to_string(&serde_json::json!({ "data": data, "parts": parts }))?)
}

fn view<'a>(run: &'a Run, other: Option<&'a Run>, data: &'a PageData) -> View<'a> {
    View {
        name: &run.name,
        folder: run.dir.display().to_string(),
        state: run.state.to_string(),
        state_word: run.state.word(),
        is_live: data.watched.is_some(),
        figures: summary::figures(run),
        notes: summary::notes(run, data),
        findings: diagnose(run),
        events: &data.events,
        memory: memory::rows(run),
        compared: other.map(|other| other.name.as_str()),
        differences: other.map(|other| run.differences(other)).unwrap_or_default(),
        settings: &run.settings,
        charts: (data.charts.charts.iter())
            .map(|chart| ChartPlace { id: &chart.id, title: &chart.title, hint: chart.hint })
            .collect(),
        has_heat: data.heat.is_some(),
        timeline: data.timeline.as_ref(),
    }
}
