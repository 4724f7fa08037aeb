//! What browsers are shown of a run.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;

use crate::error::Result;
use crate::page::{NewestTimeline, StepTimeline, live_page, live_parts};
use crate::run::Run;

/// What is made of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum View {
    /// Its page.
    Page,
    /// What a page that is open takes over.
    Parts,
}

/// The views of a run, each made once for all who ask, and again only where the run or its newest timeline changed.
#[derive(Default)]
pub struct Views {
    timeline: NewestTimeline,
    /// What they were made of.
    of: Option<(Arc<Run>, Option<StepTimeline>)>,
    made: BTreeMap<View, Bytes>,
}

impl Views {
    /// A view of a run; `address`: where it tells of changes.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn get(&mut self, view: View, run: &Arc<Run>, address: &str) -> Result<Bytes> {
        let timeline = self.timeline.of(run);
        let is_same =
            (self.of.as_ref()).is_some_and(|(of, there)| Arc::ptr_eq(of, run) && there.as_ref() == timeline);
        if !is_same {
            self.of = Some((Arc::clone(run), timeline.cloned()));
            self.made.clear();
        } else if let Some(made) = self.made.get(&view) {
            return Ok(made.clone());
        }
        let timeline = timeline.cloned();
        let text = match view {
            View::Page => live_page(run, timeline, address),
            View::Parts => live_parts(run, timeline, address),
        };
        let made = Bytes::from(text?);
        self.made.insert(view, made.clone());
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use brigade_report::StepRecord;

    use super::*;
    use crate::run::RunState;

    #[test]
    fn a_view_is_made_again_only_where_the_run_changed() {
        let run = |step| {
            let last = StepRecord { step, step_seconds: 1.0, ..StepRecord::default() };
            Arc::new(Run::of_history("a", "", Some(last), RunState::Running))
        };
        let (early, late, mut views) = (run(1), run(2), Views::default());
        let mut get = |view, run| views.get(view, run, "/run/a").unwrap();
        let (page, parts) = (get(View::Page, &early), get(View::Parts, &early));
        assert!(page.starts_with(b"<!doctype html>") && parts.starts_with(b"{"));
        assert_eq!(get(View::Page, &early).as_ptr(), page.as_ptr());
        assert_eq!(get(View::Parts, &early).as_ptr(), parts.as_ptr());
        assert_ne!(get(View::Page, &late), page);
        assert_ne!(get(View::Parts, &late), parts);
    }
}
