//! A world of one rank, which has nobody to connect to.

use std::sync::Arc;

use crate::Result;
use crate::error::Diagnosis;
use crate::link::connector::{Connector, LinkSpec, LinkUnavailable};
use crate::link::endpoint::Link;
use crate::link::shared::event_fd::EventFd;

/// The connector of a world of one rank.
pub(super) struct SingleRankConnector;

impl Connector for SingleRankConnector {
    fn join_group(&self, _: u64, _: usize) -> Result<Arc<EventFd>> {
        EventFd::new().map(Arc::new)
    }

    fn leave_group(&self, _: u64, _: usize) {}

    fn link(&self, _: &LinkSpec<'_>) -> std::result::Result<Option<Link>, LinkUnavailable> {
        Ok(None)
    }

    fn diagnose(&self, _: usize) -> Diagnosis {
        Diagnosis::default()
    }

    fn has_core_per_rank(&self) -> bool {
        true
    }
}
