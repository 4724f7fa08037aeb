//! Whether a location is still its run's, as leases say.

use std::sync::Arc;

use anyhow::bail;
use brigade_checkpoint::{LeaseLocation, lease_location, newest_lease};

/// The lease of the location, which the run's launcher holds while ranks save there.
#[derive(Clone)]
pub(super) struct HeldLease {
    location: Arc<dyn LeaseLocation>,
    number: Option<u64>,
}

impl HeldLease {
    /// The newest one now, when the ranks have just started; there is none where a lock of the operating system is held instead.
    pub(super) fn of(location: &str) -> anyhow::Result<Self> {
        let location: Arc<dyn LeaseLocation> = lease_location(location)?.into();
        let number = newest_lease(&*location)?;
        Ok(Self { location, number })
    }

    /// Refuses to go on if another run has taken the location, which this run's launcher only sees at its next renewal.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if newest_lease(&*self.location)? == self.number {
            return Ok(());
        }
        bail!("{} was taken over by another run; this one saves nothing more there", self.location.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_that_another_run_has_taken_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().to_str().unwrap();
        let take = |number: u64| {
            assert!(lease_location(place).unwrap().create(&format!("{number:08}.json"), b"{}").unwrap());
        };
        let without = HeldLease::of(place).unwrap();
        without.check().unwrap();
        take(1);
        let held = HeldLease::of(place).unwrap();
        held.check().unwrap();
        take(2);
        for lost in [held, without] {
            let message = lost.check().unwrap_err().to_string();
            assert!(
                message.contains(place) && message.contains("was taken over by another run"),
                "{message}"
            );
        }
    }
}
