//! The steps of the ranks and the mesh that a run has now, of one that was resumed on others.

use brigade_report::{HistoryRecord, RunEvent, StepRecord, counted};

use super::Run;

impl Run {
    /// The steps in the mesh of the last start: all, unless the run was resumed in another mesh.
    pub fn records_of_last_mesh(&self) -> &[StepRecord] {
        let first = self.first_of_last_mesh().unwrap_or(0);
        &self.records[first..]
    }

    /// That earlier steps were in another mesh, where some were, and what the last one is; without a full stop.
    pub fn last_mesh_note(&self) -> Option<String> {
        let first = self.records.get(self.first_of_last_mesh()?);
        let ranks = self.ranks().map_or_else(String::new, |ranks| format!(" on {}", counted(ranks, "rank")));
        let mesh = match self.mesh_text() {
            text if text.is_empty() => String::new(),
            text => format!(" ({text})"),
        };
        Some(match first {
            Some(first) => format!(
                "the steps since {}{ranks}{mesh}, because those before were in another mesh",
                first.step
            ),
            None => {
                format!("no steps: there are none{ranks}{mesh} yet, and those before were in another mesh")
            }
        })
    }

    /// Where the steps of the last mesh begin; none where the run had no other.
    fn first_of_last_mesh(&self) -> Option<usize> {
        let start = self.last_start()?;
        let last = shape(&self.history[start].event)?;
        let is_other = |record: &HistoryRecord| shape(&record.event).is_some_and(|other| other != last);
        let other = self.history[..start].iter().rposition(is_other)?;
        // Whatever went back to an earlier step since then removed later ones.
        let before = |record: &HistoryRecord| match record.event {
            RunEvent::Started { resumed_at: Some(step), .. } | RunEvent::RolledBack { step } => {
                Some(self.records.partition_point(|record| record.step <= step))
            }
            RunEvent::Started { .. } => {
                let is_before = |step: &StepRecord| step.time.is_some_and(|time| time <= record.time);
                Some(self.records.iter().rposition(is_before).map_or(0, |last| last + 1))
            }
            _ => None,
        };
        let first = self.history[other + 1..].iter().filter_map(before).min()?;
        (first > 0).then_some(first)
    }
}

/// What a start runs on.
#[derive(PartialEq)]
struct Shape<'a> {
    ranks: usize,
    mesh: &'a [(String, usize)],
    servers: usize,
}

fn shape(event: &RunEvent) -> Option<Shape<'_>> {
    match event {
        RunEvent::Started { ranks, mesh, servers, .. } => {
            Some(Shape { ranks: *ranks, mesh, servers: *servers })
        }
        _ => None,
    }
}
