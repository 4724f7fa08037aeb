//! Which checkpoints a save removes, and whether those at its location are of its run.

use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::bail;
use brigade_checkpoint::{Checkpoint, CheckpointDir, Storage, TrainState, keep_latest, remove_after};
use serde::Deserialize;

use super::RunDescription;
use crate::settings::CheckpointSettings;

/// Refuses a location with checkpoints, for a new run that may not replace them.
pub(crate) fn refuse_checkpoints(storage: &dyn Storage) -> anyhow::Result<()> {
    if storage.published()?.is_empty() {
        return Ok(());
    }
    bail!(
        "{} holds checkpoints of an earlier run; give another location, --resume auto to continue that run, or --overwrite to \
         replace them",
        storage.location()
    )
}

/// Checks that no other run saves at the same location: each would remove the other's checkpoints. Gives those that are there.
pub(super) fn refuse_other_runs(
    storage: &Arc<dyn Storage>,
    own: &TrainState,
) -> anyhow::Result<Vec<CheckpointDir>> {
    let run =
        |state: &TrainState| RunDescription::deserialize(&state.settings).ok().map(|described| described.run);
    let found = storage.published()?;
    for published in &found {
        let there = Checkpoint::open(storage.clone(), published.step);
        if there.is_ok_and(|there| run(&there.manifest().state) != run(own)) {
            bail!(
                "{} now holds checkpoints of another run; give each run a location of its own",
                storage.location()
            );
        }
    }
    Ok(found)
}

/// Of this run's checkpoints, removes those that the new one of `step` replaces: those of later steps, which were rolled back or passed over as
/// damaged, and all but the newest, while always keeping one that a rollback can restore, and the best.
pub(super) fn remove_replaced(
    storage: &dyn Storage,
    own: &[CheckpointDir],
    step: u64,
    best: Option<u64>,
    settings: &CheckpointSettings,
) -> brigade_checkpoint::Result<()> {
    remove_after(storage, own, step)?;
    remove_older(storage, own, step, best, settings)
}

/// Of this run's checkpoints up to that of `step`, removes all but the newest, one that a rollback can restore, and the best.
pub(super) fn remove_older(
    storage: &dyn Storage,
    own: &[CheckpointDir],
    step: u64,
    best: Option<u64>,
    settings: &CheckpointSettings,
) -> brigade_checkpoint::Result<()> {
    if let Some(most) = NonZeroUsize::new(settings.keep) {
        let kept: Vec<CheckpointDir> = own.iter().filter(|own| own.step <= step).cloned().collect();
        keep_latest(storage, &kept, most, |step| settings.is_regular(step), best)?;
    }
    Ok(())
}
