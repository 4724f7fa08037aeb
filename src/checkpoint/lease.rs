//! Whether locations are still their run's, as leases say.

use std::sync::Arc;

use anyhow::bail;
use brigade_checkpoint::{LeaseLocation, lease_location, newest_lease};

/// The leases of locations, which the run's launcher holds while ranks save.
#[derive(Clone)]
pub(super) struct HeldLeases(Vec<(Arc<dyn LeaseLocation>, Option<u64>)>);

impl HeldLeases {
    /// The newest ones now, when the ranks have just started; there is none where a lock of the operating system is held instead.
    pub(super) fn of(locations: &[&str]) -> anyhow::Result<Self> {
        let newest = |location: &&str| {
            let location: Arc<dyn LeaseLocation> = lease_location(location)?.into();
            let number = newest_lease(&*location)?;
            Ok((location, number))
        };
        locations.iter().map(newest).collect::<anyhow::Result<_>>().map(Self)
    }

    /// Refuses to go on if another run has taken one of the locations, which this run's launcher only sees at its next renewal.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        for (location, number) in &self.0 {
            if newest_lease(&**location)? != *number {
                bail!("{} was taken over by another run; this one saves nothing more", location.text());
            }
        }
        Ok(())
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
        let other = folder.path().join("checkpoints");
        let places = [other.to_str().unwrap(), place];
        let without = HeldLeases::of(&places).unwrap();
        without.check().unwrap();
        take(1);
        let held = HeldLeases::of(&places).unwrap();
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
